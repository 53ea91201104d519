"""Run folders and ablations written by hand, as `dapo train` and `dapo ablate` leave them, for tests of the report."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dapo_cli.config.schema import HealthConfig
from dapo_cli.health.event import Signs
from dapo_cli.health.rules import RULES

RECIPE: dict[str, Any] = {
    "run": {"dir": "runs/a", "seed": 0, "steps": 4, "threads": 1},
    "algorithm": {"clip_high": 0.2, "samples_per_prompt": 4},
    "sampler": {"dynamic": False},
    "eval": {"data": {"prompts": 100}, "every": 2},
    "checkpoint": {"every": 1},
}


def recipe_with(seed: int, steps: int, **changed: Any) -> dict[str, Any]:
    """RECIPE with keys changed, spelled `algorithm__clip_high=0.28`."""
    recipe = copy.deepcopy(RECIPE)
    recipe["run"] |= {"seed": seed, "steps": steps}
    for name, value in changed.items():
        section, key = name.split("__")
        recipe[section][key] = value
    return recipe


def manifest_of(recipe: dict[str, Any]) -> dict[str, Any]:
    code = {"version": "0.1.0", "package_sha256": "a" * 64, "commit": "b" * 40, "dirty": False}
    return {
        "started": "2025-01-01T00:00:00+00:00",
        "code": code,
        "recipe": recipe,
        "data": [{"path": "train.jsonl", "sha256": "c" * 64}],
        "model": {"path": "tiny", "files": {"model.safetensors": "d" * 64}},
        "packages": {"torch": "2.13.0", "vllm": None},
        "python": "3.12.0",
        "hardware": {"cpu": "a processor", "threads": 1, "gpus": []},
        "processes": 1,
        "resumes": [],
    }


def step_line(
    step: int, *, prompts: int = 5, right: int = 8, reward: float = -0.2, entropy: float = 0.5
) -> dict[str, Any]:
    """A line of metrics.jsonl with what a report reads; 4 completions a prompt, and as many prompts in each step."""
    return {
        "step": step,
        "judged/accuracy": right / (4 * prompts),
        "judged/reward": reward,
        "sampler/informative_rate": 0.5,
        "sampler/rollouts_total": 4 * prompts * step,
        "length/mean": 30.0 + step,
        "policy/entropy": entropy,
        "verifier/right": right,
        "verifier/wrong": 4 * prompts - right,
        "verifier/failed": 0,
    }


def eval_line(step: int, accuracy: float, prompts: int = 100) -> dict[str, Any]:
    error = (accuracy * (1 - accuracy) / (prompts - 1)) ** 0.5
    counts = {"eval/prompts": prompts, "eval/samples_per_prompt": 1}
    return {"step": step, "eval/accuracy": accuracy, "eval/standard_error": error, **counts}


WINDOWS: dict[str, dict[str, Any]] = {
    "entropy_collapse": {"policy/entropy": (0.5, 0.1), "sampler/informative_rate": (0.5, 0.25), "judged/accuracy": 0.3},
    "entropy_explosion": {"policy/entropy": (0.5, 0.8), "repetition/ngram_share": (0.25, 0.3)},
    "resampling_spiral": {"sampler/informative_rate": 0.1, "judged/accuracy": 0.3},
    "length_runaway": {"length/in_buffer": (0.0, 0.2), "length/mean": 30.0},
    "mismatch_drift": {"mismatch/mean_abs": 0.1, "mismatch/kl": 0.03},
    "grad_norm_spike": {"policy/grad_norm": (0.1, 9.0)},
}
"""Figures that raise each rule's alarm, before and in the last two steps of five where they change."""


def signs_of(rule: str) -> Signs:
    """What the rule itself says of WINDOWS."""
    window: list[dict[str, Any]] = [{"step": step} for step in range(1, 6)]
    for record in window:
        for key, values in WINDOWS[rule].items():
            record[key] = values[record["step"] > 3] if isinstance(values, tuple) else values
    found = RULES[rule](window, HealthConfig().rules()[rule])
    assert found is not None
    return found


def health_event(step: int, rule: str, event: str, since: int) -> dict[str, Any]:
    """A line of health.jsonl."""
    signs = signs_of(rule)
    told = {"action": "note", "message": signs.message, "figures": signs.figures}
    return {"step": step, "rule": rule, "event": event, "since": since, **told}


def write_run(
    folder: Path,
    recipe: dict[str, Any],
    evals: Sequence[tuple[int, float]],
    steps: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """A run that ended with `steps`, by default all of its recipe; a step takes 2 s, 0.5 s of them evaluating."""
    if steps is None:
        steps = [step_line(step) for step in range(1, recipe["run"]["steps"] + 1)]
    folder.mkdir(parents=True)
    write_lines(folder / "metrics.jsonl", steps)
    timings = [{"step": line["step"], "seconds/step": 2.0, "seconds/evaluate": 0.5} for line in steps]
    write_lines(folder / "timings.jsonl", timings)
    write_lines(folder / "evals.jsonl", [eval_line(step, accuracy) for step, accuracy in evals])
    (folder / "manifest.json").write_text(json.dumps(manifest_of(recipe)))
    (folder / "export").mkdir()
    return folder


def write_lines(file: Path, records: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_plan(
    folder: Path, points: Sequence[dict[str, Any]], *, kind: str = "list", seeds: Sequence[int] = (0, 1)
) -> Path:
    """ablation.json over `points` (name, and what else is to be set); the first is the baseline."""
    folder.mkdir(parents=True, exist_ok=True)
    full = []
    for point in points:
        runs = [{"seed": seed, "dir": f"points/{point['name']}/seed_{seed}"} for seed in seeds]
        full.append({"label": point["name"], "overrides": [], "changed": {}, "runs": runs} | dict(point))
    plan = {
        "name": "a study",
        "kind": kind,
        "recipe": "quickstart",
        "match": {"by": "steps", "amount": 4},
        "baseline": points[0]["name"],
        "points": full,
        "seeds": list(seeds),
    }
    (folder / "ablation.json").write_text(json.dumps(plan))
    return folder
