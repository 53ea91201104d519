"""The published toy table beside the runs found under a folder: `python scripts/toy_table.py FOLDER`.

The runs are those of `dapo ablate toy_table`, or of the toy recipe by hand: their manifests say which. Accuracies are
expected ones, in percent; all figures are means over seeds with the standard deviation over seeds.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROLLOUTS = 76_800  # 150 steps of 32 groups of 16

# (figure, published value)
PUBLISHED = [
    ("accuracy, clip 0.2/0.2", 48.9),
    ("accuracy, clip 0.2/0.28", 51.3),
    ("clip-higher's gain", 2.4),
    ("clip-higher's gain, hardest prompts", 2.2),
    ("samples of A > 0 at the clip, 0.2/0.2", 32.0),
    ("samples of A > 0 at the clip, 0.2/0.28", 25.0),
    ("accuracy, dynamic sampling, same steps", 70.3),
    (f"accuracy, dynamic sampling, {ROLLOUTS:,} rollouts", 50.8),
    ("rollouts a step of dynamic sampling, times the others'", 1.8),
]


@dataclass(frozen=True)
class Run:
    """A run's figures: `evals` by step, from 0 on, and `metrics` by step, from 1 on."""

    evals: list[dict[str, Any]]
    metrics: list[dict[str, Any]]

    @property
    def accuracy(self) -> float:
        return 100 * self.evals[-1]["eval/accuracy"]

    @property
    def hardest(self) -> float:
        return 100 * self.evals[-1]["eval/hardest"]

    @property
    def clipped_of_positive(self) -> float:
        """Of the samples with positive advantage in all passes of all steps, in percent."""
        return 100 * _tokens(self.metrics, "policy/clip_high") / _tokens(self.metrics, "policy/positive")

    @property
    def rollouts(self) -> int:
        return sum(_rollouts(step) for step in self.metrics)

    def accuracy_within(self, rollouts: int) -> float:
        """After the last step by whose end no more have been judged."""
        spent, last = 0, 0
        for step in self.metrics:
            spent += _rollouts(step)
            last += spent <= rollouts
        return 100 * self.evals[last]["eval/accuracy"]


def _tokens(metrics: list[dict[str, Any]], share: str) -> float:
    return sum(step[share] * step["policy/loss_tokens"] for step in metrics if step[share] is not None)


def _rollouts(step: dict[str, Any]) -> int:
    return step["verifier/right"] + step["verifier/wrong"] + step["verifier/failed"]


def read_runs(folder: Path) -> dict[str, dict[int, Run]]:
    """Point -> seed -> run, of every finished toy run below `folder`."""
    found: dict[str, dict[int, Run]] = {"grpo": {}, "clip_higher": {}, "dynamic_sampling": {}}
    for file in sorted(folder.rglob("manifest.json")):
        recipe = json.loads(file.read_text())["recipe"]
        run = Run(_lines(file.parent / "evals.jsonl"), _lines(file.parent / "metrics.jsonl"))
        if len(run.metrics) < recipe["run"]["steps"]:
            continue
        raised = recipe["algorithm"]["clip_high"] > recipe["algorithm"]["clip_low"]
        point = "dynamic_sampling" if recipe["sampler"]["dynamic"] else "clip_higher" if raised else "grpo"
        found[point][recipe["run"]["seed"]] = run
    return found


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def figures(runs: dict[str, dict[int, Run]]) -> list[list[float]]:
    """For each row of PUBLISHED its value for each seed; gains are of the same seed's two runs."""
    grpo, high, dynamic = runs["grpo"], runs["clip_higher"], runs["dynamic_sampling"]
    both = sorted(set(grpo) & set(high))
    return [
        [run.accuracy for run in grpo.values()],
        [run.accuracy for run in high.values()],
        [high[seed].accuracy - grpo[seed].accuracy for seed in both],
        [high[seed].hardest - grpo[seed].hardest for seed in both],
        [run.clipped_of_positive for run in grpo.values()],
        [run.clipped_of_positive for run in high.values()],
        [run.accuracy for run in dynamic.values()],
        [run.accuracy_within(ROLLOUTS) for run in dynamic.values()],
        [run.rollouts / ROLLOUTS for run in dynamic.values()],
    ]


def table(runs: dict[str, dict[int, Run]]) -> str:
    """As Markdown; a dash where there is no run."""
    lines = ["| figure | published | here | seeds |", "|---|---|---|---|"]
    for (name, published), values in zip(PUBLISHED, figures(runs), strict=True):
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        here = f"{mean(values):.1f}{spread}" if values else "-"
        lines.append(f"| {name} | {published:.1f} | {here} | {len(values)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(table(read_runs(Path(sys.argv[1]))))
