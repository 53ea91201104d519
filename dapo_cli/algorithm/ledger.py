"""What the run knows of each prompt from its visits, and which prompts that makes it pass over for a while."""

from bisect import bisect_left
from enum import Enum
from typing import Any, NamedTuple

from dapo_cli.config.schema import SamplerConfig
from dapo_cli.types import FIRST_VISIT, Group, RewardHistory

# The difficulty histogram: pass rate 0, up to a quarter, ..., below 1, and 1. A share of prompts in each.
SHARES = ("share_0", "share_to_25", "share_to_50", "share_to_75", "share_below_100", "share_100")
UPPER_BOUNDS = (0.0, 0.25, 0.5, 0.75)


class Record(NamedTuple):
    """One prompt after its last visit. In a checkpoint it is a list of these values, in this order."""

    rewards: RewardHistory  # of all visits
    num_correct: int  # of rewards.size completions
    last_pass_rate: float  # share of right completions in the last visit
    last_step: int
    last_epoch: int

    @property
    def pass_rate(self) -> float:
        """Share of right completions over all visits."""
        return self.num_correct / self.rewards.size


class Skip(Enum):
    """Why a prompt is passed over."""

    solved = "solved"
    hopeless = "hopeless"


class Ledger:
    """A record of every prompt that was judged, and a count of prompts by their last pass rate.

    A prompt that the last visit found solved or hopeless is passed over for `revisit_after` epochs and then comes
    again: nothing is ever deleted.
    """

    def __init__(self, config: SamplerConfig) -> None:
        self.config = config
        self._records: dict[str, Record] = {}
        self._bins = [0] * len(SHARES)
        self._never_solved = self._visits = 0

    def history(self, uid: str) -> RewardHistory:
        """The rewards of the prompt's visits so far."""
        return self._records[uid].rewards if uid in self._records else FIRST_VISIT

    def add(self, group: Group, step: int, epoch: int) -> None:
        """One more visit of the group's prompt."""
        uid, size = group.prompt.uid, len(group.rollouts)
        before = self._records.get(uid)
        if before:
            self._count(before, -1)
        self._records[uid] = Record(
            rewards=self.history(uid).after(group.rewards),
            num_correct=group.num_correct + (before.num_correct if before else 0),
            last_pass_rate=group.num_correct / size,
            last_step=step,
            last_epoch=epoch,
        )
        self._count(self._records[uid], 1)

    def due(self, uid: str) -> int:
        """The first epoch that tries the prompt again; 0 where none passes over it."""
        record = self._records.get(uid)
        if record is None or self._reason(record) is None:
            return 0
        return record.last_epoch + 1 + self.config.revisit_after

    def passed_over(self, epoch: int) -> dict[Skip, int]:
        """How many prompts the epoch passes over, for which reason; the same at any time within the epoch, as only
        prompts that it visits change their record."""
        counts = dict.fromkeys(Skip, 0)
        for uid, record in self._records.items():
            if record.last_epoch < epoch < self.due(uid):
                reason = self._reason(record)
                assert reason is not None
                counts[reason] += 1
        return counts

    def metrics(self) -> dict[str, float | int | None]:
        """Counts over the prompts seen so far; kept up to date by `add`, so that a step costs nothing more."""
        seen = len(self._records)
        shares = dict(zip(SHARES, self._bins, strict=True)) | {"never_solved": self._never_solved}
        return {
            "ledger/seen": seen,
            "ledger/visits": self._visits / seen if seen else None,
            **{f"ledger/{name}": count / seen if seen else None for name, count in shares.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """JSON-able, exact. Records do not change, so what is given out stays as it is."""
        return dict(self._records)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._records = {uid: Record(RewardHistory(*rewards), *rest) for uid, (rewards, *rest) in state.items()}
        self._bins = [0] * len(SHARES)
        self._never_solved = self._visits = 0
        for record in self._records.values():
            self._count(record, 1)

    def _count(self, record: Record, sign: int) -> None:
        """Put a record into the counts, or take it out."""
        is_all = record.last_pass_rate == 1
        self._bins[-1 if is_all else bisect_left(UPPER_BOUNDS, record.last_pass_rate)] += sign
        self._never_solved += sign * (record.pass_rate == 0)
        self._visits += sign * record.rewards.visits

    def _reason(self, record: Record) -> Skip | None:
        solved, hopeless = self.config.skip_solved_above, self.config.skip_hopeless_below
        if solved is not None and record.last_pass_rate >= solved:
            return Skip.solved
        if hopeless is not None and record.last_pass_rate <= hopeless:
            return Skip.hopeless
        return None
