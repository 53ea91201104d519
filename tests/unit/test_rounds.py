"""Rounds: judging while generating, ending early, and a batch that depends on no clock."""

import itertools
import json
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.algorithm.sampler import DynamicSampler
from dapo_cli.config.schema import SamplerConfig, Surplus
from dapo_cli.data.stream import PromptStream
from dapo_cli.distributed.world import Board, World
from dapo_cli.protocols import Finished
from dapo_cli.rounds import judge_as_they_finish
from dapo_cli.tracking.clock import PhaseClock
from dapo_cli.types import Group, Prompt
from tests.conftest import make_group, make_scored

DEADLINE_S = 20  # for what must come; nothing here waits for it to pass unless a test fails
PROMPTS = [make_group([2, 2], [True, False], uid=f"p{place}").prompt for place in range(6)]


def group_of(prompt: Prompt, informative: bool = True) -> Group:
    return make_group([2, 2], [True, not informative], uid=prompt.uid)


def judge_all(prompts: list[Prompt], completions: list) -> list[Group]:
    assert prompts, "nothing to judge"
    assert completions == [[prompt.uid] for prompt in prompts]  # each prompt with its own completions
    return [group_of(prompt) for prompt in prompts]


def finished(*batches: list[int]) -> Iterator[Finished]:
    """An engine that finishes the prompts of these places, batch by batch; a completion is its prompt's uid."""
    for batch in batches:
        yield {place: [PROMPTS[place].uid] for place in batch}  # type: ignore[list-item]


def endless(batch: list[int]) -> Iterator[Finished]:
    """An engine that goes on until it is closed, or, where a test fails, until the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        yield from finished(batch)
        time.sleep(0.001)


def uids(groups: list[Group | None]) -> list[str | None]:
    return [group and group.prompt.uid for group in groups]


class Watched:
    """An engine's iterator that says whether it was closed before its end."""

    def __init__(self, batches: Iterator[Finished]) -> None:
        self.batches = batches
        self.closed = False
        self.ended = False

    def __iter__(self):
        return self

    def __next__(self) -> Finished:
        try:
            return next(self.batches)
        except StopIteration:
            self.ended = True
            raise

    def close(self) -> None:
        self.closed = True


