"""The prompt stream: every epoch a permutation, cut anywhere without a trace."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.data.stream import PromptStream
from dapo_cli.errors import UserError
from dapo_cli.types import Prompt


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"uid{number}", "q\n", (1,), "a", "test") for number in range(count)]


sizes = st.integers(1, 40)
seeds = st.integers(0, 2**32)
takes = st.lists(st.integers(0, 50), max_size=8)


@given(size=sizes, seed=seeds, epochs=st.integers(1, 4))
def test_each_epoch_is_a_permutation_of_all_prompts(size, seed, epochs):
    taken = PromptStream(prompts(size), seed).take(size * epochs)
    for epoch in range(epochs):
        uids = [prompt.uid for prompt in taken[epoch * size : (epoch + 1) * size]]
        assert sorted(uids) == sorted(prompt.uid for prompt in prompts(size))


@given(size=sizes, seed=seeds, counts=takes)
def test_takes_add_up(size, seed, counts):
    parts, whole = PromptStream(prompts(size), seed), PromptStream(prompts(size), seed)
    assert [prompt for count in counts for prompt in parts.take(count)] == whole.take(sum(counts))


@given(size=sizes, seed=seeds, before=st.integers(0, 100), after=st.integers(0, 100))
def test_a_resumed_stream_goes_on_as_an_uninterrupted_one(size, seed, before, after):
    stream = PromptStream(prompts(size), seed)
    stream.take(before)
    resumed = PromptStream(prompts(size), seed)
    resumed.load_state_dict(stream.state_dict())
    assert resumed.take(after) == stream.take(after)
    assert resumed.state_dict() == stream.state_dict()


@given(size=sizes, seed=seeds, order=st.randoms())
def test_the_order_of_the_rows_does_not_matter(size, seed, order):
    shuffled = prompts(size)
    order.shuffle(shuffled)
    assert PromptStream(shuffled, seed).take(2 * size) == PromptStream(prompts(size), seed).take(2 * size)


@given(seed=seeds)
def test_epochs_and_seeds_differ_in_order(seed):
    # Two of 40! orders are the same by chance once in 10^47.
    stream = PromptStream(prompts(40), seed)
    epochs = [stream.take(40) for _ in range(3)]
    assert all(first != second for first, second in pairwise([*epochs, prompts(40)]))
    assert PromptStream(prompts(40), seed + 1).take(40) != epochs[0]


def test_positions_are_uniform():
    """Each prompt comes first about equally often: 4 prompts, 2000 seeds, 500 +- 5 standard deviations."""
    first = [PromptStream(prompts(4), seed).take(1)[0].uid for seed in range(2000)]
    assert all(abs(first.count(f"uid{number}") - 500) < 100 for number in range(4))


def test_a_state_of_other_data_is_refused():
    state = PromptStream(prompts(5), 0).state_dict()
    with pytest.raises(UserError, match=r"over 5 prompts.*gives 4"):
        PromptStream(prompts(4), 0).load_state_dict(state)


def leaving_out(dues: list[int]) -> PromptStream:
    """A stream over as many prompts, of which number n is due in epoch `dues[n]`."""
    stream = PromptStream(prompts(len(dues)), seed=3)
    stream.pass_over(lambda uid: dues[int(uid.removeprefix("uid"))])
    return stream


dues = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(dues=dues, epochs=st.integers(1, 5))
def test_an_epoch_has_what_is_due_in_the_order_of_all(dues, epochs):
    stream, whole = leaving_out(dues), PromptStream(prompts(len(dues)), seed=3)
    for _ in range(epochs):
        left = stream.begin_round()
        order = whole.take(len(dues))
        while whole.epoch < stream.epoch:
            order = whole.take(len(dues))
        expected = [prompt for prompt in order if dues[int(prompt.uid.removeprefix("uid"))] <= stream.epoch]
        assert left == len(expected) >= 1
        assert stream.take(left) == expected


@given(dues=dues, before=st.integers(0, 40), back=st.integers(0, 12), after=st.integers(0, 40))
def test_what_is_left_out_changes_neither_resume_nor_giving_back(dues, before, back, after):
    stream = leaving_out(dues)
    stream.take(before)
    taken = stream.take(min(stream.begin_round(), back))
    resumed = leaving_out(dues)
    resumed.load_state_dict(stream.state_dict())
    stream.give_back(len(taken))
    given_back = leaving_out(dues)
    given_back.load_state_dict(stream.state_dict())
    assert stream.take(len(taken)) == given_back.take(len(taken)) == taken
    assert resumed.take(after) == stream.take(after) == given_back.take(after)
    assert resumed.state_dict() == stream.state_dict() == given_back.state_dict()


@given(size=sizes, seed=seeds, counts=takes)
def test_to_look_at_a_stream_moves_nothing(size, seed, counts):
    """An epoch that is over stays the one under way until a round begins, whoever reads what in between."""
    stream = PromptStream(prompts(size), seed)
    for count in counts:
        stream.take(count)
        state = stream.state_dict()
        for name in dir(stream):
            if not callable(getattr(stream, name)):
                assert stream.state_dict() == state, name
        epoch_is_over = state["position"] == size
        assert stream.begin_round() == (size if epoch_is_over else size - state["position"])
        assert stream.epoch == state["epoch"] + epoch_is_over


def test_epochs_in_which_nothing_is_due_do_not_take_place():
    stream = leaving_out([10**9, 10**9 + 1])
    assert stream.begin_round() == 1 and stream.epoch == 10**9
    assert [prompt.uid for prompt in stream.take(1)] == ["uid0"]
    assert stream.begin_round() == 2 and stream.epoch == 10**9 + 1


def test_prompts_are_left_out_by_what_is_known_when_their_epoch_begins():
    """A resume in the middle of an epoch, at another bound for what is due, repeats and loses none of it."""
    stream = leaving_out([0] * 9)
    stream.take(9 + 4)
    resumed = leaving_out([0, 5, 0, 5, 0, 5, 0, 5, 0])
    resumed.load_state_dict(stream.state_dict())
    rest = stream.take(5)
    assert resumed.take(resumed.begin_round()) == [p for p in rest if int(p.uid.removeprefix("uid")) % 2 == 0]
