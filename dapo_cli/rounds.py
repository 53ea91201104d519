"""Rounds of generating and judging until a step's batch is full; completions are judged while others are generated."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from dapo_cli.config.schema import Recipe, Surplus
from dapo_cli.distributed.world import Board, World
from dapo_cli.protocols import RewardShaper, RolloutEngine, Sampler, Verifier
from dapo_cli.reward.judge import judge
from dapo_cli.tracking.clock import PhaseClock
from dapo_cli.types import Completion, Group, Prompt

GIVE_UP_S = 10.0  # a judged case may take as long as its limit

Item = TypeVar("Item")
Sampled = TypeVar("Sampled")
Judged = TypeVar("Judged")


@dataclass
class Rounds:
    """What fills batches. `given_up` ends the rounds that run."""

    recipe: Recipe
    world: World
    engine: RolloutEngine
    sampler: Sampler
    verifier: Verifier
    shaper: RewardShaper
    given_up: threading.Event = field(default_factory=threading.Event)

    def fill(self, step: int, clock: PhaseClock) -> list[Group]:
        """Rounds until the sampler asks for no more prompts; the judged groups of all of them, in stream order.

        Collective: every rank must call.
        """
        judged: list[Group] = []
        self.sampler.begin_step(step)
        while not self.given_up.is_set() and (prompts := self.sampler.next_prompts()):
            key = f"{self.recipe.run.seed}/train/{step}/{self.sampler.rounds}"
            board = self.world.board(key, len(prompts), team=self.engine.ranks)

            def work(own: list[Prompt], key: str = key, board: Board = board) -> list[Group | None]:
                return self._judged(own, key, board, clock)

            judged += self.sampler.keep(self.world.spread(prompts, work, team=self.engine.ranks))
        return judged

    def _judged(self, prompts: list[Prompt], key: str, board: Board, clock: PhaseClock) -> list[Group | None]:
        """The groups of this rank's prompts of a round; None for those that are not needed any more."""
        recipe = self.recipe
        finished = self.engine.generate(prompts, recipe.algorithm.samples_per_prompt, recipe.sampling, key)

        def judge_some(prompts: list[Prompt], completions: list[list[Completion]]) -> list[Group]:
            return judge(prompts, completions, self.verifier, self.shaper, recipe.reward.failed_reward)

        def enough(groups: dict[int, Group]) -> bool:
            if self.given_up.is_set():
                return True
            # Ranks of one engine must decide alike, at the same of its steps: they go on to the end.
            if recipe.sampler.surplus is not Surplus.abort or self.engine.ranks > 1:
                return False
            return self.sampler.enough(board.share({place: group.informative for place, group in groups.items()}))

        return judge_as_they_finish(prompts, finished, judge_some, clock, enough)


class Batches:
    """The judged groups of each step, generated when it begins; under `run.ahead` while the step before trains."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.staleness = 0  # steps by which the weights that generated are older than those that train
        self._ahead = rounds.recipe.run.ahead > 0
        self._coming: Future[tuple[list[Group], PhaseClock]] | None = None
        self._sampler_state: dict[str, Any] | None = None

    def take(self, step: int, clock: PhaseClock) -> list[Group]:
        """All judged groups of the step. Collective: every rank must call."""
        if self._coming is None:
            self.staleness = 0
            return self.rounds.fill(step, clock)
        judged, own_clock = self._coming.result()
        self._coming, self.staleness = None, 1
        for phase, seconds in own_clock.seconds.items():
            clock.seconds[phase] += seconds
        return judged

    def begin(self, step: int) -> None:
        """Under `run.ahead`, start on a step's groups in a thread. From now on the sampler is that thread's, and what
        a checkpoint of the step before must hold of it is kept."""
        if not self._ahead or step > self.rounds.recipe.run.steps:
            return
        self._sampler_state = self.rounds.sampler.state_dict()
        coming: Future[tuple[list[Group], PhaseClock]] = Future()

        def work() -> None:
            clock = PhaseClock()
            try:
                coming.set_result((self.rounds.fill(step, clock), clock))
            except BaseException as error:
                coming.set_exception(error)

        threading.Thread(target=work, daemon=True, name=f"step {step}").start()
        self._coming = coming

    def wait(self) -> None:
        """Until the engine is idle. What ended the thread is raised by `take`, after this step's state is saved."""
        if self._coming is not None:
            wait([self._coming])

    def sampler_state(self) -> dict[str, Any]:
        """The sampler's state at the end of the step that is being trained."""
        return self.rounds.sampler.state_dict() if self._coming is None else self._sampler_state or {}

    def close(self) -> None:
        self.rounds.given_up.set()
        if self._coming is not None:
            wait([self._coming], timeout=GIVE_UP_S)


def judge_as_they_finish(
    prompts: list[Item],
    finished: Iterator[dict[int, list[Sampled]]],
    judge: Callable[[list[Item], list[list[Sampled]]], list[Judged]],
    clock: PhaseClock,
    enough: Callable[[dict[int, Judged]], bool] = lambda groups: False,
) -> list[Judged | None]:
    """A group for each prompt, in order. A thread judges what is there while the engine makes more, which is given up
    once `enough` of the groups so far; then None stands for a prompt that has no group.

    The clock's "rollout" is the time of generating, "verify" what verification adds to it.
    """
    groups: dict[int, Judged] = {}
    queue: SimpleQueue[dict[int, list[Sampled]] | None] = SimpleQueue()

    def work() -> None:
        while (batch := _everything(queue)) is not None:
            places = list(batch)
            judged = judge([prompts[place] for place in places], list(batch.values()))
            groups.update(zip(places, judged, strict=True))

    with ThreadPoolExecutor(1) as thread:
        judging = thread.submit(work)
        try:
            with clock("rollout"):
                for batch in finished:
                    if batch:
                        queue.put(batch)
                    if judging.done() or enough(dict(groups)):
                        break
        finally:
            finished.close()  # type: ignore[attr-defined]
            queue.put(None)
        with clock("verify"):
            judging.result()
    return [groups.get(place) for place in range(len(prompts))]


def _everything(queue: "SimpleQueue[dict[int, list[Sampled]] | None]") -> dict[int, list[Sampled]] | None:
    """All that waits, once there is something; None at the end. A case that takes long then delays no more than those
    which it is judged with."""
    batch = queue.get()
    while batch is not None and not queue.empty():
        more = queue.get()
        if more is None:
            queue.put(None)
            break
        batch = batch | more
    return batch