class TestJudgingAsTheyFinish:
    def test_groups_are_in_the_order_of_the_prompts(self):
        groups = judge_as_they_finish(PROMPTS, finished([5, 2], [], [0], [4, 1], [3]), judge_all, PhaseClock())
        assert uids(groups) == [prompt.uid for prompt in PROMPTS]

    @given(st.permutations(range(6)), st.lists(st.integers(0, 6), max_size=4))
    def test_in_whatever_order_and_batches_they_finish(self, order, cuts):
        bounds = [0, *sorted(cuts), 6]
        batches = [order[start:end] for start, end in itertools.pairwise(bounds)]
        groups = judge_as_they_finish(PROMPTS, finished(*batches), judge_all, PhaseClock())
        assert uids(groups) == [prompt.uid for prompt in PROMPTS]

    def test_no_prompts(self):
        assert judge_as_they_finish([], finished(), judge_all, PhaseClock()) == []

    def test_judging_overlaps_generating(self):
        """The engine goes on only once its first prompt is judged, and the judge only once the engine went on."""
        first_judged, went_on = threading.Event(), threading.Event()

        def engine() -> Iterator[Finished]:
            yield {0: [PROMPTS[0].uid]}
            went_on.set()
            assert first_judged.wait(DEADLINE_S)
            yield {1: [PROMPTS[1].uid]}

        def judge(prompts: list[Prompt], completions: list) -> list[Group]:
            assert went_on.wait(DEADLINE_S)
            first_judged.set()
            return judge_all(prompts, completions)

        groups = judge_as_they_finish(PROMPTS[:2], engine(), judge, PhaseClock())
        assert uids(groups) == ["p0", "p1"]

    def test_what_finishes_while_the_judge_is_busy_is_judged_together(self):
        begun, all_finished = threading.Event(), threading.Event()
        judged: list[list[str]] = []

        def engine() -> Iterator[Finished]:
            yield from finished([0])
            assert begun.wait(DEADLINE_S)
            yield from finished([1], [2], [3])
            all_finished.set()

        def judge(prompts: list[Prompt], completions: list) -> list[Group]:
            begun.set()
            assert all_finished.wait(DEADLINE_S)
            judged.append([prompt.uid for prompt in prompts])
            return judge_all(prompts, completions)

        judge_as_they_finish(PROMPTS[:4], engine(), judge, PhaseClock())
        assert judged == [["p0"], ["p1", "p2", "p3"]]

    def test_a_judge_that_fails_ends_the_generating(self):
        def engine() -> Iterator[Finished]:
            yield from endless([0])

        def judge(prompts: list[Prompt], completions: list) -> list[Group]:
            raise ValueError("no verdict")

        batches = Watched(engine())
        with pytest.raises(ValueError, match="no verdict"):
            judge_as_they_finish(PROMPTS, batches, judge, PhaseClock())
        assert batches.closed and not batches.ended

    def test_an_engine_that_fails_ends_the_judging(self):
        threads = threading.active_count()

        def engine() -> Iterator[Finished]:
            yield from finished([0])
            raise ValueError("out of memory")

        batches = Watched(engine())
        with pytest.raises(ValueError, match="out of memory"):
            judge_as_they_finish(PROMPTS, batches, judge_all, PhaseClock())
        assert batches.closed
        assert threading.active_count() == threads

    def test_a_question_that_fails_ends_both(self):
        def enough(groups: dict[int, Group]) -> bool:
            raise ValueError("no store")

        batches = Watched(finished([0], [1]))
        with pytest.raises(ValueError, match="no store"):
            judge_as_they_finish(PROMPTS, batches, judge_all, PhaseClock(), enough)
        assert batches.closed and not batches.ended

    def test_enough_gives_up_the_rest(self):
        """What was finished by then is judged all the same; what was not has no group."""
        judged = threading.Event()

        def engine() -> Iterator[Finished]:
            yield from finished([1], [0])
            assert judged.wait(DEADLINE_S)
            yield from finished([4], [2], [3], [5])

        def judge(prompts: list[Prompt], completions: list) -> list[Group]:
            groups = judge_all(prompts, completions)
            if "p0" in uids(groups):
                judged.set()
            return groups

        batches = Watched(engine())
        asked: list[set[int]] = []

        def enough(groups: dict[int, Group]) -> bool:
            asked.append(set(groups))
            return len(asked) == 3  # after the third batch

        groups = judge_as_they_finish(PROMPTS, batches, judge, PhaseClock(), enough)
        assert uids(groups) == ["p0", "p1", None, None, "p4", None]
        assert batches.closed and not batches.ended
        assert asked[0] <= asked[1] <= asked[2] <= {0, 1, 4}

    def test_enough_is_asked_where_nothing_finished_too(self):
        """A flag from outside ends a generation whose completions are all still running."""
        given_up = threading.Event()

        def engine() -> Iterator[Finished]:
            yield {}
            given_up.set()
            yield from endless([])

        batches = Watched(engine())
        groups = judge_as_they_finish(PROMPTS, batches, judge_all, PhaseClock(), lambda groups: given_up.is_set())
        assert groups == [None] * 6
        assert batches.closed and not batches.ended

    def test_the_clock_has_both_phases(self):
        clock = PhaseClock()
        judge_as_they_finish(PROMPTS, finished([0], [1]), judge_all, clock)
        assert set(clock.seconds) == {"rollout", "verify"} and min(clock.seconds.values()) > 0


class TestBoard:
    def test_knows_the_items_up_to_the_first_unknown_one(self):
        board = World().board("k", 5)
        assert board.share({}) == []
        assert board.share({1: True}) == []
        assert board.share({0: False}) == [False, True]
        assert board.share({0: False, 1: True, 3: False}) == [False, True]
        assert board.share({2: True}) == [False, True, True, False]
        assert board.share({4: False}) == [False, True, True, False, False]

    def test_without_items(self):
        assert World().board("k", 0).share({}) == []

    @given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 4), st.randoms())
    def test_places_items_as_they_are_spread(self, flags, size, random):
        """One board in the place of each rank in turn: rank r of n has the items r, r + n, r + 2n and so on."""
        known: list[bool | None] = [None] * len(flags)
        places = list(range(len(flags)))
        random.shuffle(places)
        whole = Board(0, size, "k", len(flags))
        whole._read_again = float("inf")  # no store to ask
        for place in places:
            rank, own_place = place % size, place // size
            whole.rank = rank
            known[place] = flags[place]
            expected = known[: known.index(None)] if None in known else known
            assert whole.share({own_place: flags[place]}) == expected


def uid_of(number: int) -> str:
    return f"q{number}"


STREAM = [make_group([2, 2], [True, False], uid=uid_of(number)).prompt for number in range(40)]
verdicts = st.lists(st.booleans(), min_size=40, max_size=40)


