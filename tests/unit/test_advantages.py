"""Every kind of advantage by hand, and the smoothed one against an oracle that keeps all rewards of all visits."""

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.algorithm.advantage import batch_advantages
from dapo_cli.config.schema import Advantage
from dapo_cli.types import Group, RewardHistory
from tests.conftest import make_group

ONE_OF_FOUR = [1.0, -1.0, -1.0, -1.0]  # mean -0.5, sample deviation 1
HALF = [1.0, 1.0, -1.0, -1.0]  # mean 0, sample deviation sqrt(4 / 3)
UNIFORM = [0.1, 0.1, 0.1, 0.1]  # a sum that rounds


def with_rewards(rewards: list[float], history: RewardHistory | None = None) -> Group:
    """A group of these shaped rewards: what is not +1 or -1 is a length penalty."""
    group = make_group([1] * len(rewards), [reward > 0 for reward in rewards])
    rollouts = [
        replace(rollout, length_penalty=reward - rollout.correctness)
        for rollout, reward in zip(group.rollouts, rewards, strict=True)
    ]
    return replace(group, rollouts=tuple(rollouts), history=history or group.history)


def advantages(kind: Advantage, *groups: list[float]) -> list[list[float]]:
    return batch_advantages([with_rewards(rewards) for rewards in groups], kind)


@pytest.mark.parametrize(
    ("kind", "of_one_in_four", "of_half"),
    [
        (Advantage.group_std, [1.5, -0.5, -0.5, -0.5], [0.866025, 0.866025, -0.866025, -0.866025]),
        (Advantage.mean, [1.5, -0.5, -0.5, -0.5], [1.0, 1.0, -1.0, -1.0]),
        # 1 less -1; -1 less the mean of 1, -1 and -1
        (Advantage.leave_one_out, [2.0, -2 / 3, -2 / 3, -2 / 3], [4 / 3, 4 / 3, -4 / 3, -4 / 3]),
        # Squares 2.25 + 3 * 0.25 + 4 * 1 = 7 over 8 - 1: the deviation of the batch is 1.
        (Advantage.batch_std, [1.5, -0.5, -0.5, -0.5], [1.0, 1.0, -1.0, -1.0]),
        (Advantage.smoothed, [1.5, -0.5, -0.5, -0.5], [0.866025, 0.866025, -0.866025, -0.866025]),
    ],
)
def test_worked_numbers_of_a_first_visit(kind, of_one_in_four, of_half):
    first, second = advantages(kind, ONE_OF_FOUR, HALF)
    assert first == pytest.approx(of_one_in_four, abs=3e-6)
    assert second == pytest.approx(of_half, abs=3e-6)


def test_the_batch_s_deviation_is_that_of_all_its_groups():
    # Squares 3 + 2 * (1 + 1 + 1 + 1) = 11 over 12 - 1; with the first group alone 3 over 4 - 1.
    together = advantages(Advantage.batch_std, ONE_OF_FOUR, HALF, HALF)
    assert together[0] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=3e-6)
    # 4 over 4 - 1, and over 8 - 1 beside a group without differences
    (alone,) = advantages(Advantage.batch_std, HALF)
    beside, nothing = advantages(Advantage.batch_std, HALF, UNIFORM)
    assert alone[0] == pytest.approx(0.866025, abs=3e-6)
    assert beside[0] == pytest.approx(1.322876, abs=3e-6)
    assert nothing == pytest.approx([0.0] * 4, abs=1e-9)
    assert advantages(Advantage.batch_std) == []


@pytest.mark.parametrize("kind", list(Advantage))
def test_equal_rewards_teach_nothing_and_a_group_of_one_is_refused(kind):
    assert advantages(kind, UNIFORM)[0] == pytest.approx([0.0] * 4, abs=1e-9)
    with pytest.raises(ValueError, match="at least two"):
        advantages(kind, [1.0])


def test_smoothed_at_the_second_and_third_visit():
    def smoothed(visits: list[list[float]]) -> list[float]:
        history = RewardHistory()
        for rewards in visits[:-1]:
            history = history.after(rewards)
        return batch_advantages([with_rewards(visits[-1], history)], Advantage.smoothed)[0]

    # New: mean 0, deviation sqrt(2). All: 1, -1, -1, -1, mean -0.5, deviation 1. Half of each.
    assert smoothed([[-1.0, -1.0], [1.0, -1.0]]) == pytest.approx([0.5 / 2**0.5 + 0.75, -0.5 / 2**0.5 - 0.25])
    # New: no deviation, 0. All: mean 1/3, deviation sqrt(16 / 15); 1 is 0.645497 above. The smaller share is a third.
    assert smoothed([[-1.0, -1.0], [1.0, 1.0], [1.0, 1.0]]) == pytest.approx([0.645497 / 3] * 2, abs=1e-6)
    assert smoothed([UNIFORM] * 50) == [0.0] * 4


def candidates_by_the_book(visits: list[list[float]]) -> list[tuple[float, float]]:
    """Both of the last visit's advantages, from a list of everything."""
    new, everything, i = visits[-1], [reward for rewards in visits for reward in rewards], len(visits)

    def standardised(reward: float, among: list[float]) -> float:
        if max(among) == min(among):
            return 0.0
        return (reward - statistics.fmean(among)) / statistics.stdev(among)

    both = [(standardised(reward, new), standardised(reward, everything)) for reward in new]
    return [((i - 1) / i * a_new + a_total / i, a_new / i + (i - 1) / i * a_total) for a_new, a_total in both]


shaped = st.sampled_from([1.0, -1.0, 0.5, -1.25, 1 - 1 / 4096])


@given(st.lists(st.lists(shaped, min_size=2, max_size=5), min_size=1, max_size=12))
def test_smoothed_equals_the_oracle_that_keeps_everything(visits):
    history = RewardHistory()
    for end, rewards in enumerate(visits, start=1):
        (ours,) = batch_advantages([with_rewards(rewards, history)], Advantage.smoothed)
        for advantage, candidates in zip(ours, candidates_by_the_book(visits[:end]), strict=True):
            assert abs(advantage) == pytest.approx(min(map(abs, candidates)), abs=1e-9)
            assert any(advantage == pytest.approx(candidate, abs=1e-9) for candidate in candidates)
        history = history.after(rewards)


@given(st.lists(st.lists(shaped, min_size=1, max_size=6), min_size=1, max_size=20))
def test_a_history_is_that_of_all_its_rewards(visits):
    history, everything = RewardHistory(), [reward for rewards in visits for reward in rewards]
    for rewards in visits:
        history = history.after(rewards)
    mean = statistics.fmean(everything)
    assert (history.visits, history.size) == (len(visits), len(everything))
    assert history.mean == pytest.approx(mean, abs=1e-12)
    assert history.squares == pytest.approx(sum((reward - mean) ** 2 for reward in everything), abs=1e-12)
