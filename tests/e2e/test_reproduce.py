"""`dapo reproduce` as a user runs it, on the quickstart's model and an own file; and a checkout that is not clean."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dapo_cli.reproduce.compare import compare_runs
from dapo_cli.tracking.run_folder import RunFolder
from tests.e2e.test_train import dapo
from tests.unit.test_manifest import git

ROOT = Path(__file__).resolve().parents[2]
STEPS = 2
SMALL = [
    "data=files",
    f"run.steps={STEPS}",
    "run.threads=1",
    "reward.workers=1",
    "algorithm.groups_per_step=4",
    "algorithm.groups_per_update=2",
    "algorithm.samples_per_prompt=4",
    "sampler.max_prompts_per_round=8",
    "sampler.max_rounds=2",
    "optimizer.warmup_steps=0",
    "sampling.max_tokens=48",
    "eval.data.prompts=8",
    "tracking.rollouts_per_step=0",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on a JSONL file."""
    folder = tmp_path_factory.mktemp("reproduce")
    rows = [
        {"prompt": f"{one}+{other}=?\n", "answer": str(one + other)} for one in range(2, 9) for other in range(11, 19)
    ]
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        dapo("train", "quickstart", f"run.dir={folder / 'run'}", f"data.paths=[{file}]", *SMALL),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_a_rerun_has_the_same_figures_and_an_edited_one_is_found(recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "again"
    done = subprocess.run(dapo("reproduce", recorded, "-o", target), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"identical: all figures of {STEPS} steps and 2 evaluations" in done.stdout
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert (target / name).read_bytes() == (recorded / name).read_bytes()

    edited = tmp_path / "edited"
    shutil.copytree(recorded, edited)
    metrics = edited / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    record = json.loads(lines[1])
    record["policy/loss_tokens"] += 1
    metrics.write_text(f"{lines[0]}\n{json.dumps(record)}\n")
    found = compare_runs(RunFolder(edited), RunFolder(target), STEPS, 0).differences
    assert [(each.step, each.key, each.before - each.now) for each in found] == [(2, "policy/loss_tokens", 1)]


@pytest.mark.slow
def test_a_run_leaves_the_environment_that_it_had(recorded: Path) -> None:
    manifest = json.loads((recorded / "manifest.json").read_text())
    lock = (recorded / "requirements.lock").read_text().splitlines()
    assert f"torch=={manifest['packages']['torch']}" in lock
    before = (recorded / "requirements.lock").stat().st_mtime_ns
    again = subprocess.run(dapo("train", recorded), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert (recorded / "requirements.lock").stat().st_mtime_ns == before
    assert not list(recorded.glob("until_step_*"))


def test_require_clean_refuses_changes_that_no_commit_holds(tmp_path: Path) -> None:
    top = tmp_path / "checkout"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("dapo_cli", "recipes"):
        shutil.copytree(ROOT / name, top / name, ignore=ignore)
    (top / ".gitignore").write_text("__pycache__/\n")
    git(top, "init", "--quiet")
    git(top, "add", ".")
    git(top, "commit", "--quiet", "-m", "all")

    def start() -> str:
        """Comes as far as the model, which is not there."""
        arguments = [
            "train",
            "quickstart",
            "run.require_clean=true",
            "model.path=./none",
            f"run.dir={tmp_path / 'run'}",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "dapo_cli", *arguments],
            cwd=top,
            env={**os.environ, "PYTHONPATH": str(top)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2
        return done.stderr

    assert "model.path=./none: no such folder" in start()
    (top / "dapo_cli" / "errors.py").open("a").write("# changed\n")
    (top / "dapo_cli" / "new.py").write_text("new = 1\n")
    told = start()
    assert "run.require_clean=true" in told and "\n  dapo_cli/errors.py\n  dapo_cli/new.py\n" in told
    assert not (tmp_path / "run").exists()
