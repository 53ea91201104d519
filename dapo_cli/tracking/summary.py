"""The few lines that close a run, read from its files alone, so that they can be shown again at any time."""

from collections.abc import Sequence
from typing import Any

from dapo_cli.health.event import EventKind
from dapo_cli.tracking.console import clock_time, with_error
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.metrics import mean
from dapo_cli.tracking.run_folder import RunFolder


def summary_lines(folder: RunFolder) -> list[str]:
    """Held-out accuracy, steps, time and speed of the training, and where everything lies."""
    timings, evals = read_lines(folder.timings_file), read_lines(folder.evals_file)
    exact = bool(evals) and evals[0]["eval/samples_per_prompt"] is None
    rows = [
        ("expected accuracy" if exact else "held-out accuracy", _accuracy(evals)),
        ("training", _training(timings)),
        *_idle(read_lines(folder.metrics_file)),
        ("health", _health(read_lines(folder.health_file, "step", "rule", "event"))),
        ("metrics", str(folder.metrics_file)),
        ("rollouts", f"{folder.rollouts}/"),
    ]
    if folder.export.exists():
        rows.append(("model", f"{folder.export}/"))
    return [f"{name:<19}{text}" for name, text in rows]


def _accuracy(evals: Sequence[dict[str, Any]]) -> str:
    """For example `46.1% ± 3.1 (step 0) -> 82.0% ± 2.4 (step 60)`."""
    if not evals:
        return "no evaluation recorded"
    ends = evals if len(evals) == 1 else (evals[0], evals[-1])
    return " -> ".join(f"{with_error(record)} (step {record['step']})" for record in ends)


def _idle(metrics: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Steps that found nothing to learn from, where there are any."""
    idle = sum(record["policy/updates"] == 0 for record in metrics)
    return [("without update", f"{idle} of {len(metrics)} steps found no informative group")] if idle else []


def _health(events: Sequence[dict[str, Any]]) -> str:
    """For example `grad_norm_spike (steps 9, 14), entropy_collapse (step 12, rolled back)`: where alarms began."""
    steps: dict[str, list[str]] = {}
    for event in events:
        if event["event"] == EventKind.began.value:
            steps.setdefault(event["rule"], []).append(str(event["step"]))
        elif event["event"] == EventKind.rolled_back.value:
            steps.setdefault(event["rule"], []).append(f"{event['step']}, rolled back")
    rules = [f"{rule} (step{'s' if len(found) > 1 else ''} {', '.join(found)})" for rule, found in steps.items()]
    return ", ".join(rules) or "no alarms"


def _training(timings: Sequence[dict[str, Any]]) -> str:
    """For example `60 steps in 2:31, 2.5 s a step, 9,800 tokens/s in rollouts`; the evaluation before step 1 is
    not part of it."""
    if not timings:
        return "0 steps"
    seconds = [record["seconds/step"] for record in timings]
    speed = mean([record["tokens_per_s/rollout"] for record in timings if record["tokens_per_s/rollout"] is not None])
    text = f"{len(timings)} steps in {clock_time(sum(seconds))}, {sum(seconds) / len(seconds):.1f} s a step"
    return text if speed is None else f"{text}, {speed:,.0f} tokens/s in rollouts"
