"""Numbers to compare expressions by: exact fractions as long as they stay rational, else 60 digits; never too large.

Every operation refuses results that could take long to go on with, so that no text can make a comparison run away.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath

from dapo_cli.reward.exact import TooLargeError

DIGITS = 60
MAX_BITS = 1 << 18  # of an exact value
MAX_MAGNITUDE_BITS = 1 << 14  # of a value that is not exact
MAX_FACTORIAL = 5_000
MAX_DEGREE = 1_000  # of a root

Value = Any  # Fraction, or a number of mpmath

mp = mpmath.MPContext()  # its precision is shared: `compare` holds a lock
mp.dps = DIGITS


def to_float(value: Value) -> Value:
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction | int) else value


def _bounded(value: Value) -> Value:
    """Raises TooLargeError for a value too large to go on with: the next step could take forever."""
    if isinstance(value, Fraction):
        large = value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS
    else:
        large = bool(mp.isfinite(value) and value != 0 and mp.mag(value) > MAX_MAGNITUDE_BITS)
    if large:
        raise TooLargeError("a value")
    return value


def _alike(left: Value, right: Value) -> tuple[Value, Value]:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left, right
    return to_float(left), to_float(right)


def negate(value: Value) -> Value:
    return -value


def add(left: Value, right: Value) -> Value:
    left, right = _alike(left, right)
    return _bounded(left + right)


def subtract(left: Value, right: Value) -> Value:
    left, right = _alike(left, right)
    return _bounded(left - right)


def multiply(left: Value, right: Value) -> Value:
    left, right = _alike(left, right)
    return _bounded(left * right)


def divide(left: Value, right: Value) -> Value:
    left, right = _alike(left, right)
    return _bounded(left / right)


def larger(left: Value, right: Value) -> Value:
    """Raises ValueError for complex values, which have no order."""
    if any(isinstance(value, mp.mpc) for value in (left, right)):
        raise ValueError("complex values have no order")
    return left if to_float(subtract(left, right)) >= 0 else right


def smaller(left: Value, right: Value) -> Value:
    return right if larger(left, right) is left else left


def power(base: Value, exponent: Value) -> Value:
    if base == 0 and exponent == 0:
        raise ZeroDivisionError
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = base.numerator.bit_length() + base.denominator.bit_length()
        if bits * abs(exponent) > MAX_BITS:
            raise TooLargeError("a power")
        return base**exponent.numerator
    base, exponent = to_float(base), to_float(exponent)
    if base != 0 and abs(exponent) * (abs(mp.mag(base)) + 1) > MAX_MAGNITUDE_BITS:
        raise TooLargeError("a power")
    return mp.power(base, exponent)


def root(value: Value, degree: Value) -> Value:
    """Of a negative number, an odd root is the real one."""
    if not (isinstance(degree, Fraction) and degree.denominator == 1 and 2 <= degree <= MAX_DEGREE):
        raise TooLargeError("the degree of a root")
    value = to_float(value)
    if degree % 2 and not isinstance(value, mp.mpc) and value < 0:
        return -mp.power(-value, 1 / to_float(degree))
    return mp.power(value, 1 / to_float(degree))


def factorial(value: Value) -> Value:
    if abs(value) > MAX_FACTORIAL:
        raise TooLargeError("a factorial")
    if isinstance(value, Fraction) and value.denominator == 1 and value >= 0:
        return Fraction(math.factorial(value.numerator))
    return mp.gamma(to_float(value) + 1)


def binomial(top: Value, bottom: Value) -> Value:
    if max(abs(top), abs(bottom)) > 4 * MAX_FACTORIAL:
        raise TooLargeError("a binomial coefficient")
    if all(isinstance(value, Fraction) and value.denominator == 1 and value >= 0 for value in (top, bottom)):
        return Fraction(math.comb(top.numerator, bottom.numerator))
    return mp.binomial(to_float(top), to_float(bottom))


def bounded(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """A function of mpmath on values of either kind."""
    return lambda value: _bounded(function(to_float(value)))


FUNCTIONS = {
    name: bounded(function)
    for name, function in {
        r"\sin": mp.sin, r"\cos": mp.cos, r"\tan": mp.tan, r"\cot": mp.cot, r"\sec": mp.sec, r"\csc": mp.csc,
        r"\arcsin": mp.asin, r"\arccos": mp.acos, r"\arctan": mp.atan,
        r"\sinh": mp.sinh, r"\cosh": mp.cosh, r"\tanh": mp.tanh,
        r"\ln": mp.ln, r"\log": mp.log10, r"\exp": mp.exp,
    }.items()
}  # fmt: skip
CONSTANTS = {"pi": mp.pi, "E": mp.e, "I": mp.j}
