"""The curves of a run, each in a panel of text: a title with the last value, and a plot with its bounds."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from dapo_cli.report.curves import smoothed
from dapo_cli.report.runs import ACCURACY, TRAINING_ACCURACY, Run
from dapo_cli.tracking.console import COLUMNS
from dapo_cli.tracking.summary import accuracy_row
from dapo_cli.watch.plot import Points, bounds_of, line, marks

LABEL_WIDTH = 8  # of the bounds, left of a plot
MARK = "●"


@dataclass(frozen=True)
class Panel:
    """`measured` are evaluations, drawn as marks over the line and named `measure`; `alarmed`: an alarm on one of its
    figures is on."""

    heading: str
    form: str
    points: Points
    measured: Points
    measure: str
    alarmed: bool

    @property
    def last_step(self) -> float:
        return max((series[-1][0] for series in (self.points, self.measured) if series), default=0)


def panels_of(run: Run) -> list[Panel]:
    """One for each figure that the terminal shows while a run trains; held-out accuracy is marked on that of training.
    Figures of single steps are running means, as in a report."""
    figures = {figure for alarm in run.alarms or () if alarm.on for figure in alarm.figures}
    measure = accuracy_row(run.evals)[0].removesuffix(" accuracy")
    found = []
    for heading, key, form in COLUMNS:
        measured = run.series(ACCURACY) if key == TRAINING_ACCURACY else []
        alarmed = key in figures or bool(measured and ACCURACY in figures)
        found.append(Panel(heading, form, smoothed(run, key), measured, measure, alarmed))
    return found


def panel_lines(panel: Panel, width: int, height: int, last_step: float) -> list[Text]:
    """`height` + 1 lines of at most `width` characters; the plot reaches from step 0 to `last_step`."""
    both = [*panel.points, *panel.measured]
    if not both:
        return [_title(panel), *(Text() for _ in range(height))]
    columns = width - LABEL_WIDTH - 1
    bounds = bounds_of(both, 0, last_step)
    rows = line(panel.points, bounds, columns, height)
    marked = marks(panel.measured, bounds, columns, height)
    labels = [_label(panel, bounds.high), *[""] * (height - 2), _label(panel, bounds.low)][:height]
    drawn = [_title(panel)]
    for place, (label, row) in enumerate(zip(labels, rows, strict=True)):
        text = Text(f"{label:>{LABEL_WIDTH}} ", style="dim")
        for column, character in enumerate(row):
            is_marked = (column, place) in marked
            text.append(MARK if is_marked else character, style="not dim yellow" if is_marked else "not dim cyan")
        drawn.append(text)
    return drawn


def axis_line(width: int, last_step: float) -> Text:
    """What stands below the lowest panel of a column."""
    end = f"step {last_step:.0f}"
    return Text(f"{'':>{LABEL_WIDTH}} 0{end:>{max(width - LABEL_WIDTH - 2, 0)}}", style="dim")


def _title(panel: Panel) -> Text:
    style = "bold red" if panel.alarmed else "bold"
    title = Text(f"{panel.heading}{' !' if panel.alarmed else ''} ", style=style, no_wrap=True)
    title.append(_value(panel, panel.points), style="not bold cyan")
    if panel.measured:
        title.append(f"  {MARK} {panel.measure} {_value(panel, panel.measured)}", style="not bold yellow")
    return title


def _value(panel: Panel, series: Sequence[tuple[float, float]]) -> str:
    return panel.form.format(series[-1][1]) if series else "no figure yet"


def _label(panel: Panel, value: float) -> str:
    return panel.form.format(value)[:LABEL_WIDTH]
