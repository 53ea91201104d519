"""The ledger as the sampler keeps it: records, histogram, what is passed over, and a step without refill."""

import json
from collections import Counter
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_cli.algorithm.advantage import batch_advantages
from dapo_cli.algorithm.ledger import SHARES, Ledger, Skip
from dapo_cli.algorithm.sampler import DynamicSampler
from dapo_cli.config.schema import Advantage, OnCap, SamplerConfig, Surplus
from dapo_cli.data.stream import PromptStream
from dapo_cli.errors import RunStopped
from dapo_cli.types import Group, Prompt, RewardHistory
from tests.conftest import make_group, make_scored

SIZE = 4
PROMPTS = [make_group([1], [True], uid=f"p{number}").prompt for number in range(12)]


def group_with(num_correct: int, uid: str = "p") -> Group:
    return make_group([1] * SIZE, [place < num_correct for place in range(SIZE)], uid=uid)


def make_sampler(groups_per_step: int = 4, prompts: list[Prompt] = PROMPTS, **changes) -> DynamicSampler:
    return DynamicSampler(SamplerConfig(**changes), groups_per_step, PromptStream(prompts, seed=0))


def run_step(sampler: DynamicSampler, step: int, num_correct_of) -> tuple[list[str], list[Group], dict]:
    """Uids in the order they were judged in, the batch, and the figures of one step."""
    sampler.begin_step(step)
    judged = []
    while prompts := sampler.next_prompts():
        kept = sampler.keep([group_with(num_correct_of(prompt.uid), prompt.uid) for prompt in prompts])
        judged += [group.prompt.uid for group in kept]
    fresh, metrics = sampler.take(), sampler.metrics()
    batch = sampler.batch([make_scored(group, born_step=step) for group in fresh])
    return judged, [scored.group for scored in batch], metrics


class TestRecords:
    def test_by_hand(self):
        ledger = Ledger(SamplerConfig())
        ledger.add(group_with(1), step=3, epoch=0)
        ledger.add(group_with(4), step=9, epoch=2)
        (record,) = ledger.state_dict().values()
        # Rewards 1, -1, -1, -1 and four of 1: mean 0.25, 5 * 0.75^2 + 3 * 1.25^2
        assert record.rewards == RewardHistory(visits=2, size=8, mean=0.25, squares=7.5)
        assert (record.num_correct, record.pass_rate, record.last_pass_rate) == (5, 0.625, 1.0)
        assert (record.last_step, record.last_epoch) == (9, 2)

    def test_the_histogram_is_of_last_visits(self):
        ledger = Ledger(SamplerConfig())
        for uid, visits in {"a": [0], "b": [1], "c": [4, 2], "d": [0, 3], "e": [2, 4], "f": [1, 0]}.items():
            for num_correct in visits:
                ledger.add(group_with(num_correct, uid), step=1, epoch=0)
        counts = dict(zip(SHARES, [2, 1, 1, 1, 0, 1], strict=True))  # a f | b | c | d | | e
        metrics = ledger.metrics()
        assert {name: metrics[f"ledger/{name}"] for name in SHARES} == {name: n / 6 for name, n in counts.items()}
        assert metrics["ledger/never_solved"] == 1 / 6  # a; f was solved once
        assert (metrics["ledger/seen"], metrics["ledger/visits"]) == (6, 10 / 6)

    def test_nothing_seen(self):
        assert set(Ledger(SamplerConfig()).metrics().values()) == {0, None}

    @pytest.mark.parametrize("rate_of_eight, share", [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (6, 3), (7, 4), (8, 5)])
    def test_edges_of_the_bins(self, rate_of_eight, share):
        ledger = Ledger(SamplerConfig())
        ledger.add(make_group([1] * 8, [place < rate_of_eight for place in range(8)]), step=1, epoch=0)
        assert ledger.metrics()[f"ledger/{SHARES[share]}"] == 1

    def test_every_judged_group_is_entered_and_carries_what_was_before(self):
        sampler = make_sampler(groups_per_step=2, surplus=Surplus.discard, initial_yield=0.2)
        seen: dict[str, RewardHistory] = {}
        for step in range(1, 9):
            sampler.begin_step(step)
            while prompts := sampler.next_prompts():
                groups = [group_with(hash_of(prompt.uid, step), prompt.uid) for prompt in prompts]
                for before, entered in zip(groups, sampler.keep(groups), strict=True):
                    uid = before.prompt.uid
                    assert replace(entered, history=before.history) == before
                    assert entered.history == seen.get(uid, RewardHistory())
                    seen[uid] = entered.history.after(before.rewards)
            sampler.batch([make_scored(group) for group in sampler.take()])
        assert {uid: record.rewards for uid, record in sampler.ledger.state_dict().items()} == seen
        assert max(history.visits for history in seen.values()) > 1

    def test_a_prompt_that_was_given_up_was_not_visited(self):
        sampler = make_sampler(groups_per_step=1, surplus=Surplus.abort, initial_yield=0.2)
        sampler.begin_step(1)
        prompts = sampler.next_prompts()
        assert len(prompts) > 1
        sampler.keep([group_with(2, prompts[0].uid), *[None] * (len(prompts) - 1)])
        assert list(sampler.ledger.state_dict()) == [prompts[0].uid]

    def test_what_was_given_out_as_state_stays(self):
        """A step ahead, the sampler goes on while the checkpoint of the step before is written."""
        sampler = make_sampler()
        run_step(sampler, 1, lambda uid: 2)
        state, text = sampler.state_dict(), json.dumps(sampler.state_dict())
        for step in range(2, 6):
            run_step(sampler, step, lambda uid: 1)
        assert json.dumps(state) == text


