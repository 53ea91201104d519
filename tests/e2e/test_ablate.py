"""`dapo ablate` as a user runs it: real runs of the quickstart made small, a failing point, signals, and budgets."""

import filecmp
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "algorithm.groups_per_step=4",
    "algorithm.groups_per_update=2",
    "algorithm.samples_per_prompt=4",
    "sampler.max_prompts_per_round=12",
    "sampler.max_rounds=2",
    "optimizer.warmup_steps=1",
    "data.prompts=64",
    "eval.data.prompts=16",
]
# Four prompts a step are not four informative groups: the sampler stops the run, as its recipe asks it to.
STARVED = "[sampler.max_prompts_per_round=4, sampler.max_rounds=1, sampler.on_cap=stop]"


def plan_of(folder: Path, points: str, more: str, name: str = "plan") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    base = ", ".join(SMALL)
    path.write_text(f"recipe: quickstart\ndir: {folder / name}\nkind: list\nbase: [{base}]\npoints: {points}\n{more}\n")
    return path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **more}


def ablate(plan: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dapo_cli", "ablate", str(plan), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=900)


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def judged(step: dict[str, Any]) -> int:
    return step["verifier/right"] + step["verifier/wrong"] + step["verifier/failed"]


def test_points_by_rollouts_one_of_which_fails(tmp_path: Path) -> None:
    points = f"[{{name: starved, set: {STARVED}}}, {{name: fed}}]"
    plan = plan_of(tmp_path, points, "match: {by: rollouts, amount: 60}")
    done = ablate(plan, "-j", "2")
    assert done.returncode == 1, done.stderr
    assert "failed: starved/seed_0: step 1: " in done.stdout and "4 groups are missing" in done.stdout
    folder = tmp_path / "plan/points/fed/seed_0"
    steps = records(folder / "metrics.jsonl")
    totals = [sum(map(judged, steps[: place + 1])) for place in range(len(steps))]
    assert [step["sampler/rollouts_total"] for step in steps] == totals
    assert all(total < 60 for total in totals[:-1]) and totals[-1] >= 60 and len(steps) < 40
    assert [record["step"] for record in records(folder / "evals.jsonl")][-1] == len(steps)
    assert (folder / "checkpoints" / f"step_{len(steps):06d}").exists() and (folder / "export").exists()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["hardware"]["threads"] == 1

    command = [sys.executable, "-m", "dapo_cli", "train", str(folder)]
    again = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
    assert again.returncode == 0, again.stderr
    assert f"run.budget_rollouts is spent: the run ends with step {len(steps)} of 40" in again.stderr
    assert records(folder / "metrics.jsonl") == steps


PAIR = "[{name: plain, set: [sampler.dynamic=false]}, {name: dynamic}]"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 points x 2 seeds, one run at a time."""
    folder = tmp_path_factory.mktemp("ablations") / "reference"
    done = ablate(plan_of(folder, PAIR, "seeds: 2\nmatch: {by: rollouts, amount: 60}"), "-j", "1")
    assert done.returncode == 0, done.stderr
    return folder / "plan"


def assert_same_runs(one: Path, other: Path) -> None:
    for run in ("plain/seed_0", "plain/seed_1", "dynamic/seed_0", "dynamic/seed_1"):
        for name in ("metrics.jsonl", "evals.jsonl", "export/model.safetensors"):
            files = [folder / "points" / run / name for folder in (one, other)]
            assert filecmp.cmp(*files, shallow=False), f"{run}/{name}"


@pytest.mark.slow
def test_results_do_not_depend_on_jobs(reference: Path, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PAIR, "seeds: 2\nmatch: {by: rollouts, amount: 60}")
    assert ablate(plan, "--jobs", "2").returncode == 0
    assert_same_runs(reference, tmp_path / "plan")


@pytest.mark.slow
def test_killed_and_continued_equals_uninterrupted(reference: Path, tmp_path: Path) -> None:
    """The runs save and stop by themselves, since their parent is gone."""
    plan = plan_of(tmp_path, PAIR, "seeds: 2\nmatch: {by: rollouts, amount: 60}")
    command = [sys.executable, "-m", "dapo_cli", "ablate", str(plan), "-j", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    runs = [tmp_path / "plan/points" / name / "seed_0" for name in ("plain", "dynamic")]
    deadline = time.monotonic() + 300
    while not all((run / "metrics.jsonl").exists() for run in runs):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=300)
    pids = [records(run.with_suffix(".status.jsonl"))[0]["pid"] for run in runs]
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    done = ablate(plan)
    assert done.returncode == 0, done.stderr
    assert_same_runs(reference, tmp_path / "plan")


@pytest.mark.slow
def test_a_task_of_the_slurm_array_is_the_same_run(reference: Path, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PAIR, "seeds: 2\nmatch: {by: rollouts, amount: 60}")
    dapo, script = tmp_path / "dapo", tmp_path / "array.sbatch"
    dapo.write_text(f'#!/bin/bash\nexec "{sys.executable}" -m dapo_cli "$@"\n')
    dapo.chmod(0o755)
    written = ablate(plan, "--slurm", str(script))
    assert written.returncode == 0, written.stderr
    task = environment(DAPO=str(dapo), SLURM_ARRAY_TASK_ID="1", SLURM_JOB_ID="5")
    done = subprocess.run(["bash", str(script)], env=task, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "done         dynamic/seed_0" in done.stdout
    for name in ("metrics.jsonl", "evals.jsonl"):
        files = [folder / "points/dynamic/seed_0" / name for folder in (reference, tmp_path / "plan")]
        assert filecmp.cmp(*files, shallow=False)
