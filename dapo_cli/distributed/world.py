"""The processes of a run, and the few collectives that the loop needs.

Every rank holds the same groups, sampler and decisions; what is spread is the work (generating, verifying, log-probs,
gradients). So the loop reads as that of one process, and no rank has to be asked what another one knows.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dapo_cli.distributed.launch import started_by_launcher
from dapo_cli.errors import ForPeople, RankFailed, UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Ranks wait for the one with the longest completions. One that dies is noticed by its launcher, not by this.
COLLECTIVE_TIMEOUT = timedelta(hours=6)


@dataclass(frozen=True)
class World:
    """Rank and number of processes, and this rank's device. Of one process, every collective is a plain call."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: Any = None  # by which objects travel; the default one where None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def gather(self, item: Item) -> list[Item]:
        """Every rank's item, by rank. Collective: every rank must call."""
        if self.size == 1:
            return [item]
        items: list[Item | None] = [None] * self.size
        dist.all_gather_object(items, item, group=self.group)
        return items  # type: ignore[return-value]

    def spread(self, items: Sequence[Item], work: Callable[[list[Item]], list[Result]], team: int = 1) -> list[Result]:
        """What `work`, one result an item, makes of all items, in their order; they go to ranks in turn, or to teams of
        `team` consecutive ranks, all of which work on the same.

        What is raised on one rank is raised on every rank, as RankFailed where it is no error meant for people.
        Collective: every rank must call.
        """
        if self.size == 1:
            return work(list(items))
        teams = self.size // team
        own = list(items[self.rank // team :: teams])

        if team == 1:
            parts = self.everywhere(lambda: work(own))
        else:  # one that fails ends its process: the others of its team wait for it within the engine
            results = work(own)
            parts = self.gather(results if self.rank % team == 0 else [])[::team]
        return [parts[place % teams][place // teams] for place in range(len(items))]

    def branch(self) -> "World":
        """The same world for another thread, whose collectives do not get into the way of this one's.

        Collective: every rank must call.
        """
        return (
            self if self.size == 1 else replace(self, group=dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT))
        )

    def board(self, key: str, places: int, team: int = 1) -> "Board":
        """Where ranks tell each other of the items of a `spread` while they work on them; `key` is that of one use."""
        return Board(self.rank // team, self.size // team, key, places)

    def on_main(self, action: Callable[[], Result]) -> Result:
        """Run `action` on rank 0 alone and give every rank its result, or raise what it raised.

        Collective: every rank must call.
        """
        return self.everywhere(lambda: action() if self.is_main else None)[0]  # type: ignore[return-value]

    def barrier(self) -> None:
        """Collective: every rank must call."""
        self.gather(None)

    def everywhere(self, work: Callable[[], Result]) -> list[Result]:
        """What `work` gives on each rank, by rank, or on every rank what it raises on one.

        Collective: every rank must call.
        """
        if self.size == 1:
            return [work()]
        own: Exception | None = None
        result: Result | None = None
        told: ForPeople | str | None = None
        try:
            result = work()
        except Exception as error:
            own, told = error, error if isinstance(error, ForPeople) else f"{type(error).__name__}: {error}"
        outcomes = self.gather((result, told))
        for rank, (_, failure) in enumerate(outcomes):
            if failure is not None:
                if rank == self.rank:
                    raise own  # type: ignore[misc]
                if isinstance(failure, ForPeople):
                    failure.told = True
                    raise failure
                raise RankFailed(rank, failure)
        return [outcome for outcome, _ in outcomes]  # type: ignore[misc]


class Board:
    """Flags of the items of a `World.spread`, which ranks share without waiting for each other."""

    READ_AGAIN_S = 0.2

    def __init__(self, rank: int, size: int, key: str, places: int) -> None:
        self.rank, self.size, self.key = rank, size, key
        self._flags: list[bool | None] = [None] * places
        self._read_again = 0.0

    def share(self, own: dict[int, bool]) -> list[bool]:
        """Add this rank's flags, by their place among its own items; returns those of all ranks that are known, from
        the first item on to the first unknown one."""
        for place, flag in own.items():
            self._flags[place * self.size + self.rank] = flag
        if self.size > 1 and time.monotonic() > self._read_again:
            self._exchange(own)
            self._read_again = time.monotonic() + self.READ_AGAIN_S
        known = self._flags.index(None) if None in self._flags else len(self._flags)
        return [bool(flag) for flag in self._flags[:known]]

    def _exchange(self, own: dict[int, bool]) -> None:
        """One entry of the store for each rank, written over and over: it stays as small as it is."""
        store = dist.distributed_c10d._get_default_store()
        store.set(f"dapo/board/{self.rank}", json.dumps([self.key, list(own.items())]))
        for rank in range(self.size):
            if rank == self.rank or not store.check([f"dapo/board/{rank}"]):
                continue
            key, items = json.loads(store.get(f"dapo/board/{rank}"))
            for place, flag in items if key == self.key else ():
                self._flags[place * self.size + rank] = flag


def join_world(*, with_group: bool) -> World:
    """Take this process's place among those of its launcher; `with_group` asks for a process group even for one alone.

    Objects travel by gloo, tensors of a GPU by NCCL.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0)) if started_by_launcher() else 0
    device = torch.device("cpu")
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"process {local_rank} of this node has no GPU of its own: it has {torch.cuda.device_count()}; set "
                "launch.processes_per_node to that"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    size = int(os.environ["WORLD_SIZE"]) if started_by_launcher() else 1
    if size == 1 and not with_group:
        return World(device=device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if started_by_launcher():
        try:
            dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
        except ValueError as error:  # MASTER_ADDR and the like are missing
            raise UserError(f"a launcher has started this process, but not as torchrun would: {error}") from error
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=COLLECTIVE_TIMEOUT)
    return World(dist.get_rank(), size, device)