def hash_of(uid: str, step: int) -> int:
    """0 to SIZE right answers; uniform groups are common."""
    return (int(uid[1:]) * 7 + step * 5) % (SIZE + 1)


class TestPassedOver:
    def test_solved_and_hopeless_come_again_after_their_epochs(self):
        rights = {"p1": 3, "p2": 4, "p5": 0}
        sampler = make_sampler(
            groups_per_step=12, dynamic=False, skip_solved_above=0.75, skip_hopeless_below=0.0, revisit_after=2
        )
        order: list[str] = []
        for step in range(1, 7):
            judged, _, metrics = run_step(sampler, step, lambda uid: rights.get(uid, 2))
            order += judged
            counts = metrics["sampler/skipped_solved"], metrics["sampler/skipped_hopeless"]
            assert counts == ((0, 0) if sampler.stream.epoch % 3 == 0 else (2, 1))
        everyone, coming = {prompt.uid for prompt in PROMPTS}, iter(order)
        # Epochs 0, 3 and 6 have all prompts, those between pass over three.
        epochs = [sorted(next(coming) for _ in range(count)) for count in (12, 9, 9, 12, 9, 9, 12)]
        assert epochs == [sorted(everyone - rights.keys() if number % 3 else everyone) for number in range(7)]

    def test_bounds_count_as_solved_and_hopeless(self):
        ledger = Ledger(SamplerConfig(skip_solved_above=0.75, skip_hopeless_below=0.25, revisit_after=1))
        for uid, num_correct in {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}.items():
            ledger.add(group_with(num_correct, uid), step=1, epoch=5)
        assert {uid: ledger.due(uid) for uid in "abcdef"} == {"a": 7, "b": 7, "c": 0, "d": 7, "e": 7, "f": 0}
        assert ledger.passed_over(6) == {Skip.solved: 2, Skip.hopeless: 2}
        assert ledger.passed_over(5) == ledger.passed_over(7) == {Skip.solved: 0, Skip.hopeless: 0}

    def test_an_epoch_that_would_pass_over_all_does_not_take_place(self):
        sampler = make_sampler(groups_per_step=6, dynamic=False, skip_solved_above=0.9, revisit_after=10**6)
        order: list[str] = []
        for step in range(1, 9):
            order += run_step(sampler, step, lambda uid: SIZE)[0]
        everyone = sorted(prompt.uid for prompt in PROMPTS)
        assert [sorted(order[start : start + 12]) for start in range(0, 48, 12)] == [everyone] * 4

    @given(
        st.lists(st.integers(0, SIZE), min_size=60, max_size=60),
        st.sampled_from([None, 0.5, 1.0]),
        st.sampled_from([None, 0.0, 0.25]),
        st.integers(1, 3),
    )
    @settings(max_examples=50)
    def test_every_prompt_comes_again_in_time(self, corrects, solved, hopeless, revisit_after):
        """Between two visits of a prompt lie no more than `revisit_after` epochs, and none where nothing is skipped."""
        sampler = make_sampler(
            groups_per_step=3, skip_solved_above=solved, skip_hopeless_below=hopeless, revisit_after=revisit_after
        )
        drawn = cycle(corrects)
        visits: dict[str, list[int]] = {prompt.uid: [] for prompt in PROMPTS}
        for step in range(1, 16):
            sampler.begin_step(step)
            while prompts := sampler.next_prompts():
                assert len({prompt.uid for prompt in prompts}) == len(prompts)
                for prompt in prompts:
                    visits[prompt.uid].append(sampler.stream.epoch)
                sampler.keep([group_with(next(drawn), prompt.uid) for prompt in prompts])
            sampler.batch([make_scored(group, born_step=step) for group in sampler.take()])
        most = 1 + (revisit_after if sampler.skips else 0)
        now = sampler.stream.epoch
        for epochs in visits.values():
            gaps = [later - earlier for earlier, later in zip(epochs, [*epochs[1:], now], strict=True)]
            assert all(gap >= 1 for gap in gaps[:-1]) and all(gap <= most for gap in gaps)


