"""The toy recipe as a user runs it: a short run, gone on with after its last checkpoint is lost."""

import filecmp
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dapo_cli.cli.export import export
from dapo_cli.tabular.table import Table
from tests.e2e.test_train import train

STEPS = 20


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_toy_run_climbs_and_resumes_exactly(tmp_path: Path) -> None:
    folder, first = tmp_path / "run", tmp_path / "first"
    command = [f"run.dir={folder}", f"run.steps={STEPS}", "checkpoint.every=8", "checkpoint.keep=3", "eval.every=1"]
    done = train(folder, *command, recipe="toy")
    assert done.returncode == 0, done.stderr
    assert "expected accuracy" in done.stdout
    steps, evals = lines(folder / "metrics.jsonl"), lines(folder / "evals.jsonl")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert evals[0]["eval/accuracy"] == pytest.approx(manifest["model"]["pass_rate"], abs=1e-12)
    assert [record["step"] for record in evals] == list(range(STEPS + 1))
    assert evals[-1]["eval/accuracy"] > evals[0]["eval/accuracy"] + 0.03
    for record in steps:
        assert (record["sampler/kept"], record["policy/updates"], record["policy/loss_tokens"]) == (32, 4, 4 * 512)
        assert record["length/mean"] == 1 and record["mismatch/max_abs"] < 1e-5
        share = record["policy/clip_high"] / record["policy/positive"]
        assert record["policy/clip_high_of_positive"] == pytest.approx(share)
    assert (folder / "export" / "table.safetensors").exists()

    shutil.copytree(folder, first)
    shutil.rmtree(folder / "checkpoints" / f"step_{STEPS:06d}")
    again = train(folder, *command, recipe="toy")
    assert "going on after step 16" in again.stderr, again.stderr
    for name in ("metrics.jsonl", "evals.jsonl", "export/table.safetensors"):
        assert filecmp.cmp(first / name, folder / name, shallow=False), name

    export(str(folder), 8, tmp_path / "table")
    table = load_file(tmp_path / "table" / "table.safetensors")
    after_8 = Table(table["logits"], table["right"]).pass_rates_P.mean()
    assert after_8 == pytest.approx(evals[8]["eval/accuracy"], abs=1e-12)
    assert np.array_equal(table["right"], np.arange(512) % 20)
