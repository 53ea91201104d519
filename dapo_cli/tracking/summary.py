"""The few lines that close a run, read from its files alone, so that they can be shown again at any time."""

from collections.abc import Sequence
from typing import Any

from dapo_cli.tracking.console import clock_time, with_error
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.health_file import Alarm, read_alarms
from dapo_cli.tracking.metrics import mean
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.training_time import training_seconds


def summary_lines(folder: RunFolder) -> list[str]:
    """Held-out accuracy, steps, time and speed of the training, and where everything lies."""
    timings, evals = read_lines(folder.timings_file), read_lines(folder.evals_file)
    rows = [
        accuracy_row(evals),
        ("training", _training(timings)),
        *_idle(read_lines(folder.metrics_file)),
        ("health", _health(read_alarms(folder.health_file) or [])),
        ("metrics", str(folder.metrics_file)),
    ]
    if next(folder.rollouts.glob("*"), None) is not None:
        rows.append(("rollouts", f"{folder.rollouts}/"))
    if folder.export.exists():
        rows.append(("model", f"{folder.export}/"))
    return [f"{name:<19}{text}" for name, text in rows]


def accuracy_row(evals: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """For example ("held-out accuracy", "46.1% ± 3.1 (step 0) -> 82.0% ± 2.4 (step 60)"); a table's is an expected
    accuracy, since its evaluation samples nothing."""
    if not evals:
        return "held-out accuracy", "no evaluation recorded"
    ends = evals if len(evals) == 1 else (evals[0], evals[-1])
    name = "expected accuracy" if evals[0]["eval/samples_per_prompt"] is None else "held-out accuracy"
    return name, " -> ".join(f"{with_error(record)} (step {record['step']})" for record in ends)


def _idle(metrics: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Steps that found nothing to learn from, where there are any."""
    idle = sum(record["policy/updates"] == 0 for record in metrics)
    return [("without update", f"{idle} of {len(metrics)} steps found no informative group")] if idle else []


def _health(alarms: Sequence[Alarm]) -> str:
    """For example `grad_norm_spike (steps 9 to 10; since step 14), entropy_collapse (steps 9 to 12, rolled back)`."""
    steps: dict[str, list[str]] = {}
    for alarm in alarms:
        steps.setdefault(alarm.rule, []).append(alarm.steps)
    return ", ".join(f"{rule} ({'; '.join(found)})" for rule, found in steps.items()) or "no alarms"


def _training(timings: Sequence[dict[str, Any]]) -> str:
    """For example `60 steps in 2:31, 2.5 s a step, 9,800 tokens/s in rollouts`; evaluations and checkpoints are
    not part of it."""
    if not timings:
        return "0 steps"
    seconds = training_seconds(timings)
    speed = mean([record["tokens_per_s/rollout"] for record in timings if record["tokens_per_s/rollout"] is not None])
    text = f"{len(timings)} steps in {clock_time(seconds)}, {seconds / len(timings):.1f} s a step"
    return text if speed is None else f"{text}, {speed:,.0f} tokens/s in rollouts"
