"""Dynamic sampling: which groups are kept, how many prompts a round asks for, what is carried."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.algorithm.sampler import DynamicSampler, round_size
from dapo_cli.config.schema import OnCap, SamplerConfig, Surplus
from dapo_cli.data.stream import PromptStream
from dapo_cli.errors import RunStopped
from tests.conftest import make_group, make_scored


class CountingStream:
    """Prompts that are their own numbers: enough of a stream to see which were asked for."""

    def __init__(self) -> None:
        self.position = 0

    epoch = 0

    def begin_round(self):
        return 10**9

    def take(self, count):
        self.position += count
        return list(range(self.position - count, self.position))

    def give_back(self, count):
        self.position -= count

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def group_with(num_correct: int, size: int, uid: str = "p"):
    return make_group([2] * size, [i < num_correct for i in range(size)], uid=uid)


def make_sampler(groups_per_step: int = 4, **changes) -> DynamicSampler:
    return DynamicSampler(SamplerConfig(**changes), groups_per_step, CountingStream())


def fill(sampler: DynamicSampler, num_correct_of) -> None:
    """Run the rounds of a step; prompt number n gets `num_correct_of(n)` right answers of 4."""
    while prompts := sampler.next_prompts():
        sampler.keep([group_with(num_correct_of(n), 4, uid=str(n)) for n in prompts])


def test_uniform_groups_are_dropped():
    sampler = make_sampler()
    sampler.keep([group_with(n, 16, uid=str(n)) for n in (0, 1, 15, 16)])
    assert [group.prompt.uid for group in sampler.take()] == ["1", "15"]
    assert sampler.metrics()["sampler/informative_rate"] == 0.5


def test_length_penalty_does_not_make_a_group_informative():
    for num_correct in (0, 4):
        group = group_with(num_correct, 4)
        longer = tuple(replace(rollout, length_penalty=-0.1 * i) for i, rollout in enumerate(group.rollouts))
        shaped = replace(group, rollouts=longer)
        assert len(set(shaped.rewards)) == 4
        assert not shaped.informative


def test_a_round_never_holds_a_prompt_twice():
    prompts = [group_with(1, 2, uid=str(n)).prompt for n in range(5)]
    sampler = DynamicSampler(SamplerConfig(initial_yield=0.5, oversample=1.0), 4, PromptStream(prompts, seed=0))
    sampler.begin_step(1)
    sampler.stream.take(2)
    rounds = []
    while taken := sampler.next_prompts():
        rounds.append([prompt.uid for prompt in taken])
        sampler.keep([group_with(0, 4, uid=uid) for uid in rounds[-1]])
    assert [len(uids) for uids in rounds] == [3] + [5] * 9  # the rest of the epoch, then whole ones
    assert all(len(set(uids)) == len(uids) for uids in rounds)


def test_without_dynamic_sampling_every_group_is_kept_in_one_round():
    sampler = make_sampler(dynamic=False)
    sampler.begin_step(1)
    fill(sampler, lambda n: 0)
    assert [group.prompt.uid for group in sampler.take()] == ["0", "1", "2", "3"]
    assert sampler.rounds == 1


def test_without_refill_a_step_tries_its_prompts_once():
    sampler = make_sampler(groups_per_step=5, refill=False, max_prompts_per_round=2)
    sampler.begin_step(1)
    fill(sampler, lambda n: 2 if n == 3 else 0)
    assert [group.prompt.uid for group in sampler.take()] == ["3"]
    assert (sampler.rounds, sampler.num_judged) == (3, 5)


def test_acceptance_is_in_stream_order_across_rounds():
    sampler = make_sampler(groups_per_step=3, initial_yield=1.0, oversample=1.0)
    sampler.begin_step(1)
    fill(sampler, lambda n: 2 if n % 2 else 0)
    assert [group.prompt.uid for group in sampler.take()] == ["1", "3", "5"]


@pytest.mark.parametrize(
    ("missing", "expected_yield", "oversample", "cap", "expected"),
    [
        (16, 0.5, 1.25, 100, 40),
        (16, 0.5, 1.25, 30, 30),
        (3, 1.0, 1.0, 100, 3),
        (1, 0.0, 1.0, 48, 48),
        (1, 0.3, 1.0, 9, 4),
    ],
)
def test_round_size(missing, expected_yield, oversample, cap, expected):
    assert round_size(missing, expected_yield, oversample, cap) == expected


def test_round_size_follows_the_running_yield():
    sampler = make_sampler(groups_per_step=8, initial_yield=0.5, oversample=1.0, yield_memory=0.5)
    sampler.begin_step(1)
    first = sampler.next_prompts()
    assert len(first) == 16  # 8 / 0.5
    sampler.keep([group_with(1, 4)] * 4 + [group_with(0, 4)] * 12)
    # informative 0.5 * 4 + 4 = 6 of judged 0.5 * 8 + 16 = 20
    assert sampler.expected_yield == pytest.approx(0.3)
    assert len(sampler.next_prompts()) == 14  # (8 - 4) / 0.3


def test_the_cap_of_rounds_trains_short():
    sampler = make_sampler(max_rounds=3)
    sampler.begin_step(1)
    fill(sampler, lambda n: 1 if n == 0 else 0)
    batch = sampler.batch([make_scored(group) for group in sampler.take()])
    metrics = sampler.metrics()
    assert (len(batch), metrics["sampler/rounds"], metrics["sampler/short"]) == (1, 3, 3)


def test_the_cap_of_rounds_can_stop_the_run():
    sampler = make_sampler(max_rounds=2, on_cap=OnCap.stop)
    sampler.begin_step(7)
    with pytest.raises(RunStopped, match="step 7: 4 of 4 groups are missing after 2 rounds"):
        fill(sampler, lambda n: 0)


def run_step(sampler: DynamicSampler, step: int) -> list[str]:
    sampler.begin_step(step)
    fill(sampler, lambda n: 2)
    batch = sampler.batch([make_scored(group, born_step=step) for group in sampler.take()])
    return [scored.group.prompt.uid for scored in batch]


def test_discarded_surplus_is_counted_and_gone():
    sampler = make_sampler(initial_yield=0.5, oversample=1.0)  # asks for 8, all informative
    assert run_step(sampler, 1) == ["0", "1", "2", "3"]
    assert sampler.metrics()["sampler/surplus"] == 4
    assert run_step(sampler, 2)[0] == "8"


def test_carried_surplus_comes_first_in_the_next_step():
    sampler = make_sampler(initial_yield=0.5, oversample=1.0, surplus=Surplus.carry)
    assert run_step(sampler, 1) == ["0", "1", "2", "3"]
    assert run_step(sampler, 2) == ["4", "5", "6", "7"]
    metrics = sampler.metrics()
    assert (metrics["sampler/carried"], metrics["sampler/carried_age"], metrics["sampler/rounds"]) == (4, 1.0, 0)


def test_what_is_carried_beyond_a_batch_waits_for_the_next_one():
    sampler = make_sampler(groups_per_step=2, surplus=Surplus.carry, max_staleness=2)
    sampler.carried = [make_scored(group_with(1, 4, uid=str(age)), born_step=5 - age) for age in (2, 2, 1)]
    sampler.begin_step(5)
    assert sampler.next_prompts() == [] and sampler.take() == []
    metrics = sampler.metrics()
    names = ("kept", "carried", "carried_age", "surplus", "short")
    assert [metrics[f"sampler/{name}"] for name in names] == [2, 2, 2.0, 1, 0]
    assert [scored.born_step for scored in sampler.batch([])] == [3, 3]
    assert [scored.born_step for scored in sampler.carried] == [4]


def test_groups_too_old_are_dropped_and_counted():
    sampler = make_sampler(groups_per_step=2, surplus=Surplus.carry, max_staleness=1)
    sampler.carried = [
        make_scored(group_with(1, 4, uid="old"), born_step=1),
        make_scored(group_with(1, 4), born_step=2),
    ]
    sampler.begin_step(3)
    assert sampler.dropped_stale == 1
    assert [scored.born_step for scored in sampler.carried] == [2]


@given(st.lists(st.integers(0, 4), min_size=64, max_size=64), st.sampled_from(list(Surplus)), st.integers(1, 3))
def test_a_restored_sampler_decides_alike(corrects, surplus, interrupted_after):
    def step_of(sampler, step):
        sampler.begin_step(step)
        fill(sampler, lambda n: corrects[n % 64])
        batch = sampler.batch([make_scored(group, born_step=step) for group in sampler.take()])
        return [scored.group.prompt.uid for scored in batch], sampler.metrics()

    def fresh():
        return make_sampler(max_rounds=4, max_prompts_per_round=12, surplus=surplus)

    uninterrupted, resumed = fresh(), fresh()
    for step in range(1, interrupted_after + 1):
        step_of(uninterrupted, step)
    resumed.load_state_dict(json.loads(json.dumps(uninterrupted.state_dict())))
    for step in range(interrupted_after + 1, interrupted_after + 3):
        assert step_of(resumed, step) == step_of(uninterrupted, step)
