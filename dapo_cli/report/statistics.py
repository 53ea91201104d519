"""Means over seeds, their intervals, and differences paired by seed: pure functions of numbers.

An interval is that of Student's t: mean +- t(n - 1) * s / sqrt(n), s with n - 1. It takes the seeds for independent
draws of a normal distribution; with two or three of them it is wide, as it should be.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

CONFIDENCE = 0.95

# A spread this small beside the values is rounding: all seeds gave the same number, which says nothing about others.
ROUNDING = 1e-12


class Basis(Enum):
    """What an interval's spread is taken over, and why there is none."""

    SEEDS = "seeds"
    PROMPTS = "prompts"
    ALIKE = "alike"  # no interval: all values are equal, so there is no spread to judge by
    UNKNOWN = "unknown"  # no interval: one value, of unknown error


@dataclass(frozen=True)
class Measured:
    """One run's figure; `standard_error` over `prompts` prompts where the figure is a mean over them."""

    value: float
    standard_error: float | None = None
    prompts: int = 0


@dataclass(frozen=True)
class Estimate:
    """Mean of `count` values, or of `count` paired differences; `half_width` of its interval, None without one."""

    mean: float
    half_width: float | None
    count: int
    basis: Basis

    @property
    def low(self) -> float | None:
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        return None if self.half_width is None else self.mean + self.half_width

    @property
    def distinguishable(self) -> bool | None:
        """Whether the interval leaves out 0; None where there is no interval."""
        return None if self.half_width is None else abs(self.mean) > self.half_width


def estimate(measured: Mapping[int, Measured], confidence: float = CONFIDENCE) -> Estimate | None:
    """Mean over seeds, keyed by seed; None without any. Its interval is over seeds, of one seed over prompts."""
    values = [one.value for one in measured.values()]
    if len(values) == 1:
        (one,) = measured.values()
        return _over_prompts(one.value, [one], confidence)
    return _over_seeds(values, confidence) if values else None


def paired_difference(
    measured: Mapping[int, Measured], baseline: Mapping[int, Measured], confidence: float = CONFIDENCE
) -> Estimate | None:
    """Mean of measured - baseline over the seeds that both have; None where they share none.

    Of one shared seed, the interval is over prompts and takes the two evaluations for independent. They share their
    prompts, so that it is rather too wide than too narrow; and it knows nothing of the spread between seeds.
    """
    shared = [seed for seed in measured if seed in baseline]
    differences = [measured[seed].value - baseline[seed].value for seed in shared]
    if len(shared) == 1:
        return _over_prompts(differences[0], [measured[shared[0]], baseline[shared[0]]], confidence)
    return _over_seeds(differences, confidence) if shared else None


def _over_seeds(values: Sequence[float], confidence: float) -> Estimate:
    count = len(values)
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    if deviation <= ROUNDING * max(map(abs, values), default=0.0):
        return Estimate(mean, None, count, Basis.ALIKE)
    half_width = t_quantile(confidence, count - 1) * deviation / math.sqrt(count)
    return Estimate(mean, half_width, count, Basis.SEEDS)


def _over_prompts(mean: float, sides: Sequence[Measured], confidence: float) -> Estimate:
    """Of one run, or of two as independent ones: the standard errors over prompts add in squares."""
    errors = [side.standard_error for side in sides if side.standard_error is not None and side.prompts > 1]
    if len(errors) < len(sides):
        return Estimate(mean, None, 1, Basis.UNKNOWN)
    error = math.hypot(*errors)
    if error == 0:  # every prompt had the same share of right answers
        return Estimate(mean, None, 1, Basis.ALIKE)
    freedom = min(side.prompts for side in sides) - 1
    return Estimate(mean, t_quantile(confidence, freedom) * error, 1, Basis.PROMPTS)


@cache
def t_quantile(confidence: float, freedom: int) -> float:
    """t with P(|T| <= t) = confidence under `freedom` degrees of freedom; to about 12 digits.

    >>> round(t_quantile(0.95, 1), 3), round(t_quantile(0.95, 2), 3), round(t_quantile(0.95, 4), 3)
    (12.706, 4.303, 2.776)
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _central_probability(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _central_probability(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) tan(angle)): the finite series of Abramowitz and Stegun, 26.7.3 odd, 26.7.4 even."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = cosine if odd else 1.0, 0.0
    for place in range(2 + odd, freedom + 1, 2):  # each term follows from the one before
        total += term
        term *= (place - 1) / place * cosine**2
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def bonferroni(comparisons: int) -> float:
    """Confidence of each of so many intervals under which all of them hold together at 95 % or more."""
    return 1 - (1 - CONFIDENCE) / comparisons
