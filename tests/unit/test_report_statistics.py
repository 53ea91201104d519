"""Means, intervals and paired differences of a report: worked numbers, published quantiles, slow oracles."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_cli.report.statistics import Basis, Measured, bonferroni, estimate, paired_difference, t_quantile


def seeds(*values: float) -> dict[int, Measured]:
    return {seed: Measured(value) for seed, value in enumerate(values)}


# Two-sided quantiles as tables of Student's t print them.
TABLE = [
    (0.95, 1, 12.706),
    (0.95, 2, 4.303),
    (0.95, 3, 3.182),
    (0.95, 4, 2.776),
    (0.95, 9, 2.262),
    (0.95, 30, 2.042),
    (0.95, 120, 1.980),
    (0.99, 1, 63.657),
    (0.99, 2, 9.925),
    (0.99, 5, 4.032),
    (0.90, 10, 1.812),
    (0.999, 4, 8.610),
]


@pytest.mark.parametrize(("confidence", "freedom", "value"), TABLE)
def test_quantiles_are_those_of_the_tables(confidence: float, freedom: int, value: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(value, abs=5e-4)


@given(st.floats(0.5, 0.999), st.integers(1, 200))
@settings(max_examples=40)
def test_quantiles_hold_the_share_of_the_density_that_they_should(confidence: float, freedom: int) -> None:
    t = np.linspace(0.0, t_quantile(confidence, freedom), 200_001)
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    density = np.exp(constant - (freedom + 1) / 2 * np.log1p(t**2 / freedom))
    assert 2 * np.trapezoid(density, t) == pytest.approx(confidence, abs=1e-5)


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert t_quantile(0.95, 10_000) == pytest.approx(1.95996, abs=3e-4)


def test_mean_over_seeds() -> None:
    found = estimate(seeds(0.5, 0.6, 0.7))  # s = 0.1, so 4.302653 * 0.1 / sqrt(3)
    assert found is not None and found.basis is Basis.SEEDS and found.count == 3
    assert found.mean == pytest.approx(0.6)
    assert found.half_width == pytest.approx(0.248414, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((0.351586, 0.848414), abs=1e-6)


def test_of_nothing_there_is_no_mean() -> None:
    assert estimate({}) is None
    assert paired_difference(seeds(0.1), {}) is None
    assert paired_difference({0: Measured(0.1)}, {1: Measured(0.2)}) is None


def test_differences_are_paired_by_the_seeds_that_both_have() -> None:
    point = {0: Measured(0.5), 1: Measured(0.6), 2: Measured(0.9)}
    baseline = {2: Measured(0.6), 0: Measured(0.4), 3: Measured(0.1)}
    found = paired_difference(point, baseline)  # 0.1 and 0.3: s = 0.141421, and 12.706205 * s / sqrt(2)
    assert found is not None and found.count == 2
    assert found.mean == pytest.approx(0.2)
    assert found.half_width == pytest.approx(1.2706205, abs=1e-6)
    assert found.distinguishable is False


def test_pairing_takes_out_what_the_seeds_share() -> None:
    point, baseline = seeds(0.32, 0.52, 0.76), seeds(0.30, 0.50, 0.73)
    one, other = estimate(point), estimate(baseline)
    assert one and other and one.low is not None and other.high is not None and one.low < other.high
    found = paired_difference(point, baseline)
    assert found is not None and found.distinguishable is True


def test_one_seed_has_the_standard_error_of_its_prompts() -> None:
    found = estimate({7: Measured(0.4, 0.05, 101)})
    assert found is not None and found.basis is Basis.PROMPTS and found.count == 1
    assert found.half_width == pytest.approx(1.983972 * 0.05, abs=1e-6)  # t of 100 degrees of freedom


def test_the_difference_of_one_shared_seed_adds_the_errors_in_squares() -> None:
    point = {0: Measured(0.5, 0.03, 101), 1: Measured(0.9, 0.03, 101)}
    found = paired_difference(point, {0: Measured(0.4, 0.04, 101)})
    assert found is not None and found.basis is Basis.PROMPTS
    assert found.mean == pytest.approx(0.1)
    assert found.half_width == pytest.approx(1.983972 * 0.05, abs=1e-6)
    assert found.distinguishable is True


@pytest.mark.parametrize(
    ("found", "basis"),
    [
        (estimate(seeds(0.3, 0.3, 0.3)), Basis.ALIKE),
        (paired_difference(seeds(0.3, 0.4), seeds(0.1, 0.2)), Basis.ALIKE),
        (estimate(seeds(0.0, 0.0)), Basis.ALIKE),
        (estimate({0: Measured(1.0, 0.0, 50)}), Basis.ALIKE),
        (estimate({0: Measured(0.4)}), Basis.UNKNOWN),
        (estimate({0: Measured(0.4, None, 1)}), Basis.UNKNOWN),
        (paired_difference({0: Measured(0.4, 0.1, 9)}, {0: Measured(0.3)}), Basis.UNKNOWN),
    ],
)
def test_without_a_spread_there_is_no_interval_and_no_verdict(found, basis) -> None:
    """Equal values would give an interval of no width, and with it a certainty that nobody has."""
    assert found.basis is basis and found.half_width is None and found.distinguishable is None


def test_intervals_hold_the_true_mean_as_often_as_they_say() -> None:
    random_numbers = random.Random(3)
    held = 0
    for _ in range(4000):
        found = estimate(seeds(*(random_numbers.gauss(0.5, 0.1) for _ in range(3))))
        assert found is not None and found.low is not None and found.high is not None
        held += found.low < 0.5 < found.high
    assert held / 4000 == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(2, 20))
def test_bonferroni_only_widens(values: list[float], comparisons: int) -> None:
    alone, together = estimate(seeds(*values)), estimate(seeds(*values), bonferroni(comparisons))
    assert alone is not None and together is not None and alone.mean == together.mean
    if alone.half_width is not None:
        assert together.half_width is not None and together.half_width > alone.half_width


def test_bonferroni_shares_the_error_out() -> None:
    assert bonferroni(1) == pytest.approx(0.95)
    assert bonferroni(5) == pytest.approx(0.99)
