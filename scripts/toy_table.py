"""The published toy table beside ours: `python scripts/toy_table.py`.

Runs `dapo ablate ablations/toy_table`, which goes on where it was and skips what is done, and prints the comparison.
Accuracies are expected ones, in percent; all figures are means over seeds with the standard deviation over seeds.
Accuracy at 76,800 rollouts is that of `dapo report`: read straight between the steps around (`curves.at_rollouts`), of
the same runs, since a run that ends there does nothing else before.
"""

import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

from dapo_cli.report.curves import at_rollouts
from dapo_cli.report.runs import ACCURACY, ROLLOUTS, Run
from dapo_cli.report.study import read_study

PLAN = "ablations/toy_table"
HARDEST = "eval/hardest"
EQUAL_ROLLOUTS = 76_800  # 150 steps of 32 groups of 16

# (figure, published value)
PUBLISHED = [
    ("accuracy, clip 0.2/0.2", 48.9),
    ("accuracy, clip 0.2/0.28", 51.3),
    ("clip-higher's gain", 2.4),
    ("clip-higher's gain, hardest prompts", 2.2),
    ("samples of A > 0 at the clip, 0.2/0.2", 32.0),
    ("samples of A > 0 at the clip, 0.2/0.28", 25.0),
    ("accuracy, dynamic sampling, same steps", 70.3),
    (f"accuracy, dynamic sampling, {EQUAL_ROLLOUTS:,} rollouts", 50.8),
    ("rollouts of dynamic sampling, times the others'", 1.8),
]


def final(run: Run, key: str) -> float:
    found = run.final(key)
    assert found is not None, f"{run.path}: no {key} at its end"
    return found.value


def clipped_of_positive(run: Run) -> float:
    """Of the samples with positive advantage in all passes of all steps, in percent."""
    return 100 * _tokens(run, "policy/clip_high") / _tokens(run, "policy/positive")


def _tokens(run: Run, share: str) -> float:
    return sum(step[share] * step["policy/loss_tokens"] for step in run.steps if step[share] is not None)


def read_runs(folder: Path) -> dict[str, dict[int, Run]]:
    """Point -> seed -> run, of every finished run of an ablation."""
    return {point.name: {run.seed: run for run in point.finished} for point in read_study([str(folder)]).points}


def figures(runs: dict[str, dict[int, Run]]) -> list[list[float]]:
    """For each row of PUBLISHED its value for each seed; gains are of the same seed's two runs."""
    grpo, high, dynamic = (runs[name] for name in ("grpo", "clip_higher", "dynamic_sampling"))
    both = sorted(set(grpo) & set(high))
    at_equal = [at_rollouts(run, ACCURACY, EQUAL_ROLLOUTS) for run in dynamic.values()]
    return [
        [100 * final(run, ACCURACY) for run in grpo.values()],
        [100 * final(run, ACCURACY) for run in high.values()],
        *([100 * (final(high[seed], key) - final(grpo[seed], key)) for seed in both] for key in (ACCURACY, HARDEST)),
        [clipped_of_positive(run) for run in grpo.values()],
        [clipped_of_positive(run) for run in high.values()],
        [100 * final(run, ACCURACY) for run in dynamic.values()],
        [100 * value for value in at_equal if value is not None],
        [final(run, ROLLOUTS) / EQUAL_ROLLOUTS for run in dynamic.values()],
    ]


def table(found: list[list[float]]) -> str:
    """As Markdown; a dash where there is no run."""
    lines = ["| figure | published | here | seeds |", "|---|---|---|---|"]
    for (name, published), values in zip(PUBLISHED, found, strict=True):
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        here = f"{mean(values):.1f}{spread}" if values else "-"
        lines.append(f"| {name} | {published:.1f} | {here} | {len(values)} |")
    return "\n".join(lines)


def main() -> None:
    from dapo_cli.ablation.plan import read_plan

    subprocess.run([sys.executable, "-m", "dapo_cli", "ablate", PLAN], check=True)
    print(table(figures(read_runs(read_plan(PLAN).dir))))


if __name__ == "__main__":
    main()
