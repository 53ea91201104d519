"""`dapo report` over what `dapo train` really leaves."""

import csv
import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_train import dapo, train

SHORT = ["run.steps=2", "algorithm.groups_per_step=2", "eval.every=1"]


def records(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two points, the first of two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for name, overrides in (
        ("a0", ["run.seed=0"]),
        ("a1", ["run.seed=1"]),
        ("b0", ["run.seed=0", "sampler.dynamic=false"]),
    ):
        done = train(folder / name, *SHORT, *overrides)
        assert done.returncode == 0, done.stderr
        found.append(folder / name)
    return found


@pytest.mark.slow
def test_a_report_of_real_runs(runs: list[Path], tmp_path: Path) -> None:
    command = dapo("report", *runs, "-o", tmp_path / "report.html")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "Runs differ" not in done.stdout
    first, second = csv.DictReader((tmp_path / "report_files" / "results.csv").read_text().splitlines())
    accuracy = [records(run / "evals.jsonl")[-1]["eval/accuracy"] for run in runs]
    assert [float(first["seed_0"]), float(first["seed_1"])] == accuracy[:2]
    assert float(first["mean"]) == pytest.approx((accuracy[0] + accuracy[1]) / 2)
    assert float(second["to_baseline"]) == pytest.approx(accuracy[2] - accuracy[0])
    assert (first["mean_over"], second["mean_over"], second["finished"]) == ("seeds", "prompts", "1")
    spent = [4 * sum(step["sampler/prompts"] for step in records(run / "metrics.jsonl")) for run in runs]
    assert float(first["rollouts"]) == (spent[0] + spent[1]) / 2 and float(second["rollouts"]) == spent[2]
    timings = records(runs[2] / "timings.jsonl")
    seconds = sum(each["seconds/step"] - each["seconds/evaluate"] - each["seconds/checkpoint"] for each in timings)
    assert float(second["seconds"]) == pytest.approx(seconds)
    for name in ("judged/reward", "policy/entropy", "length/mean", "sampler/informative_rate"):
        assert float(second[name]) == pytest.approx(records(runs[2] / "metrics.jsonl")[-1][name]), name
    html = (tmp_path / "report.html").read_text()
    assert "<code>sampler.dynamic</code></td><td><code>true</code></td><td><code>false</code>" in html
