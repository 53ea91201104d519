"""`dapo selftest`, as a user runs it."""

import json
import subprocess

import numpy as np

from tests.e2e.test_ranks import FSDP, train
from tests.e2e.test_train import SMALL, dapo


def test_selftest_shows_equal_updates_and_the_manifest_keeps_them(tmp_path):
    arguments = ["quickstart", f"run.dir={tmp_path / 'run'}", *SMALL, *FSDP]
    done = subprocess.run(dapo("selftest", *arguments), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "run" / "selftest.json").read_text())["rows"]
    assert [row["ranks"] for row in rows] == [1] * 4 + [2] * 4
    assert done.stdout.count("  equal\n") == 8
    assert all(row["equal"] and max(row["loss"], row["grad_norm"], row["weights"]) < 1e-5 for row in rows)
    assert np.unique([row["sequences"] for row in rows]).tolist() == [1, 20]
    assert train(tmp_path / "run", *SMALL, "run.steps=1").returncode == 0
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["selftest"]["rows"] == rows
