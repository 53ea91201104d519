"""Lines drawn with braille characters, two dots wide and four high each: pure functions."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Points = Sequence[tuple[float, float]]

FIRST = 0x2800  # of Unicode's block "Braille Patterns": no dot
# Bits of the dots of one character: DOTS[x][y], y from the top.
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
DOTS_WIDE, DOTS_HIGH = 2, 4


@dataclass(frozen=True)
class Bounds:
    """What the edges of a plot stand for."""

    left: float
    right: float
    low: float
    high: float


def bounds_of(points: Iterable[tuple[float, float]], left: float, right: float) -> Bounds:
    """From the lowest to the highest value; values that are all equal lie in the middle. `points` are not empty."""
    values = [y for _, y in points]
    low, high = min(values), max(values)
    if low == high:
        reach = abs(low) / 2 or 1.0
        low, high = low - reach, high + reach
    return Bounds(left, right, low, high)


def line(points: Points, bounds: Bounds, columns: int, rows: int) -> list[str]:
    """`rows` texts of `columns` characters, the points joined by straight lines, in the order given.

    >>> line([(0, 0), (1, 1)], Bounds(0, 1, 0, 1), columns=2, rows=1)
    ['⡠⠊']
    """
    cells = [[0] * columns for _ in range(rows)]
    dots = [_dot(point, bounds, columns * DOTS_WIDE, rows * DOTS_HIGH) for point in points]
    for x, y in dots[:1] if len(dots) == 1 else _joined(dots):
        cells[y // DOTS_HIGH][x // DOTS_WIDE] |= DOTS[x % DOTS_WIDE][y % DOTS_HIGH]
    return ["".join(chr(FIRST + bits) if bits else " " for bits in row) for row in cells]


def marks(points: Points, bounds: Bounds, columns: int, rows: int) -> set[tuple[int, int]]:
    """(column, row) of the characters in which the points lie, rows from the top."""
    return {_dot(point, bounds, columns, rows) for point in points}


def _dot(point: tuple[float, float], bounds: Bounds, width: int, height: int) -> tuple[int, int]:
    """The nearest of `width` x `height` places, (0, 0) in the upper left; the edges are the outermost places."""
    x, y = point
    span = bounds.right - bounds.left
    across = (x - bounds.left) / span if span else 0.0
    up = (y - bounds.low) / (bounds.high - bounds.low)
    return round(across * (width - 1)), round((1 - up) * (height - 1))


def _joined(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for (x, y), (to_x, to_y) in pairwise(dots):
        steps = max(abs(to_x - x), abs(to_y - y), 1)
        for step in range(steps + 1):
            yield x + round((to_x - x) * step / steps), y + round((to_y - y) * step / steps)