class TestAbortedSurplus:
    """Whatever had been finished when a round was ended, the run goes on alike."""

    def sampler(self, dynamic: bool) -> DynamicSampler:
        config = SamplerConfig(
            surplus=Surplus.abort, max_rounds=3, max_prompts_per_round=12, oversample=1.5, dynamic=dynamic
        )
        return DynamicSampler(config, 4, PromptStream(STREAM, seed=0))

    def steps(self, informative: dict[str, bool], dynamic: bool, lose, count: int = 3) -> list:
        """What can be seen of the run's first steps. `lose(places)` says which of a round's prompts, of those that
        were behind what filled the batch, had no group when the round was ended."""
        sampler, seen = self.sampler(dynamic), []
        for step in range(1, count + 1):
            sampler.begin_step(step)
            while prompts := sampler.next_prompts():
                flags = [informative[prompt.uid] for prompt in prompts]
                needed = next((end for end in range(len(flags) + 1) if sampler.enough(flags[:end])), len(flags))
                lost = lose(list(range(needed, len(flags))))
                groups = [
                    None if place in lost else group_of(prompt, flags[place]) for place, prompt in enumerate(prompts)
                ]
                kept = sampler.keep(groups)
                seen.append(([prompt.uid for prompt in prompts], [group.prompt.uid for group in kept]))
            batch = sampler.batch([make_scored(group, born_step=step) for group in sampler.take()])
            seen.append([scored.group.prompt.uid for scored in batch])
            seen.append(json.dumps(sampler.state_dict()))
            seen.append(sampler.metrics())
        return seen

    @given(verdicts, st.booleans(), st.data())
    def test_the_run_does_not_depend_on_what_was_unfinished(self, flags, dynamic, data):
        informative = {uid_of(number): flag for number, flag in enumerate(flags)}

        def lose(places: list[int]) -> set[int]:
            return data.draw(st.sets(st.sampled_from(places))) if places else set()

        ours = self.steps(informative, dynamic, lose)
        assert ours == self.steps(informative, dynamic, lambda places: set())
        assert ours == self.steps(informative, dynamic, set)

    @given(verdicts, st.booleans())
    def test_each_prompt_is_judged_once_in_the_order_of_the_stream(self, flags, dynamic):
        """Aborted prompts come again, first of all, and no other comes twice before the epoch is over."""
        informative = {uid_of(number): flag for number, flag in enumerate(flags)}
        sampler, judged = self.sampler(dynamic), []
        expected = [prompt.uid for prompt in PromptStream(STREAM, seed=0).take(200)]
        for step in range(1, 5):
            sampler.begin_step(step)
            aborted = 0
            while prompts := sampler.next_prompts():
                uids = [prompt.uid for prompt in prompts]
                assert uids == expected[len(judged) :][: len(uids)]
                kept = sampler.keep([group_of(prompt, informative[prompt.uid]) for prompt in prompts])
                aborted += len(prompts) - len(kept)
                judged += [group.prompt.uid for group in kept]
            taken = sampler.take()
            wanted = [group.prompt.uid for group in taken]
            assert all(informative[uid] for uid in wanted) or not dynamic
            assert len(wanted) <= 4 and sampler.metrics()["sampler/aborted"] == aborted
            assert sampler.metrics()["sampler/surplus"] == 0
            sampler.batch([make_scored(group, born_step=step) for group in taken])
        assert judged == expected[: len(judged)]

    def test_ends_with_the_group_that_fills_the_batch(self):
        sampler = self.sampler(dynamic=True)
        sampler.begin_step(1)
        prompts = sampler.next_prompts()
        assert len(prompts) == 12  # 4 * 1.5 / 0.5
        flags = [True, False, True, True, False, True, True, False, True, True, True, False]
        assert [sampler.enough(flags[:end]) for end in range(13)] == [False] * 6 + [True] * 7
        kept = sampler.keep([group_of(prompt, flag) for prompt, flag in zip(prompts, flags, strict=True)])
        assert [group.prompt for group in kept] == prompts[:6]
        assert sampler.next_prompts() == []
        sampler.take()
        assert sampler.metrics()["sampler/aborted"] == 6
        sampler.begin_step(2)
        assert sampler.next_prompts()[:6] == prompts[6:]

    @pytest.mark.parametrize("surplus", [Surplus.discard, Surplus.carry])
    def test_other_ways_are_never_enough(self, surplus):
        sampler = DynamicSampler(SamplerConfig(surplus=surplus), 2, PromptStream(STREAM, seed=0))
        sampler.begin_step(1)
        sampler.next_prompts()
        assert not sampler.enough([True] * 10)
