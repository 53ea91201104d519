"""Dynamic sampling, Eq. 11: rounds of prompts until the batch is full of informative groups."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dapo_cli.algorithm.ledger import Ledger, Skip
from dapo_cli.config.schema import OnCap, SamplerConfig, Surplus
from dapo_cli.errors import RunStopped
from dapo_cli.types import Group, Prompt, ScoredGroup, scored_group_from_dict, scored_group_to_dict


class Stream(Protocol):
    """An endless, resumable stream of prompts; `data.stream` has the one there is."""

    @property
    def epoch(self) -> int: ...
    def begin_round(self) -> int: ...
    def take(self, count: int) -> list[Prompt]: ...
    def give_back(self, count: int) -> None: ...
    def pass_over(self, due: Callable[[str], int]) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def round_size(missing: int, expected_yield: float, oversample: float, cap: int) -> int:
    """Prompts to try so that `missing` informative groups are to be expected, at most `cap`.

    >>> round_size(16, expected_yield=0.5, oversample=1.25, cap=100)
    40
    """
    if expected_yield * cap <= missing * oversample:
        return cap
    return math.ceil(missing * oversample / expected_yield)


class DynamicSampler:
    """Fills a step's batch from one prompt stream.

    Acceptance is in stream order, so that the batch does not depend on which completions finish first. All decisions
    are functions of `state_dict()` and the verdicts, so a resumed run decides alike.
    """

    def __init__(self, config: SamplerConfig, groups_per_step: int, stream: Stream) -> None:
        self.config = config
        self.groups_per_step = groups_per_step
        self.stream = stream
        self.ledger = Ledger(config)
        self.skips = config.skip_solved_above is not None or config.skip_hopeless_below is not None
        if self.skips:
            stream.pass_over(self.ledger.due)
        self._passed_over: tuple[int | None, dict[Skip, int]] = (None, {})  # of which epoch, how many
        self.carried: list[ScoredGroup] = []
        # Discounted counts of informative and of judged groups; the prior weighs as much as one batch.
        self._informative = config.initial_yield * groups_per_step
        self._judged = float(groups_per_step)
        self.begin_step(0)

    @property
    def expected_yield(self) -> float:
        """Share of informative groups to expect, 0 to 1."""
        return self._informative / self._judged

    def begin_step(self, step: int) -> None:
        """Drop carried groups that are too old by now; nothing judged yet."""
        self.step = step
        fresh = [group for group in self.carried if step - group.born_step <= self.config.max_staleness]
        self.dropped_stale = len(self.carried) - len(fresh)
        self.carried = fresh
        self.kept: list[Group] = []
        self.rounds = self.num_judged = self.num_informative = self.num_surplus = self.num_aborted = 0
        self.batch_ages: list[int] = []

    @property
    def missing(self) -> int:
        return max(0, self.groups_per_step - len(self.carried) - len(self.kept))

    @property
    def wanted(self) -> int:
        """Groups to try for: those missing from the batch; without refill, those not tried yet in this step."""
        if self.config.refill:
            return self.missing
        return max(0, self.groups_per_step - len(self.carried) - self.num_judged)

    def next_prompts(self) -> list[Prompt]:
        """The next round's prompts; empty when the batch is full, all prompts of a step without refill were tried, or
        the rounds are used up.

        Raises RunStopped at the cap of rounds when the recipe asks for it.
        """
        if not self.wanted:
            return []
        if self.rounds == self.config.max_rounds:
            if self.config.on_cap is OnCap.stop:
                raise RunStopped(
                    f"step {self.step}: {self.missing} of {self.groups_per_step} groups are missing after "
                    f"{self.rounds} rounds ({self.num_informative} of {self.num_judged} groups were informative). "
                    "Raise sampler.max_rounds or sampler.max_prompts_per_round, or set sampler.on_cap=train_short, and "
                    "resume from the last checkpoint with --allow-changes."
                )
            return []
        if self.config.dynamic and self.config.refill:
            count = round_size(
                self.missing, self.expected_yield, self.config.oversample, self.config.max_prompts_per_round
            )
        else:
            count = min(self.wanted, self.config.max_prompts_per_round)
        # A round ends with the epoch: a prompt that came twice in it would get the same noise, so the same completions.
        return self.stream.take(min(count, self.stream.begin_round()))

    def enough(self, informative: Sequence[bool]) -> bool:
        """Whether the groups of a round, known from its first on, fill the batch, and the rest is not wanted."""
        return self.config.surplus is Surplus.abort and self._filled_after(informative) is not None

    def keep(self, results: Sequence[Group | None]) -> list[Group]:
        """Take in a round's judged groups, in stream order, and return those that count; uninformative ones leave here.

        None is a prompt that was given up since the groups before it are enough. Where surplus is aborted, all behind
        these leave, finished or not, and their prompts come again: so the batch depends on no clock.
        """
        groups: list[Group] = []
        for group in results:
            if group is None:
                break
            groups.append(group)
        if self.config.surplus is Surplus.abort:
            groups = groups[: self._filled_after([group.informative for group in groups])]
        self.num_aborted += len(results) - len(groups)
        self.stream.give_back(len(results) - len(groups))
        groups = [self._entered(group) for group in groups]
        informative = [group for group in groups if group.informative]
        self.rounds += 1
        self.num_judged += len(groups)
        self.num_informative += len(informative)
        self._informative = self.config.yield_memory * self._informative + len(informative)
        self._judged = self.config.yield_memory * self._judged + len(groups)
        self.kept += informative if self.config.dynamic else groups
        return groups

    def _entered(self, group: Group) -> Group:
        """The group with its prompt's earlier rewards; its own are in the ledger from now on."""
        known = replace(group, history=self.ledger.history(group.prompt.uid))
        self.ledger.add(group, self.step, self.stream.epoch)
        return known

    def _filled_after(self, informative: Sequence[bool]) -> int | None:
        """How many of these groups, the first of a round, fill the batch; None where they do not."""
        filled = 0
        for place, each in enumerate(informative):
            filled += each
            if filled == self.missing:
                return place + 1
        return None

    def take(self) -> list[Group]:
        """The groups of this step that need pi_old: those of the batch and, where surplus is carried, the rest."""
        room = max(0, self.groups_per_step - len(self.carried))
        self.batch_ages = [self.step - group.born_step for group in self.carried[: self.groups_per_step]]
        self.batch_ages += [0] * min(room, len(self.kept))
        self.num_surplus = len(self.carried) + len(self.kept) - len(self.batch_ages)
        return self.kept if self.config.surplus is Surplus.carry else self.kept[:room]

    def batch(self, scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """The step's batch in stream order, oldest first; `scored` are the groups of `take()`. What is beyond it is
        carried to the next step."""
        queue = [*self.carried, *scored]
        self.carried = queue[self.groups_per_step :]
        return queue[: self.groups_per_step]

    def metrics(self) -> dict[str, float | int | None]:
        """Counts of the step, valid after `take`."""
        carried_ages = [age for age in self.batch_ages if age > 0]
        return {
            "sampler/informative_rate": self.num_informative / self.num_judged if self.num_judged else None,
            "sampler/rounds": self.rounds,
            "sampler/prompts": self.num_judged,
            "sampler/kept": len(self.batch_ages),
            "sampler/surplus": self.num_surplus,
            "sampler/aborted": self.num_aborted,
            "sampler/short": self.groups_per_step - len(self.batch_ages),
            "sampler/carried": len(carried_ages),
            "sampler/carried_age": sum(carried_ages) / len(carried_ages) if carried_ages else None,
            "sampler/dropped_stale": self.dropped_stale,
            "sampler/yield_estimate": self.expected_yield,
            **{f"sampler/skipped_{reason.value}": count for reason, count in self._skipped().items()},
            **self.ledger.metrics(),
        }

    def _skipped(self) -> dict[Skip, int]:
        """Prompts that the epoch under way passes over. Counted once an epoch, since it looks at all of them."""
        if not self.skips:
            return dict.fromkeys(Skip, 0)
        if self._passed_over[0] != self.stream.epoch:
            self._passed_over = (self.stream.epoch, self.ledger.passed_over(self.stream.epoch))
        return self._passed_over[1]

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; complete at the end of a step."""
        return {
            "stream": self.stream.state_dict(),
            "ledger": self.ledger.state_dict(),
            "informative": self._informative,
            "judged": self._judged,
            "carried": [scored_group_to_dict(group) for group in self.carried],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ledger.load_state_dict(state["ledger"])
        self.stream.load_state_dict(state["stream"])  # which asks the ledger what is due
        self._informative, self._judged = state["informative"], state["judged"]
        self.carried = [scored_group_from_dict(group) for group in state["carried"]]
