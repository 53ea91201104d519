"""What an ablation has found so far, in a few lines; `dapo report` says it in full."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from dapo_cli.ablation.folder import AblationFolder
from dapo_cli.ablation.plan import MatchBy
from dapo_cli.ablation.points import Ablation, Point, Run
from dapo_cli.ablation.progress import last_record, spent


@dataclass(frozen=True)
class Result:
    """Of one point: its runs, the last held-out accuracies of those that are done, and what these judged, mean."""

    point: Point
    runs: int
    accuracies: tuple[float, ...]
    done: int
    rollouts: float | None


def results(ablation: Ablation, folder: AblationFolder) -> list[Result]:
    return [_result(point, [Run(point, seed) for seed in ablation.plan.seeds], folder) for point in ablation.points]


def _result(point: Point, runs: Sequence[Run], folder: AblationFolder) -> Result:
    done = [folder.run_folder(run) for run in runs if folder.is_done(run)]
    accuracies = [last_record(each.evals_file).get("eval/accuracy") for each in done]
    rollouts = [last_record(each.metrics_file).get("sampler/rollouts_total", 0) for each in done]
    return Result(
        point,
        len(runs),
        tuple(accuracy for accuracy in accuracies if accuracy is not None),
        len(done),
        fsum(rollouts) / len(done) if done else None,
    )


def table_lines(found: Sequence[Result]) -> list[str]:
    """Per point: the mean over its seeds, lowest and highest, rollouts spent, and where the plan has any, references;
    aligned for a terminal."""
    rows: list[tuple[str, ...]] = [
        ("point", "seeds", "held-out accuracy", "lowest to highest", "rollouts", "reference")
    ]
    for each in found:
        values = each.accuracies
        mean = f"{fsum(values) / len(values):.1%}" if values else "-"
        spread = f"{min(values):.1%} to {max(values):.1%}" if values else "-"
        rollouts = "-" if each.rollouts is None else f"{each.rollouts:,.0f}"
        reference = "-" if each.point.reference is None else f"{each.point.reference:g}"
        rows.append((each.point.label, f"{each.done} of {each.runs}", mean, spread, rollouts, reference))
    if all(each.point.reference is None for each in found):
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}" for column, (cell, width) in enumerate(
            zip(row, widths, strict=True)
        ))
        for row in rows
    ]  # fmt: skip


def short_lines(ablation: Ablation, folder: AblationFolder) -> list[str]:
    """A line for each run that came to run.steps before it had spent what all are matched by."""
    match, lines = ablation.match, []
    if match.by is MatchBy.steps:
        return []
    for run in ablation.runs:
        if not folder.is_done(run):
            continue
        amount = spent(folder.run_folder(run), match)
        if amount < match.amount:
            steps = run.point.recipe.recipe.run.steps
            lines.append(
                f"{run.name}: ended by run.steps = {steps} with {amount:,.0f} of {match.amount:,} {match.by.name}: it "
                "is not matched; put a higher run.steps into `base`, and give another dir"
            )
    return lines
