"""One frame: what the run is, how far it came, how it is, and its curves, fitted to a terminal's size."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Group as Rows
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dapo_cli.budget import ROLLOUTS_TOTAL
from dapo_cli.report.health import MOST_ALARMS, alarms_text
from dapo_cli.tracking.console import clock_time
from dapo_cli.tracking.health_file import Alarm
from dapo_cli.tracking.summary import accuracy_row
from dapo_cli.tracking.training_time import training_seconds
from dapo_cli.watch.panels import MARK, Panel, axis_line, panel_lines, panels_of
from dapo_cli.watch.plot import FIRST
from dapo_cli.watch.snapshot import Activity, Snapshot

STYLES = {Activity.RUNNING: "green", Activity.FINISHED: "bold"}
NAME_WIDTH = 12
GAP = 2  # characters between two panels
PANEL_WIDTH = 38  # the least
MOST_COLUMNS = 3
HEADING_ROWS = 2
LEAST_ROWS, MOST_ROWS = 2, 12  # of a plot
ALARM = "! alarm"
# What a terminal shows that has no UTF-8.
ASCII = dict.fromkeys(range(FIRST, FIRST + 256), "*") | {ord(MARK): "o", ord("±"): "~", ord("…"): "."}


def frame(snapshot: Snapshot, width: int, height: int, *, ascii_only: bool = False) -> RenderableType:
    """At most `height` lines; panels that do not fit are left out, then facts, alarms last."""
    head = [*_heading(snapshot, width), *_facts(snapshot, width, height - HEADING_ROWS)][:height]
    lines = [*head, *_curves(panels_of(snapshot.run), width, height - len(head))]
    for line in lines:
        if ascii_only and isinstance(line, Text):
            line.plain = line.plain.translate(ASCII)
    return Rows(*lines)


def _heading(snapshot: Snapshot, width: int) -> Iterator[RenderableType]:
    """The run's name, state and time to go; below, a bar of its steps."""
    told = snapshot.activity.value
    if snapshot.activity is Activity.PAUSED:
        told += f": remove {snapshot.run.name}/paused to go on"
    elif snapshot.activity.may_go_on and (eta := _eta(snapshot)):
        told += f", ETA {eta}"
    yield _ends(Text(snapshot.run.name, style="bold"), Text(told, style=STYLES.get(snapshot.activity, "yellow")), width)
    steps = f"step {snapshot.step} of {snapshot.steps}"
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=snapshot.steps, completed=snapshot.step, width=max(width - len(steps) - 1, 1)), steps)
    yield bar


def _ends(left: Text, right: Text, width: int) -> Text:
    """Both on one line; the left one is cut where they do not fit."""
    left.truncate(max(width - len(right) - 1, 0), overflow="ellipsis", pad=True)
    return Text.assemble(left, " ", right, no_wrap=True, overflow="ellipsis")


def _eta(snapshot: Snapshot) -> str:
    """From the mean step since the last resume, which may be on another machine; empty before the first step."""
    resumes = snapshot.run.manifest["resumes"] if snapshot.run.manifest else []
    start = resumes[-1]["step"] if resumes else 0
    seconds = [record["seconds/step"] for record in snapshot.run.timings if record["step"] > start]
    return clock_time(sum(seconds) / len(seconds) * (snapshot.steps - snapshot.step)) if seconds else ""


