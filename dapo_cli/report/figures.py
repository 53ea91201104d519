"""The figures of a report as PNG bytes, drawn without a display. The same input gives the same bytes."""

import io
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dapo_cli.report.curves import curve, runs_to_draw
from dapo_cli.report.formats import Scale, scale_of
from dapo_cli.report.health import steps_of_alarms
from dapo_cli.report.results import PointResult, Results
from dapo_cli.report.runs import ACCURACY, ROLLOUTS, SECONDS, STEP
from dapo_cli.report.statistics import Estimate
from dapo_cli.report.study import Point
from dapo_cli.report.words import scale_for

DPI = 200
WIDTH = 7.0  # inches: the text width of an A4 page with margins of 16 mm
MOST_CURVES = 8
BAND_ALPHA = 0.10
LABEL_CHARACTERS = 30  # of a line of a point's label

# Okabe and Ito's palette, told apart with every common colour blindness; grey in place of its yellow, which white
# paper swallows. Styles repeat the distinction for print without colour.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
STYLES: tuple[Any, ...] = ("-", "-", "-", "-", (0, (5, 1.5)), (0, (5, 1.5)), (0, (5, 1.5)), (0, (5, 1.5)))

LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.unicode_minus": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.2,
    "lines.solid_capstyle": "butt",
    "text.parse_math": False,  # a label's `$` is a `$`
}

LEDGER_BIN = "ledger/share_"
BIN_NAMES = {"0": "0", "to_25": "≤ 25", "to_50": "≤ 50", "to_75": "≤ 75", "below_100": "< 100", "100": "100"}

CURVES = (ACCURACY, "judged/reward", "policy/entropy", "length/mean", "sampler/informative_rate")


def outcome_figure(results: Results) -> bytes:
    """Each point's mean with its interval and seeds; beside it the differences where there are
    others, and published values where there are any."""

    def draw() -> Figure:
        ordered = results.points[::-1] if not results.study.is_ladder else results.points  # a ladder climbs
        rows = range(len(ordered))
        published = [result.point.reference for result in ordered]
        with_published = any(value is not None for value in published)
        heights = [len(wrapped(result.point.label).splitlines()) for result in ordered]
        figure = Figure(figsize=(WIDTH, 1.0 + 0.19 * sum(heights) + 0.11 * len(heights)), layout="constrained")
        ratios = [3.0] + [3.0] * (not results.alone) + [1.8] * with_published
        axes = figure.subplots(1, len(ratios), sharey=True, width_ratios=ratios, squeeze=False)[0]
        scale = scale_for(results)
        _draw_values(axes[0], ordered, results, scale)
        if not results.alone:
            _draw_differences(axes[1], ordered, results, scale)
        if with_published:
            _draw_published(axes[-1], published)
        axes[0].set_yticks(rows, [wrapped(result.point.label) for result in ordered])
        axes[0].set_ylim(-0.6, len(ordered) - 0.4)
        for axis in axes:
            axis.tick_params(axis="y", length=0)
            axis.grid(axis="y", visible=False)
            axis.xaxis.set_major_locator(MaxNLocator(6))
        return figure

    return png(draw)


def _draw_values(axis: Axes, ordered: Sequence[PointResult], results: Results, scale: Scale) -> None:
    base = results.baseline.estimate
    if base and not results.alone:
        axis.axvline(scale.factor * base.mean, color="#999999", linewidth=0.8, linestyle=(0, (4, 2)))
    means = [(row, result.estimate.mean) for row, result in enumerate(ordered) if result.estimate]
    if results.study.is_ladder:
        axis.plot([scale.factor * mean for _, mean in means], [row for row, _ in means], color="#BBBBBB", linewidth=0.8)
    for row, result in enumerate(ordered):
        if result.estimate:
            _interval(axis, row, result.estimate, scale, ("#000000", "o"))
        seeds = [scale.factor * one.value for one in result.values.values()]
        if len(seeds) > 1:
            axis.plot(seeds, [row - 0.22] * len(seeds), "o", color="#0072B2", alpha=0.75, markersize=2.8, linewidth=0)
    axis.set_xlabel(scale.axis)
    axis.set_title("end of training", loc="left")
    if scale.unit == "%":
        low, high = axis.get_xlim()
        axis.set_xlim(max(low, 0), min(high, 100))


