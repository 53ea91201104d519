"""A run that knows its prompts' earlier visits, killed and resumed, as a user runs it."""

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.test_train import assert_same_run, start_and_signal, train, within_step_3

# Each prompt comes several times, and many are passed over.
SMOOTHED = [
    "data.prompts=6",
    "sampler.refill=false",
    "sampler.skip_solved_above=0.75",
    "sampler.skip_hopeless_below=0.0",
    "sampler.revisit_after=1",
    "eval.every=0",
    "algorithm.advantage=smoothed",
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ledger") / "run"
    done = train(folder, *SMOOTHED)
    assert done.returncode == 0, done.stderr
    return folder


def steps_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_ledger_of_a_run(reference):
    steps = steps_of(reference)
    assert steps[-1]["ledger/seen"] == 6 and steps[-1]["ledger/visits"] > 1.5
    assert sum(step["sampler/prompts"] for step in steps) == round(6 * steps[-1]["ledger/visits"])
    assert any(step["sampler/skipped_solved"] + step["sampler/skipped_hopeless"] for step in steps)
    assert all(step["sampler/prompts"] <= 4 for step in steps)


@pytest.mark.slow  # test_ledger of unit/ resumes a sampler at any step, test_train kills runs
def test_killed_and_resumed_equals_uninterrupted(reference, tmp_path):
    folder = tmp_path / "run"
    process = start_and_signal(folder, within_step_3, signal.SIGKILL, *SMOOTHED)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert train(folder, *SMOOTHED).returncode == 0
    assert_same_run(reference, folder)