def _facts(snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """A line each: name and text, cut at the terminal's width; alarms come first where not all lines fit."""
    facts = [("recipe", _recipe(snapshot)), *_verdict(snapshot)]
    facts += [accuracy_row(snapshot.run.evals), ("time", _time(snapshot)), *_budget(snapshot)]
    health = list(_health(snapshot.run.alarms, width - NAME_WIDTH))
    facts = [*facts, *health] if len(facts) + len(health) <= height else [*health, *facts]
    lines = [_fact(name.removesuffix(" accuracy"), text) for name, text in facts]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _fact(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<{NAME_WIDTH}}", "dim"), (text, "bold red" if name == ALARM else ""), no_wrap=True)


def _recipe(snapshot: Snapshot) -> str:
    """What `dapo train` was called with, and the model; a table has no path."""
    command = snapshot.run.manifest["command"] if snapshot.run.manifest else []
    name = next((word for before, word in pairwise(command) if before == "train"), "")
    model = snapshot.recipe["model"].get("path", "a table")
    return ", ".join(filter(None, [name, f"model {model}"]))


def _verdict(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Whether it is DAPO, without the sizes; manifests of older versions do not say it."""
    verdict = (snapshot.run.manifest or {}).get("algorithm")
    return [("algorithm", verdict["line"].partition(" (")[0])] if verdict else []


def _time(snapshot: Snapshot) -> str:
    timings = snapshot.run.timings
    if not timings:
        return "no step finished yet"
    seconds = training_seconds(timings)
    saved = "no checkpoint" if snapshot.checkpoint is None else f"checkpoint of step {snapshot.checkpoint}"
    told = [clock_time(seconds), f"{seconds / len(timings):.1f} s a step", saved]
    if snapshot.activity.may_go_on and snapshot.idle_s is not None:
        told.append(f"last ended {clock_time(snapshot.idle_s)} ago")
    return ", ".join(told)


def _budget(snapshot: Snapshot) -> list[tuple[str, str]]:
    """What else may end the run, where its recipe sets it."""
    config, run = snapshot.recipe["run"], snapshot.run
    spent = {
        "budget_rollouts": run.steps[-1][ROLLOUTS_TOTAL] if run.steps else 0,
        "budget_seconds": training_seconds(run.timings),
    }
    told = [
        f"{spent[key] / config[key]:.0%} of run.{key}={config[key]:,}" for key in spent if config.get(key) is not None
    ]
    return [("budget", ", ".join(told))] if told else []


def _health(alarms: Sequence[Alarm] | None, width: int) -> Iterator[tuple[str, str]]:
    """Alarms that are on, four lines of the latest and one of those before; past ones in one line. Nothing of a run
    that kept no health.jsonl."""
    if alarms is None:
        return
    on = [alarm for alarm in reversed(alarms) if alarm.on]
    past = [alarm for alarm in reversed(alarms) if not alarm.on]
    if not on:
        yield "health", "no alarm now" if past else "no alarm"
    for alarm in on[:MOST_ALARMS]:
        told = f"{alarm.rule} {alarm.steps}, {alarm.action}: {alarm.message}"
        lines = 4 if alarm is on[0] else 1
        first, *rest = textwrap.wrap(told, max(width, 1), max_lines=lines, placeholder=" …") or [""]
        yield ALARM, first
        yield from (("", line) for line in rest)
    if len(on) > MOST_ALARMS:
        yield ALARM, ", ".join(alarm.rule for alarm in on[MOST_ALARMS:])
    if past:
        yield "past alarms", alarms_text(past)


def _curves(panels: Sequence[Panel], width: int, height: int) -> Iterator[RenderableType]:
    """As many rows of panels as fit, all of one height, above one line of axes."""
    columns = min(max((width + GAP) // (PANEL_WIDTH + GAP), 1), MOST_COLUMNS)
    wanted = -(-len(panels) // columns)
    rows = min(wanted, max(height - 1, 0) // (LEAST_ROWS + 1))
    if rows == 0:
        return
    plot_height = min((height - 1) // rows - 1, MOST_ROWS)
    panel_width = (width - GAP * (columns - 1)) // columns
    last_step = max(panel.last_step for panel in panels)
    for start in range(0, rows * columns, columns):
        drawn = [panel_lines(panel, panel_width, plot_height, last_step) for panel in panels[start : start + columns]]
        for line in zip(*drawn, strict=True):
            yield _beside(line, panel_width)
    yield _beside([axis_line(panel_width, last_step)] * columns, panel_width)


def _beside(texts: Sequence[Text], width: int) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for place, text in enumerate(texts):
        cell = text.copy()
        cell.truncate(width, pad=True)
        line.append_text(cell)
        if place < len(texts) - 1:
            line.append(" " * GAP)
    return line
