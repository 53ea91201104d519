"""A run that knows its prompts' earlier visits, killed and resumed, as a user runs it."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.test_train import SMALL, STEPS, assert_same_run, dapo, last_step, train, within_step_3

# Each prompt comes several times, and many are passed over.
SEVERAL_VISITS = [
    "data.prompts=6",
    "sampler.refill=false",
    "sampler.skip_solved_above=0.75",
    "sampler.skip_hopeless_below=0.0",
    "sampler.revisit_after=1",
    "eval.every=0",
]
SMOOTHED = [*SEVERAL_VISITS, "algorithm.advantage=smoothed"]


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


def test_killed_and_resumed_equals_uninterrupted(reference, tmp_path):
    folder = tmp_path / "run"
    command = dapo("train", "quickstart", f"run.dir={folder}", *SMALL, *SMOOTHED)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not within_step_3(folder):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert train(folder, *SMOOTHED).returncode == 0
    assert_same_run(reference, folder)


def test_another_advantage_trains_otherwise(reference, tmp_path):
    """From the first visits on alike, but for the eps of Eq. 9; then not, since prompts come again."""
    assert train(tmp_path / "run", *SEVERAL_VISITS).returncode == 0
    assert last_step(tmp_path / "run") == STEPS
    ours, plain = steps_of(reference), steps_of(tmp_path / "run")
    assert ours[0]["policy/loss"] == pytest.approx(plain[0]["policy/loss"], abs=1e-4)
    assert ours[0]["judged/accuracy"] == plain[0]["judged/accuracy"]
    assert any(
        abs(one["policy/grad_norm"] - other["policy/grad_norm"]) > 0.01 * other["policy/grad_norm"]
        for one, other in zip(ours[1:], plain[1:], strict=True)
    )
