"""Curves of a point over its seeds, against steps or against what was spent."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dapo_cli.report.runs import ROLLOUTS, SECONDS, STEP, Run
from dapo_cli.report.study import Point

NEAR = 0.05  # of the rollouts at which a figure is read: how far off its measurements may lie


@dataclass(frozen=True)
class Curve:
    """Mean, lowest and highest seed at each place `x`; `count` seeds."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    count: int


def runs_to_draw(point: Point) -> list[Run]:
    """The finished runs; where there is none, those that have steps at all."""
    return point.finished or [run for run in point.runs if run.steps]


def curve(runs: Sequence[Run], key: str, over: str = STEP) -> Curve | None:
    """The figure against steps or rollouts spent; None where no run measured it.

    Figures of single steps are running means (`smoothed`). Runs matched by rollouts or time measure at different
    places: each is drawn straight between its own, and the mean is taken wherever any has one, as far as all reach.
    """
    lines = [line for run in runs if (line := _line(run, key, over))[0]]
    if not lines:
        return None
    start, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    places = sorted({place for x, _ in lines for place in x if start <= place <= end})
    if not places:
        return None
    values = np.array([np.interp(places, x, y) for x, y in lines])
    return Curve(
        [float(place) for place in places],
        values.mean(axis=0).tolist(),
        values.min(axis=0).tolist(),
        values.max(axis=0).tolist(),
        len(lines),
    )


def _line(run: Run, key: str, over: str) -> tuple[list[float], list[float]]:
    totals, series = run.totals(), smoothed(run, key)
    points = [(totals[step][over], value) for step, value in series if step in totals]
    # A step without judged completions spends nothing: of two values at one place the later holds.
    by_place = dict(points)
    return list(by_place), list(by_place.values())


def smoothed(run: Run, key: str) -> list[tuple[int, float]]:
    """(step, value); the figures of single steps, which are noisy, as means over the steps around, `window` in all and
    fewer at the ends. Evaluations and totals as they are."""
    series = run.series(key)
    reach = window(run) // 2
    if reach == 0 or key.startswith("eval/") or key in (ROLLOUTS, SECONDS):
        return series
    # Long doubles, in which one huge value takes no digits from the means behind it; those of equal values are equal.
    values = np.array([value for _, value in series], dtype=np.longdouble)
    sums = np.concatenate([[0], np.cumsum(values - values[:1])])
    places = np.arange(len(values))
    first, behind = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    means = values[:1] + (sums[behind] - sums[first]) / (behind - first)
    return [(step, float(mean)) for (step, _), mean in zip(series, means, strict=True)]


def window(run: Run) -> int:
    """Steps of a running mean: the odd number next to a twelfth of the run's."""
    return 2 * (len(run.steps) // (2 * 12)) + 1


def at_rollouts(run: Run, key: str, place: float) -> float | None:
    """The figure where so many rollouts were spent: measured there, or straight between two measurements that both lie
    within NEAR of it. None elsewhere: between evaluations that lie far apart, a line says nothing."""
    x, y = _line(run, key, ROLLOUTS)
    if not x or not x[0] <= place <= x[-1]:
        return None
    after = int(np.searchsorted(x, place))
    if x[after] != place and max(x[after] - place, place - x[after - 1]) > NEAR * place:
        return None
    return float(np.interp(place, x, y))


def common_rollouts(points: Sequence[Point]) -> float | None:
    """What the thriftiest finished run spent: every finished run reaches it. None without one."""
    spent = [found.value for point in points for run in point.finished if (found := run.final(ROLLOUTS))]
    return min(spent) if spent else None
