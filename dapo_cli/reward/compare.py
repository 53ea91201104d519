"""Equality of compiled expressions and equations, at random rational points of their variables."""

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from dapo_cli.reward.exact import TooLargeError
from dapo_cli.reward.values import DIGITS, Value, mp, subtract, to_float

TOLERANCE_DIGITS = 40  # behind the decimal point
# Positive or not, from, to: among them values near zero and large ones, where other branches of |x - 1000| show.
POINTS = (
    *((True, low, high) for low, high in ((0.8, 3), (0.8, 3), (4, 60), (0.001, 0.1), (100, 5_000), (5_000, 1_000_000))),
    *((False, low, high) for low, high in ((0.8, 3), (4, 60), (0.001, 0.1), (100, 5_000))),
)
# Primes, so that no period in a text fits all of them.
DENOMINATORS = (811, 821, 823, 827, 829, 839, 853, 857, 859, 863, 877, 881, 883, 887, 907, 911, 919, 929, 937)
STEPS = (2, -1, -41)  # from a solution, at which a linear function is proportional to them

Values = Mapping[str, Value]  # of variables
Compiled = Callable[[Values], Value]
_LOCK = threading.Lock()  # the precision of mpmath's context is shared


class Point(NamedTuple):
    values: Values
    positive: bool


@dataclass(frozen=True)
class Expression:
    """`text` compiled: `sides` are one value, or the two of an equation; `names` are its variables."""

    text: str
    sides: tuple[Compiled, ...]
    names: frozenset[str]
    subject: str | None  # the variable that is the first side of an equation by itself
    divides: bool  # whether it divides by a variable


def same(left: Expression, right: Expression) -> bool | None:
    """Whether two expressions, or two equations, agree; None where they are not defined at enough points."""
    if len(left.sides) != len(right.sides):
        return False
    points = points_of(left.names | right.names, seed=f"{left.text} {right.text}")
    with _LOCK:
        return _same_equation(left, right, points) if len(left.sides) == 2 else _same_value(left, right, points)


def points_of(names: Iterable[str], seed: str) -> list[Point]:
    """Random rational values of the variables, small ones and large ones; without variables, one empty point.

    They depend on the texts compared, so that no text can be made to agree with another at just these points.

    The first are positive throughout, where roots and logarithms are real. The others have signs at random, each
    variable its own: they tell xy from |xy|.
    """
    names = sorted(set(names))
    rng = random.Random(seed)
    points = []
    for positive, low, high in POINTS if names else POINTS[:1]:
        values = {name: _rational(rng, low, high) for name in names}
        if not positive:
            values = {name: value * rng.choice((-1, 1)) for name, value in values.items()}
            if min(values.values()) > 0:
                values = {name: -value for name, value in values.items()}
        points.append(Point(values, positive))
    return points


def _rational(rng: random.Random, low: float, high: float) -> Fraction:
    denominator = rng.choice(DENOMINATORS)
    return Fraction(rng.randint(max(1, round(low * denominator)), round(high * denominator)), denominator)


def _same_value(left: Expression, right: Expression, points: list[Point]) -> bool | None:
    """Where variables are negative, only real values count: `2\\ln x` and `\\ln x^2` are the same to a reader."""
    num_defined = 0
    for point in points:
        same = _close(left.sides[0], right.sides[0], point)
        if same is False:
            return False
        num_defined += same is not None
    return True if num_defined >= (2 if left.names | right.names else 1) else None


def _same_equation(left: Expression, right: Expression, points: list[Point]) -> bool | None:
    """Whether the differences of the sides vanish together: their ratio is one nonzero constant, or one equation is
    what the other, linear in that variable, says of it."""
    one, other = _difference(left), _difference(right)
    rows = [row for point in points if (row := _values((one, other), point)) is not None]
    if len(rows) < 2:
        return None
    if any(_near(a, 0) or _near(b, 0) for a, b in rows):
        return False
    ratio = rows[0]
    if all(_near(a * ratio[1], b * ratio[0]) for a, b in rows):
        return True
    return _solves(left, other, right.names, points) or _solves(right, one, left.names, points)


def _solves(solved: Expression, difference: Compiled, names: frozenset[str], points: list[Point]) -> bool:
    """Whether `name = value` solves `difference = 0`, which is linear in the name. Where its slope depends on other
    variables, as in xy = 6, the value must divide by them (6/x), or a zero of the slope would be one more solution."""
    name = solved.subject
    if name is None or name not in names:
        return False
    slopes = []
    for point in points:
        try:
            at = solved.sides[1](point.values)
            zero, *others = [difference({**point.values, name: at + step}) for step in (0, 1, *STEPS)]
        except (ZeroDivisionError, ValueError, OverflowError, TooLargeError):
            continue
        slope = others.pop(0)
        linear = all(_near(value, slope * step) for value, step in zip(others, STEPS, strict=True))
        if not (_near(zero, 0) and linear) or _near(slope, 0):
            return False
        slopes.append(slope)
    constant = all(_near(slope, slopes[0]) for slope in slopes)
    divided_out = solved.divides and names <= solved.names
    return len(slopes) >= 2 and (constant or divided_out)


def _difference(equation: Expression) -> Compiled:
    one, other = equation.sides
    return lambda values: subtract(one(values), other(values))


def _values(compiled: tuple[Compiled, ...], point: Point) -> tuple[Value, ...] | None:
    """None where one of them is undefined, or came by complex numbers though a variable is negative."""
    try:
        found = tuple(side(point.values) for side in compiled)
    except (ZeroDivisionError, ValueError, OverflowError, TooLargeError):
        return None  # too large here, such as an exponential far out: other points decide
    if not point.positive and any(isinstance(value, mp.mpc) for value in found):
        return None
    return found if all(mp.isfinite(to_float(value)) for value in found) else None


def _close(one: Compiled, other: Compiled, point: Point) -> bool | None:
    """Whether two values agree: exactly, or with a difference that is rounding, since twice the digits shrink it."""
    values = _values((one, other), point)
    if values is None or all(isinstance(value, Fraction) for value in values):
        return None if values is None else values[0] == values[1]
    size = max(abs(to_float(value)) for value in values)
    difference = _difference_at(values)
    if difference > size * mp.mpf(10) ** -TOLERANCE_DIGITS and difference > mp.mpf(10) ** -TOLERANCE_DIGITS:
        return False
    with mp.workdps(2 * DIGITS):
        values = _values((one, other), point)
        return None if values is None else bool(_difference_at(values) <= difference * mp.mpf(10) ** (20 - DIGITS))


def _difference_at(values: tuple[Value, ...]) -> Value:
    """Not below the rounding of the values themselves."""
    left, right = map(to_float, values)
    return abs(left - right) + max(abs(left), abs(right)) * mp.eps


def _near(left: Value, right: Value) -> bool:
    """To TOLERANCE_DIGITS, of the larger one where that is above 1."""
    if isinstance(left, Fraction) and isinstance(right, Fraction | int):
        return left == right
    left, right = to_float(left), to_float(right)
    size = max(abs(left), abs(right), mp.one)
    return bool(abs(left - right) < size * mp.mpf(10) ** -TOLERANCE_DIGITS)


def constant(value: Value) -> Compiled:
    return lambda values: value


def unary(operation: Callable[[Value], Value], part: Compiled) -> Compiled:
    return lambda values: operation(part(values))


def binary(operation: Callable[[Value, Value], Value], left: Compiled, right: Compiled) -> Compiled:
    return lambda values: operation(left(values), right(values))
