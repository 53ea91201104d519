"""scripts/toy_table.py on run folders made by hand."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.report_folders import eval_line, recipe_with, step_line, write_lines, write_plan, write_run

SCRIPT = Path(__file__).parents[2] / "scripts" / "toy_table.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy_table", SCRIPT)
    assert spec and spec.loader
    module = sys.modules["toy_table"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_point(study: Path, point: str, seed: int, accuracies: list[float], prompts: int) -> Path:
    """A run with an evaluation a step; hardest prompts have half the accuracy. `prompts` of 4 completions a step."""
    shares = [(0.1, 0.2), (0.1, 0.6)]  # clipped, positive: of both steps' tokens together 0.2 of 0.8
    steps = [
        step_line(step, prompts=prompts)
        | {"policy/clip_high": clipped, "policy/positive": positive, "policy/loss_tokens": 100}
        for step, (clipped, positive) in enumerate(shares[: len(accuracies) - 1], start=1)
    ]
    folder = write_run(study / f"points/{point}/seed_{seed}", recipe_with(seed, 2), [(2, 0.1)], steps)
    evals = [eval_line(step, value) | {"eval/hardest": value / 2} for step, value in enumerate(accuracies)]
    write_lines(folder / "evals.jsonl", evals)
    return folder


def test_figures_are_those_of_the_runs(script: ModuleType, tmp_path: Path) -> None:
    """Dynamic sampling's runs have spent 76,800 rollouts after their first step."""
    steps = tmp_path / "steps"
    for seed, better in ((0, 0.0), (1, 0.1)):
        write_point(steps, "grpo", seed, [0.1, 0.2, 0.4], 9_600)
        write_point(steps, "clip_higher", seed, [0.1, 0.2, 0.5 + better], 9_600)
        write_point(steps, "dynamic_sampling", seed, [0.1, 0.3, 0.7], 19_200)
    (write_point(steps, "dynamic_sampling", 2, [0.1, 0.9], 5) / "export").rmdir()  # unfinished
    names = [{"name": name} for name in ("grpo", "clip_higher", "dynamic_sampling")]
    write_plan(steps, names, seeds=(0, 1, 2))
    found = script.figures(script.read_runs(steps))
    expected = [[40, 40], [50, 60], [10, 20], [5, 10], [25, 25], [25, 25], [70, 70], [30, 30], [2, 2]]
    assert [list(map(pytest.approx, values)) for values in expected] == found
    assert "| clip-higher's gain | 2.4 | 15.0 ± 7.1 | 2 |" in script.table(found)
    assert "| - | 0 |" in script.table([[], *found[1:]])