def _draw_differences(axis: Axes, ordered: Sequence[PointResult], results: Results, scale: Scale) -> None:
    axis.axvline(0, color="#999999", linewidth=0.8, linestyle=(0, (4, 2)))
    ladder = results.study.is_ladder
    for row, result in enumerate(ordered):
        for found, shift, colour, marker in (
            (result.to_baseline, 0.12 * ladder, "#000000", "o"),
            (result.to_before, -0.16, "#D55E00", "s"),
        ):
            if found:
                hollow = "" if found.distinguishable else "hollow "
                _interval(axis, row + shift, found, scale, (colour, hollow + marker))
    unit = f", {scale.difference_unit}" if scale.difference_unit else ""
    axis.set_xlabel(f"paired difference{unit}")
    if ladder:
        handles = [_marker("#000000", "o", "to the baseline"), _marker("#D55E00", "s", "to the rung before")]
        axis.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.04, 1.0), ncols=2, borderaxespad=0.1)
    else:
        axis.set_title("to the baseline", loc="left")


def _draw_published(axis: Axes, published: Sequence[float | None]) -> None:
    """On an axis of its own: another model and data set, so its numbers are not to be read against ours."""
    known = [(value, row) for row, value in enumerate(published) if value is not None]
    axis.plot(*zip(*known, strict=True), "D", color="#000000", markerfacecolor="white", markersize=4, linewidth=0)
    axis.set_xlabel("published value")
    axis.set_title("reference", loc="left")
    axis.margins(x=0.15)


def _interval(axis: Axes, row: float, found: Estimate, scale: Scale, look: tuple[str, str]) -> None:
    """A line over the interval, and a marker at the mean; `look` is its colour and marker, which may be hollow."""
    colour, marker = look[0], look[1].removeprefix("hollow ")
    if found.low is not None and found.high is not None:
        axis.plot([scale.factor * found.low, scale.factor * found.high], [row, row], color=colour, linewidth=1.0)
    face = "white" if marker != look[1] else colour
    axis.plot([scale.factor * found.mean], [row], marker, color=colour, markerfacecolor=face, markersize=4)


def _marker(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, markersize=4, linewidth=1.0, label=label)


