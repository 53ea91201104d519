"""Figures of an evaluation: worked numbers, brute force over subsets, exact bootstrap cases."""

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_cli.evaluation.metrics import (
    AnswerClass,
    ProblemScore,
    bootstrap_intervals,
    consensus,
    figures,
    parts,
    pass_at,
    problem_figures,
    tries_of,
)


def score(
    right: int, samples: int = 4, *, uid: str = "p", consensus: float | None = 0.0, level: str | None = None, **changes
) -> ProblemScore:
    defaults = {"failed": 0, "truncated": 0, "no_answer": 0, "tokens": (10.0,) * samples}
    return ProblemScore(
        uid, f"{uid}?", "1", "test", None, level, right=right, consensus=consensus, **(defaults | changes)
    )


@pytest.mark.parametrize(("samples", "right"), [(1, 0), (1, 1), (4, 1), (5, 2), (6, 3), (6, 6), (7, 0)])
def test_pass_at_j_is_the_share_of_subsets_with_a_right_one(samples, right):
    outcomes = [True] * right + [False] * (samples - right)
    for tries in range(1, samples + 1):
        subsets = list(combinations(outcomes, tries))
        assert pass_at(right, samples, tries) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)


def test_pass_at_j_of_large_k_is_exact():
    # 1 - C(1023, 512) / C(1024, 512) = 512/1024: a float product of 512 ratios would lose digits.
    assert pass_at(1, 1024, 512) == 0.5
    assert [tries_of(samples) for samples in (1, 2, 3, 8, 12)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8],
        [1, 2, 4, 8, 12],
    ]


FOUR, FIVE, SIX = AnswerClass("4", True), AnswerClass("5", False), AnswerClass("6", False)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([FOUR, FOUR, FIVE], 1.0),
        ([FOUR, FIVE, FIVE], 0.0),
        ([FOUR, FIVE], 0.5),  # a tie of two is split
        ([FOUR, FIVE, SIX, FOUR, SIX], 0.5),  # 5 is not among the top
        ([FOUR, FIVE, SIX], 1 / 3),
        ([FIVE, SIX], 0.0),
        ([None, None, None, FOUR], 1.0),  # who states nothing does not vote
        ([None, FIVE, FOUR, None], 0.5),
        ([None, None], 0.0),
    ],
)
def test_consensus(votes, expected):
    assert consensus(votes) == expected


def test_figures_of_two_problems_by_hand():
    first = score(3, consensus=1.0, truncated=1, tokens=(10.0, 20.0, 30.0, 40.0))
    second = score(1, uid="q", consensus=0.5, no_answer=2, failed=1, tokens=(2.0, 2.0, 2.0, 94.0))
    found = figures([first, second], seed=0)
    assert {name: figure["value"] for name, figure in found.items() if isinstance(figure, dict)} == {
        "avg@4": 0.5,  # 3/4 and 1/4
        "pass@1": 0.5,
        "pass@2": 0.75,  # 1 - C(1,2)/C(4,2) = 1 and 1 - C(3,2)/C(4,2) = 1/2
        "pass@4": 1.0,
        "cons@4": 0.75,
        "truncated": 0.125,
        "no_answer": 0.25,
        "verifier_failed": 0.125,
        "length_mean": 25.0,
    }
    assert (found["length_median"], found["length_max"]) == (15.0, 94.0)
    # Two problems drawn twice: both the first with 1/4, both the second with 1/4. So the 2.5 % and 97.5 % points of the
    # mean are the two problems' own values.
    assert (found["avg@4"]["low"], found["avg@4"]["high"]) == (0.25, 0.75)
    assert (found["length_mean"]["low"], found["length_mean"]["high"]) == (25.0, 25.0)


def test_a_verifier_that_tells_no_answers_has_no_votes():
    assert problem_figures(score(2, consensus=None, no_answer=None)).keys() == {
        "avg@4", "pass@1", "pass@2", "pass@4", "truncated", "verifier_failed", "length_mean"
    }  # fmt: skip


def test_the_interval_is_that_of_the_binomial():
    """Half of 400 problems right: resampled means are Binomial(400, 1/2)/400, whose 2.5 % point is 180 of 400."""
    rates = [1.0, 0.0] * 200
    low, high = bootstrap_intervals({"rate": rates}, seed=0)["rate"]
    assert low == pytest.approx(180 / 400, abs=0.003) and high == pytest.approx(220 / 400, abs=0.003)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Of 200 tests of 60 problems of rate 0.3, about 95 % of the intervals hold 0.3."""
    import numpy as np

    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        rates = (rng.random(60) < 0.3).astype(float)
        low, high = bootstrap_intervals({"rate": rates}, seed=trial, resamples=1000)["rate"]
        held += low <= 0.3 <= high
    assert 180 <= held <= 198


def test_intervals_depend_on_the_seed_alone_and_columns_share_resamples():
    values = [0.0, 0.25, 1.0, 0.5, 0.75]
    one = bootstrap_intervals({"a": values, "b": [2 * value for value in values]}, seed=1)
    assert one["b"] == tuple(2 * bound for bound in one["a"])
    assert one["a"] == bootstrap_intervals({"a": values}, seed=1)["a"]
    assert bootstrap_intervals({"a": [0.5]}, seed=1) == {"a": None}  # one problem shows no spread


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.integers(0, 5))
@settings(max_examples=25)
def test_an_interval_lies_within_its_values(values, seed):
    low, high = bootstrap_intervals({"a": values}, seed, resamples=50)["a"]
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12
    assert math.isfinite(low)


def test_parts_are_in_natural_order_and_only_where_they_differ():
    scores = [score(1, uid=str(place), level=level) for place, level in enumerate(["10", "2", "Level 5", None, "2"])]
    assert list(parts(scores)) == ["level"]  # all of one source, none with a subject
    assert list(parts(scores)["level"]) == ["2", "Level 5", "10", "none"]
    assert [len(own) for own in parts(scores)["level"].values()] == [2, 1, 1, 1]
    assert parts([score(1, uid=str(place), level=str(place)) for place in range(3)]) == {}  # names of problems
