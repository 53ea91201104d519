"""How far a run is, from the ends of its files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.ablation.plan import Match, MatchBy
from dapo_cli.ablation.points import Run
from dapo_cli.budget import ROLLOUTS_TOTAL
from dapo_cli.tracking.files import read_lines, whole_lines
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.training_time import training_seconds

TAIL_BYTES = 1 << 16  # a line of metrics has a few thousand


@dataclass(frozen=True)
class RunProgress:
    """`share` is what is done of the run, 0 to 1; accuracies are of the last step and the last evaluation."""

    step: int
    steps: int
    share: float
    accuracy: float | None
    held_out: float | None


def read_progress(folder: RunFolder, run: Run, match: Match) -> RunProgress:
    """Whatever state the folder is in; a run that has not begun has done nothing."""
    steps = run.point.recipe.recipe.run.steps
    metrics, evaluation = last_record(folder.metrics_file), last_record(folder.evals_file)
    step = metrics.get("step", 0)
    share = 1.0 if folder.finished else max(step / steps, spent(folder, match) / match.amount)
    return RunProgress(step, steps, min(share, 1.0), metrics.get("judged/accuracy"), evaluation.get("eval/accuracy"))


def spent(folder: RunFolder, match: Match) -> float:
    """What a run has spent of that by which it is matched: steps, judged completions or seconds of training."""
    match match.by:
        case MatchBy.steps:
            return last_record(folder.metrics_file).get("step", 0)
        case MatchBy.rollouts:
            return last_record(folder.metrics_file).get(ROLLOUTS_TOTAL, 0)
        case MatchBy.seconds:
            return training_seconds(read_lines(folder.timings_file))


def last_record(file: Path) -> dict[str, Any]:
    """The last record of a file of JSON lines; empty where there is none."""
    lines = whole_lines(file, TAIL_BYTES)
    return json.loads(lines[-1]) if lines else {}


def unmatched(folder: RunFolder, run: Run, match: Match) -> str | None:
    """What to say of a finished run that came to run.steps before it had spent what all are matched by."""
    steps = run.point.recipe.recipe.run.steps
    if match.by is MatchBy.steps or last_record(folder.metrics_file).get("step", 0) < steps:
        return None
    amount = spent(folder, match)
    if amount >= match.amount:
        return None
    return (
        f"{run.name}: ended by run.steps = {steps} with {amount:,.0f} of {match.amount:,} {match.by.name}: it is not "
        "matched; put a higher run.steps into `base`, and give another dir"
    )