@given(
    st.lists(st.integers(0, SIZE), min_size=24, max_size=24),
    st.sampled_from(list(Surplus)),
    st.booleans(),
    st.integers(0, 6),
)
@settings(max_examples=60)
def test_a_resumed_sampler_decides_alike_at_any_step(corrects, surplus, refill, interrupted_after):
    """Batches with their histories, figures and states; the prompts wrap around several times."""

    def fresh() -> DynamicSampler:
        return make_sampler(
            groups_per_step=3,
            surplus=surplus,
            refill=refill,
            max_rounds=3,
            skip_solved_above=0.75,
            skip_hopeless_below=0.0,
            revisit_after=1,
        )

    def step_of(sampler: DynamicSampler, step: int) -> tuple:
        seen = run_step(sampler, step, lambda uid: corrects[(int(uid[1:]) + 5 * step) % 24])
        return *seen, json.dumps(sampler.state_dict())

    uninterrupted, resumed = fresh(), fresh()
    for step in range(1, interrupted_after + 1):
        step_of(uninterrupted, step)
    resumed.load_state_dict(json.loads(json.dumps(uninterrupted.state_dict())))
    for step in range(interrupted_after + 1, interrupted_after + 6):
        assert step_of(resumed, step) == step_of(uninterrupted, step)


def test_thresholds_that_never_apply_change_nothing():
    def seen(**changes) -> list:
        sampler = make_sampler(groups_per_step=5, **changes)
        return [run_step(sampler, step, lambda uid, step=step: 1 + hash_of(uid, step) % 3) for step in range(1, 9)]

    assert seen(skip_solved_above=1.0, skip_hopeless_below=0.0) == seen()


class TestWithoutRefill:
    def test_uninformative_groups_leave_and_none_comes_in_their_place(self):
        sampler = make_sampler(groups_per_step=6, refill=False, on_cap=OnCap.stop)
        judged, batch, metrics = run_step(sampler, 1, lambda uid: int(uid[1:]) % 2)
        informative = [uid for uid in judged if int(uid[1:]) % 2]
        assert len(judged) == 6 and [group.prompt.uid for group in batch] == informative
        assert metrics["sampler/rounds"] == 1
        assert metrics["sampler/kept"] == len(informative) < 6
        assert metrics["sampler/short"] == 6 - len(informative)

    def test_nothing_informative_is_an_empty_batch(self):
        sampler = make_sampler(groups_per_step=6, refill=False, on_cap=OnCap.stop)
        judged, batch, metrics = run_step(sampler, 1, lambda uid: 0)
        assert (len(judged), batch, metrics["sampler/short"]) == (6, [], 6)

    def test_a_step_over_the_end_of_an_epoch_takes_two_rounds_and_no_more_prompts(self):
        sampler = make_sampler(groups_per_step=5, refill=False)
        steps = [run_step(sampler, step, lambda uid: 2) for step in (1, 2, 3)]
        assert [len(judged) for judged, _, _ in steps] == [5, 5, 5]
        assert [metrics["sampler/rounds"] for _, _, metrics in steps] == [1, 1, 2]
        assert Counter(uid for judged, _, _ in steps[:2] for uid in judged).most_common(1)[0][1] == 1

    def test_the_cap_of_rounds_still_stops_where_prompts_were_not_tried(self):
        sampler = make_sampler(
            groups_per_step=6, refill=False, max_rounds=2, max_prompts_per_round=2, on_cap=OnCap.stop
        )
        with pytest.raises(RunStopped, match="after 2 rounds"):
            run_step(sampler, 1, lambda uid: 2)

    def test_where_every_group_is_kept_it_changes_nothing(self):
        one, other = (make_sampler(dynamic=False, refill=refill) for refill in (True, False))
        for step in range(1, 6):
            assert run_step(one, step, lambda uid: 0) == run_step(other, step, lambda uid: 0)


def test_a_second_visit_changes_the_smoothed_advantage_alone():
    """One of four right, then two: Eq. 9 again, beside half of that and half of the same over all eight rewards."""
    sampler = make_sampler(groups_per_step=1, prompts=PROMPTS[:1])
    (first,), (second,) = (run_step(sampler, step, lambda uid, n=n: n)[1] for step, n in ((1, 1), (2, 2)))
    plain, smoothed = (
        [batch_advantages([visit], kind)[0] for visit in (first, second)]
        for kind in (Advantage.group_std, Advantage.smoothed)
    )
    assert smoothed[0] == pytest.approx(plain[0], abs=3e-6)
    # New: mean 0, deviation sqrt(4 / 3). All: three of eight right, mean -0.25, deviation sqrt(7.5 / 7).
    new, of_all = 0.866025, (1.25 / (7.5 / 7) ** 0.5, -0.75 / (7.5 / 7) ** 0.5)
    assert plain[1] == pytest.approx([new, new, -new, -new], abs=3e-6)
    assert smoothed[1] == pytest.approx([(new + of_all[0]) / 2] * 2 + [(-new + of_all[1]) / 2] * 2, abs=3e-6)
