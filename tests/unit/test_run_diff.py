"""`dapo diff`: what two runs were made of, and what came out."""

import json
from pathlib import Path

import pytest

from dapo_cli.cli.app import run
from dapo_cli.report.diff import diff_lines, diff_runs
from tests.unit.report_folders import recipe_with, write_run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs that differ in one key, and in how far they came."""
    one = write_run(tmp_path / "a", recipe_with(0, 4), [(0, 0.25), (4, 0.5)])
    other = write_run(tmp_path / "b", recipe_with(0, 4, algorithm__clip_high=0.28), [(0, 0.25), (2, 0.75)])
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(lines[:2]))
    return one, other


def test_one_changed_key_is_the_only_difference(runs):
    found = diff_runs(*runs)
    assert {part: changed for part, changed in found.parts.items() if changed} == {
        "recipe": {"algorithm.clip_high": (0.2, 0.28)}
    }
    assert {key: found.results[key] for key in ("steps", "rollouts", "eval/accuracy", "last evaluation, step")} == {
        "steps": (4, 2),
        "rollouts": (80, 40),  # 20 a step
        "eval/accuracy": (0.5, 0.75),
        "last evaluation, step": (4, 2),
    }
    assert found.results["seconds of training"] == (6.0, 3.0)  # 1.5 a step


def test_a_run_beside_itself_differs_in_nothing(runs):
    found = diff_runs(runs[0], runs[0])
    assert not any(found.parts.values()) and all(one == other for one, other in found.results.values())


def test_each_part_of_the_manifest_is_compared(runs):
    one, other = runs
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["code"] |= {"commit": "0" * 40, "dirty": True}
    manifest["data"][0] |= {"path": "elsewhere", "sha256": "1" * 64}
    manifest["model"]["files"] |= {"model.safetensors": "2" * 64}
    manifest["hardware"] |= {"gpus": ["H200"]}
    (other / "manifest.json").write_text(json.dumps(manifest))
    (one / "requirements.lock").write_text("numpy==2.0\ntorch==2.13.0\n")
    (other / "requirements.lock").write_text("numpy==2.1\ntorch==2.13.0\n")
    found = diff_runs(one, other)
    assert found.parts["code"] == {"commit": ("b" * 40, "0" * 40), "dirty": (False, True)}
    assert found.parts["data"] == {"data.sha256": ("c" * 64, "1" * 64)}  # wherever the file lies
    assert found.parts["model"] == {"files.model.safetensors": ("d" * 64, "2" * 64)}
    assert found.parts["versions"] == {"numpy": ("2.0", "2.1")}
    assert found.parts["hardware"] == {"gpus": ([], ["H200"])}


def test_the_terminal_shows_short_hashes_and_json_all_of_them(runs, capsys):
    one, other = runs
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["code"]["commit"] = "0" * 40
    (other / "manifest.json").write_text(json.dumps(manifest))
    lines = [" ".join(line.split()) for line in diff_lines(diff_runs(one, other))]
    assert "commit bbbbbbbbbbbb… 000000000000…" in lines and "algorithm.clip_high 0.2 0.28" in lines
    assert "data: the same" in lines and "recipe:" in lines
    assert run(["diff", str(one), str(other), "--json"], debug=False) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["differences"]["code"] == {"commit": ["b" * 40, "0" * 40]}
    assert tree["results"]["steps"] == [4, 2] and tree["runs"] == [str(one), str(other)]


def test_what_is_no_run_is_refused(runs, tmp_path, capsys):
    assert run(["diff", str(runs[0]), str(tmp_path)], debug=False) == 2
    assert "no run folder" in capsys.readouterr().err
