"""Each failure mode provoked for real in a short run of the shipped model, or of the table: the alarm comes within a
few steps. docs/health.md tells what was seen."""

import json
from pathlib import Path

import pytest

from dapo_cli.cli.app import run
from dapo_cli.learner.base import BaseLearner
from dapo_cli.learner.single import SingleLearner
from dapo_cli.rollout.transformers_engine import TransformersEngine

pytestmark = pytest.mark.slow

SMALL = ["run.threads=1", "eval.data=null", "checkpoint.every=100", "data.prompts=512"]
SMALL += ["algorithm.groups_per_step=8", "algorithm.groups_per_update=4", "optimizer.warmup_steps=1"]
SMALL += ["sampler.max_prompts_per_round=24", "sampler.max_rounds=2"]


def quickstart(folder: Path, steps: int, *overrides: str) -> dict[str, int]:
    """Run it to its end; returns the step at which each rule's alarm first came."""
    assert run(["train", "quickstart", f"run.dir={folder}", f"run.steps={steps}", *SMALL, *overrides], debug=True) == 0
    return first_alarms(folder)


def first_alarms(folder: Path) -> dict[str, int]:
    file = folder / "health.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {event["rule"]: event["step"] for event in reversed(events) if event["event"] == "began"}


def test_a_sound_run_gives_no_alarm(tmp_path):
    assert quickstart(tmp_path / "run", 8) == {}


def test_a_learning_rate_15_times_too_high(tmp_path):
    alarms = quickstart(tmp_path / "run", 6, "optimizer.lr=3e-3")
    assert alarms["entropy_explosion"] <= 5


def test_a_learning_rate_raised_in_a_running_run(tmp_path):
    assert quickstart(tmp_path / "run", 5) == {}
    alarms = quickstart(tmp_path / "run", 8, "optimizer.lr=3e-3", "--allow-changes")
    assert alarms["grad_norm_spike"] <= 8


def test_a_table_that_is_sure_of_what_it_saw_once(tmp_path):
    """Eight times the learning rate settles each prompt with its first right answer; the others are never explored."""
    overrides = ["run.steps=8", "model.prompts=64", "sampler.dynamic=false", "algorithm.samples_per_prompt=8"]
    overrides += ["algorithm.groups_per_update=8", "optimizer.lr=256", "eval.every=0"]
    assert run(["train", "toy", f"run.dir={tmp_path / 'run'}", *overrides], debug=True) == 0
    assert first_alarms(tmp_path / "run")["entropy_collapse"] <= 8


def test_data_that_is_solved(tmp_path):
    (tmp_path / "all_right.py").write_text("def verify(prompt, completion, answer): return True\n")
    alarms = quickstart(tmp_path / "run", 4, "reward=python", f"reward.path={tmp_path / 'all_right.py'}")
    assert alarms == {"resampling_spiral": 3}


def test_a_limit_on_tokens_that_cuts_most_answers(tmp_path):
    alarms = quickstart(tmp_path / "run", 4, "sampling.max_tokens=24", "overlong.cache_tokens=8")
    assert alarms["length_runaway"] == 3


@pytest.mark.parametrize("body", ["raise ValueError(answer)", "time.sleep(60)"])
def test_a_verifier_that_fails_now_and_then(tmp_path, body):
    (tmp_path / "broken.py").write_text(
        "import time\n\ndef verify(prompt, completion, answer):\n"
        f"    if answer.endswith('3'):\n        {body}\n    return f'={{answer}}' in completion\n"
    )
    fails = ["reward=python", f"reward.path={tmp_path / 'broken.py'}", "reward.timeout_s=0.1"]
    assert quickstart(tmp_path / "run", 1, *fails, "algorithm.samples_per_prompt=2")["verifier_failures"] == 1


def test_an_engine_that_keeps_its_old_weights(tmp_path, monkeypatch):
    """The engine has a copy of the weights, as it has in bfloat16, and its sync does nothing."""
    monkeypatch.setattr(SingleLearner, "holds_plain_model", BaseLearner.holds_plain_model)
    monkeypatch.setattr(TransformersEngine, "sync_weights", lambda self, weights: None)
    alarms = quickstart(tmp_path / "run", 8, "optimizer.lr=1e-3")
    assert alarms["mismatch_drift"] <= 7


def test_a_reward_that_is_never_right(tmp_path):
    (tmp_path / "never_right.py").write_text("def verify(prompt, completion, answer): return False\n")
    alarms = quickstart(tmp_path / "run", 3, "reward=python", f"reward.path={tmp_path / 'never_right.py'}")
    assert alarms["zero_reward_cold_start"] == 3
