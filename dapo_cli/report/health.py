"""What the runs of a study say of their health while they ran."""

from collections.abc import Sequence

from dapo_cli.report.formats import counted
from dapo_cli.report.runs import Run
from dapo_cli.tracking.health_file import Alarm

AlarmRow = tuple[Run, Alarm]
MOST_ALARMS = 3  # of a run that a terminal tells in full


def alarm_rows(runs: Sequence[Run]) -> list[AlarmRow]:
    return [(run, alarm) for run in runs for alarm in run.alarms or ()]


def steps_of_alarms(runs: Sequence[Run], key: str) -> list[int]:
    """The steps that raised an alarm on that figure."""
    return [alarm.raised for _, alarm in alarm_rows(runs) if key in alarm.figures]


def health_line(runs: Sequence[Run]) -> str | None:
    """For example `2 alarms in 1 of 3 runs.`; None where no run kept health.jsonl, as those of older versions."""
    watched = [run for run in runs if run.alarms is not None]
    if not watched:
        return None
    number, loud = len(alarm_rows(watched)), sum(bool(run.alarms) for run in watched)
    if not number:
        return f"No alarm in {counted(len(watched), 'run')}."
    return f"{counted(number, 'alarm')} in {loud} of {counted(len(watched), 'run')}."


def alarm_lines(run: Run) -> list[str]:
    """For example `runs/a: entropy_collapse (steps 9 to 15, note): entropy fell to 0.01`, the latest first, and those
    that are on before those; of more than MOST_ALARMS, how many more there are."""
    latest = sorted(run.alarms or [], key=lambda alarm: (not alarm.on, -alarm.raised))
    lines = [f"{alarm.rule} ({alarm.steps}, {alarm.action}): {alarm.message}" for alarm in latest[:MOST_ALARMS]]
    if more := len(latest) - len(lines):
        lines.append(f"{counted(more, 'alarm')} more in {run.path / 'health.jsonl'}")
    return [f"{run.name}: {line}" for line in lines]


def alarms_text(alarms: Sequence[Alarm]) -> str:
    """For example `entropy_collapse (steps 9 to 15); length_runaway (since step 20)`, or `none`."""
    return "; ".join(f"{alarm.rule} ({alarm.steps})" for alarm in alarms) or "none"