def curves_figure(results: Results, over: str) -> bytes:
    """The metric and the figures of training against steps or rollouts spent, a line a point."""

    def draw() -> Figure:
        keys = list(dict.fromkeys([results.metric, *CURVES, ROLLOUTS if over == STEP else SECONDS]))
        rows = (len(keys) + 1) // 2
        points = points_drawn(results)
        figure = Figure(figsize=(WIDTH, 1.3 * rows + 0.25 * ((len(points) + 2) // 3)), layout="constrained")
        axes = figure.subplots(rows, 2, sharex=True).ravel()
        handles: dict[str, Line2D] = {}
        for axis, key in zip(axes, keys, strict=False):
            for place, point in enumerate(points):
                handles.setdefault(point.name, _curve_handle(point, place, results))
                _draw_curve(axis, point, key, over, handles[point.name])
            axis.set_title(scale_of(key).axis, loc="left")
            axis.margins(x=0.01)
        for axis in axes[len(keys) :]:
            axis.set_visible(False)
        shown = axes[: len(keys)]
        for axis in shown[-2:]:
            axis.set_xlabel("training step" if over == STEP else "rollouts spent")
            axis.tick_params(labelbottom=True)
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        figure.legend(handles=list(handles.values()), loc="outside lower left", ncols=3, handlelength=2.6)
        return figure

    return png(draw)


def _curve_handle(point: Point, place: int, results: Results) -> Line2D:
    """How a point's lines look, with its label. The baseline's is wider, to be seen below a line that equals it."""
    unfinished = "" if point.finished else " (unfinished)"
    # matplotlib leaves labels that begin with "_" out of legends.
    label = (" " if point.label.startswith("_") else "") + wrapped(point.label + unfinished)
    width = 2.2 if point is results.study.baseline and not results.alone else 1.2
    return Line2D([], [], color=COLOURS[place], linestyle=STYLES[place], linewidth=width, label=label)


def _draw_curve(axis: Axes, point: Point, key: str, over: str, look: Line2D) -> None:
    factor, found = scale_of(key).factor, curve(runs_to_draw(point), key, over)
    if found is None:
        return
    style: dict[str, Any] = {
        "color": look.get_color(),
        "linestyle": look.get_linestyle(),
        "linewidth": look.get_linewidth(),
    }
    # Over rollouts the places are those of all seeds, and no longer evaluations that each of them made. A single place
    # makes no line.
    if (key.startswith("eval/") and over == STEP) or len(found.x) == 1:
        style |= {"marker": "o", "markersize": 2.2}
    axis.plot(found.x, np.array(found.mean) * factor, **style)
    # An empty line at the edge would have no extent, and matplotlib would lay nothing out.
    if over == STEP and (raised := steps_of_alarms(runs_to_draw(point), key)):
        edge = axis.get_xaxis_transform()
        axis.plot(raised, [1.0] * len(raised), "v", color=look.get_color(), markersize=4, transform=edge, clip_on=False)
    if found.count > 1:
        low, high = np.array(found.low) * factor, np.array(found.high) * factor
        axis.fill_between(found.x, low, high, color=look.get_color(), alpha=BAND_ALPHA, linewidth=0)


def points_drawn(results: Results) -> list[Point]:
    """All points in their order, or of too many to tell apart the baseline and the highest."""
    drawn = [result for result in results.points if runs_to_draw(result.point)]
    if len(drawn) > MOST_CURVES:
        ranked = sorted(drawn, key=_rank_of(results))[:MOST_CURVES]
        drawn = [result for result in drawn if result in ranked]
    return [result.point for result in drawn]


def _rank_of(results: Results) -> Callable[[PointResult], tuple[bool, float]]:
    def rank(result: PointResult) -> tuple[bool, float]:
        return (result is not results.baseline, -result.estimate.mean if result.estimate else 0.0)

    return rank


def ledger_bins(results: Results) -> list[str]:
    """Keys of the difficulty histogram, in the files' order: shares of the prompts seen, by their last pass rate."""
    keys = dict.fromkeys(key for run in results.study.runs for record in run.steps[:1] for key in record)
    return [key for key in keys if key.startswith(LEDGER_BIN)]


def ledger_figure(results: Results) -> bytes | None:
    """Share of the prompts seen in each bin of pass rate, at the first and the last step; None without a ledger."""
    bins = ledger_bins(results)
    points = [point for point in points_drawn(results) if histogram(point, bins, last=True)] if bins else []
    if not points:
        return None

    names = [BIN_NAMES.get(name, name) for name in (key.removeprefix(LEDGER_BIN) for key in bins)]

    def draw() -> Figure:
        columns = min(3, len(points))
        rows = (len(points) + columns - 1) // columns
        figure = Figure(figsize=(WIDTH, 1.7 * rows + 0.45), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        places = np.arange(len(bins))
        for axis, point in zip(axes, points, strict=False):
            for shift, last, colour in ((-0.2, False, "#BBBBBB"), (0.2, True, "#0072B2")):
                axis.bar(places + shift, histogram(point, bins, last=last), width=0.4, color=colour)
            axis.set_title(wrapped(point.label), loc="left")
            axis.grid(axis="x", visible=False)
            axis.set_xticks(places, names)
        for axis in axes[len(points) :]:
            axis.set_visible(False)
        figure.supylabel("share of the prompts seen, %", fontsize=7.5)
        figure.supxlabel("pass rate, %", fontsize=7.5)
        handles = [
            Line2D([], [], color=colour, linewidth=5, label=label)
            for colour, label in (("#BBBBBB", "first step"), ("#0072B2", "last step"))
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
        return figure

    return png(draw)


def histogram(point: Point, bins: Sequence[str], *, last: bool) -> list[float]:
    """Percent of each bin, mean over the runs; empty where no run kept a ledger."""
    heights = []
    for key in bins:
        series = [found for run in runs_to_draw(point) if (found := run.series(key))]
        if not series:
            return []
        heights.append(100 * sum(found[-1 if last else 0][1] for found in series) / len(series))
    return heights


def wrapped(label: str) -> str:
    return "\n".join(textwrap.wrap(" ".join(label.split()), LABEL_CHARACTERS)[:3]) or "?"


def png(draw: Callable[[], Figure]) -> bytes:
    """Drawn under our settings alone, whatever the user's matplotlibrc says, and without the name of a version."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label in a script that the font lacks
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(LOOK)
        output = io.BytesIO()
        draw().savefig(output, format="png", dpi=DPI, metadata={"Software": None})
    return output.getvalue()
