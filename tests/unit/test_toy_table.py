"""scripts/toy_table.py on run folders made by hand."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "toy_table.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy_table", SCRIPT)
    assert spec and spec.loader
    module = sys.modules["toy_table"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(folder: Path, seed: int, clip_high: float, dynamic: bool, accuracies: list[float], rollouts: int) -> None:
    """A run of one step fewer than there are accuracies; hardest prompts have half the accuracy."""
    folder.mkdir(parents=True)
    recipe = {
        "run": {"seed": seed, "steps": 2},
        "algorithm": {"clip_low": 0.2, "clip_high": clip_high},
        "sampler": {"dynamic": dynamic},
    }
    (folder / "manifest.json").write_text(json.dumps({"recipe": recipe}))
    evals = [{"eval/accuracy": value, "eval/hardest": value / 2} for value in accuracies]
    shares = [(0.1, 0.2), (0.1, 0.6)]  # clipped, positive: of both steps' tokens together 0.2 of 0.8
    metrics = [
        {
            "policy/clip_high": clipped,
            "policy/positive": positive,
            "policy/loss_tokens": 100,
            "verifier/right": rollouts - 5,
            "verifier/wrong": 4,
            "verifier/failed": 1,
        }
        for clipped, positive in shares[: len(accuracies) - 1]
    ]
    for name, records in (("evals", evals), ("metrics", metrics)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def test_figures_are_those_of_the_runs(script: ModuleType, tmp_path: Path) -> None:
    for seed, better in ((0, 0.0), (1, 0.1)):
        write_run(tmp_path / f"a{seed}", seed, 0.2, False, [0.1, 0.2, 0.4], 38_400)
        write_run(tmp_path / f"b{seed}", seed, 0.28, False, [0.1, 0.2, 0.5 + better], 38_400)
        write_run(tmp_path / f"deep/c{seed}", seed, 0.28, True, [0.1, 0.3, 0.7], 70_000)
    write_run(tmp_path / "unfinished", 2, 0.28, True, [0.1, 0.9], 5)
    found = script.figures(script.read_runs(tmp_path))
    expected = [[40, 40], [50, 60], [10, 20], [5, 10], [25, 25], [25, 25], [70, 70], [30, 30], [140 / 76.8] * 2]
    assert [list(map(pytest.approx, values)) for values in expected] == found
    text = script.table(script.read_runs(tmp_path))
    assert "| clip-higher's gain | 2.4 | 15.0 ± 7.1 | 2 |" in text
    assert "| - | 0 |" in script.table(script.read_runs(tmp_path / "deep"))
