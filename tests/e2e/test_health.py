"""What alarms do to a run, on the table of logits, and failure modes provoked in runs of the shipped model."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dapo_cli.cli.app import run
from dapo_cli.health.event import Signs
from dapo_cli.health.rules import RULES
from dapo_cli.health.window import Record
from dapo_cli.reproduce.recorded import Recorded
from dapo_cli.tabular.lab import TabularLab
from dapo_cli.tracking.run_folder import RunFolder

STOPPED = 3
STEPS = 8
TOY = [f"run.steps={STEPS}", "model.prompts=64", "algorithm.groups_per_step=8", "algorithm.groups_per_update=4"]
TOY += ["eval.every=0", "checkpoint.every=1", "optimizer.lr=4.0"]

SMALL = ["run.steps=5", "run.threads=1", "eval.data=null", "data.prompts=512", "algorithm.groups_per_step=4"]
SMALL += ["algorithm.groups_per_update=2", "algorithm.samples_per_prompt=4", "optimizer.warmup_steps=1"]
SMALL += ["sampler.max_prompts_per_round=12", "sampler.max_rounds=2", "health.window=4"]
TWO = ["learner=fsdp", "launch.processes_per_node=2"]


def toy(folder: Path, *overrides: str) -> int:
    """The exit code."""
    return run(["train", "toy", f"run.dir={folder}", *TOY, *overrides], debug=False)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").iterdir())


@pytest.fixture
def fails_at_5(monkeypatch) -> str:
    """A rule whose signs are there from step 4 on, and seen at step 5, while the learning rate is as high as at first;
    returns what sets the action."""

    def too_fast(window: Sequence[Record], rule: Any) -> Signs | None:
        last = window[-1]
        return Signs(4, "Too fast.", {}) if last["step"] in (5, 6) and last["policy/lr"] > 2.0 else None

    monkeypatch.setitem(RULES, "entropy_collapse", too_fast)
    return "health.entropy_collapse.action="


def test_a_stop_saves_and_the_same_command_goes_on(tmp_path, fails_at_5, capsys):
    overrides = [fails_at_5 + "stop", "checkpoint.every=100"]
    assert toy(tmp_path / "run", *overrides) == STOPPED
    said = capsys.readouterr().err
    assert "entropy_collapse: Too fast. The run is stopped after step 5 of 8; the same command goes on." in said
    assert checkpoints(tmp_path / "run") == [5]
    assert toy(tmp_path / "run", *overrides) == 0
    assert toy(tmp_path / "whole", fails_at_5 + "note") == 0
    for name in ("metrics.jsonl", "export/table.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    events = [(event["step"], event["event"]) for event in lines(tmp_path / "run" / "health.jsonl")]
    assert events == [(5, "began"), (7, "ended")]


def test_a_kept_checkpoint_is_not_rotated_away(tmp_path, fails_at_5):
    assert toy(tmp_path / "run", fails_at_5 + "checkpoint", "checkpoint.every=2") == 0
    assert checkpoints(tmp_path / "run") == [5, 6, 8]


def test_a_rollback_goes_on_before_the_signs_at_a_lower_rate(tmp_path, fails_at_5, capsys, monkeypatch):
    folder, by_hand = tmp_path / "run", tmp_path / "by_hand"
    rollback = [fails_at_5 + "rollback", "checkpoint.keep=1", "health.window=4"]
    assert toy(folder, *rollback) == 0
    shown = capsys.readouterr().out
    assert "warning, step 5: entropy_collapse: Too fast. Rolled back to step 3; the run goes on at 0.5 times" in shown
    assert "health             entropy_collapse (steps 4 to 5, rolled back)" in shown
    (event,) = lines(folder / "health.jsonl")
    assert event == json.loads((folder / "manifest.json").read_text())["rollbacks"][0]
    assert [line["policy/lr"] for line in lines(folder / "metrics.jsonl")] == [4.0] * 3 + [2.0] * 5
    assert checkpoints(folder) == [5, 7, 8]  # the newest one, and what a later rollback could need

    # The same by hand: a run of three steps, gone on with at half the rate.
    assert toy(by_hand, "run.steps=3") == 0
    assert toy(by_hand, "optimizer.lr=2.0", "--allow-changes") == 0
    for name in ("metrics.jsonl", "export/table.safetensors"):
        assert (folder / name).read_bytes() == (by_hand / name).read_bytes(), name

    # A rerun is rolled back, too.
    def in_this_process(recorded: Recorded, target: RunFolder, *_: Any) -> None:
        assert run(["train", str(recorded.source.recipe_file), *recorded.overrides(target.path)], debug=False) == 0

    monkeypatch.setattr("dapo_cli.cli.reproduce.rerun", in_this_process)
    assert run(["reproduce", str(folder), "-o", str(tmp_path / "again")], debug=False) == 0
    assert (folder / "health.jsonl").read_bytes() == (tmp_path / "again" / "health.jsonl").read_bytes()
    assert run(["reproduce", str(folder), "--steps", "4", "-o", str(tmp_path / "four")], debug=False) == 2
    assert "give --steps 3 or --steps 5" in capsys.readouterr().err

    # What a kill leaves after the rollback goes on at the lower rate, too.
    left = [(folder / name).read_bytes() for name in ("metrics.jsonl", "health.jsonl")]
    shutil.rmtree(folder / "checkpoints" / "step_000008")
    assert toy(folder, *rollback) == 0
    assert "going on after step 7 of 8" in capsys.readouterr().err
    assert [(folder / name).read_bytes() for name in ("metrics.jsonl", "health.jsonl")] == left


def test_a_rollback_leaves_its_work_out_of_the_next_step_s_flops(tmp_path, fails_at_5, monkeypatch):
    counted: list[dict[str, float]] = []
    take = TabularLab.take_model_flops

    def count(lab: TabularLab, phase: str, *_: Any) -> None:
        lab._model_flops[phase] += 1.0

    def told(lab: TabularLab) -> dict[str, float]:
        counted.append(take(lab))
        return counted[-1]

    monkeypatch.setattr(TabularLab, "_count_flops", count)
    monkeypatch.setattr(TabularLab, "take_model_flops", told)
    assert toy(tmp_path / "run", fails_at_5 + "rollback", "checkpoint.keep=1", "health.window=4") == 0
    # Each step scores once and makes 4 passes of 2 updates. Steps 4 and 5 come twice, and no count holds two of them.
    steps = [each for each in counted if each]
    assert len(steps) == STEPS + 2 and all(each == {"score": 1.0, "update": 8.0} for each in steps)


def test_a_run_that_cannot_roll_back_stops(tmp_path, fails_at_5, capsys):
    assert toy(tmp_path / "none", fails_at_5 + "rollback", "checkpoint.every=4") == STOPPED
    assert "No checkpoint of before step 4 is there to roll back to." in capsys.readouterr().err
    assert checkpoints(tmp_path / "none") == [4, 5]
    often = [fails_at_5 + "rollback", "checkpoint.keep=3", "health.rollback_lr_factor=0.9", "health.max_rollbacks=1"]
    assert toy(tmp_path / "often", *often) == STOPPED
    assert "has been rolled back 1 time (health.max_rollbacks)" in capsys.readouterr().err
    rates = [line["policy/lr"] for line in lines(tmp_path / "often" / "metrics.jsonl")]
    assert rates == [4.0] * 3 + [0.9 * 4.0] * 2
    events = [(event["step"], event["event"]) for event in lines(tmp_path / "often" / "health.jsonl")]
    assert events == [(5, "rolled_back"), (5, "began")]


def test_a_paused_run_waits_for_its_file_to_go(tmp_path, fails_at_5, monkeypatch):
    monkeypatch.setattr("dapo_cli.health.pause.POLL_S", 0.01)
    folder, seen = tmp_path / "run", {}

    def person() -> None:
        paused = folder / "paused"
        deadline = time.monotonic() + 100
        while not paused.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        seen.update(text=paused.read_text(), steps=len(lines(folder / "metrics.jsonl")), saved=checkpoints(folder))
        paused.unlink()

    thread = threading.Thread(target=person)
    thread.start()
    assert toy(folder, fails_at_5 + "pause", "checkpoint.every=100") == 0
    thread.join()
    assert seen["text"] == "entropy_collapse: Too fast.\nRemove this file to go on.\n"
    assert (seen["steps"], seen["saved"]) == (5, [5])  # saved, and nothing trained meanwhile
    assert len(lines(folder / "metrics.jsonl")) == STEPS and not (folder / "paused").exists()


def test_a_signal_ends_a_pause_and_the_same_command_goes_on(tmp_path, fails_at_5, monkeypatch, capsys):
    monkeypatch.setattr("dapo_cli.health.pause.POLL_S", 0.01)
    folder, overrides = tmp_path / "run", [fails_at_5 + "pause", "checkpoint.every=100"]

    def signal_when_paused() -> None:
        while not (folder / "paused").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=signal_when_paused, daemon=True).start()
    assert toy(folder, *overrides) == STOPPED
    assert "SIGTERM: stopped after step 5 of 8; the same command goes on." in capsys.readouterr().err
    assert checkpoints(folder) == [5] and not (folder / "paused").exists()
    (folder / "paused").write_text("left by a kill")
    assert toy(folder, *overrides) == 0
    assert len(lines(folder / "metrics.jsonl")) == STEPS


@pytest.mark.slow
def test_paused_ranks_stop_at_a_signal_and_go_on_at_the_same_command(tmp_path):
    folder = tmp_path / "run"
    always = [f"health.resampling_spiral.{each}" for each in ("informative_rate=0.99", "steps=1", "action=pause")]
    command = [sys.executable, "-m", "dapo_cli", "train", "quickstart", f"run.dir={folder}", *SMALL, *TWO, *always]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while not (folder / "paused").exists():
            assert process.poll() is None
            time.sleep(0.1)
        paused_after = len(lines(folder / "metrics.jsonl"))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == STOPPED and f"SIGTERM: stopped after step {paused_after} of 5" in said, said
    assert not (folder / "paused").exists() and checkpoints(folder)[-1] == paused_after
    done = subprocess.run(command, timeout=300)  # the alarm, still on, does not pause again
    assert done.returncode == 0 and len(lines(folder / "metrics.jsonl")) == 5


@pytest.mark.slow
def test_ranks_roll_back_together(tmp_path):
    """Two processes come to the alarms of one, go back together, and stop after the last rollback."""
    small = [*SMALL, "health.grad_norm_spike.factor=1.01", "health.grad_norm_spike.action=rollback"]
    for name, ranks in (("one", []), ("two", TWO)):
        command = [
            sys.executable,
            "-m",
            "dapo_cli",
            "train",
            "quickstart",
            f"run.dir={tmp_path / name}",
            *small,
            *ranks,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == STOPPED, done.stderr
        assert "has been rolled back 2 times" in done.stderr
    one, two = (lines(tmp_path / name / "health.jsonl") for name in ("one", "two"))
    assert [event["event"] for event in one] == ["rolled_back", "rolled_back", "began"]
    for event, other in zip(one, two, strict=True):
        assert {**event, "message": "", "figures": {}} == {**other, "message": "", "figures": {}}
        assert event["figures"] == pytest.approx(other["figures"], rel=1e-3)
