"""The processes of a run, and the few collectives that the loop needs.

Every rank holds the same groups, sampler and decisions; what is spread is the work (generating, verifying, log-probs,
gradients). So the loop reads as that of one process, and no rank has to be asked what another one knows.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

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

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def gather(self, item: Item) -> list[Item]:
        """Every rank's item, by rank. Collective: every rank must call."""
        if self.size == 1:
            return [item]
        items: list[Item | None] = [None] * self.size
        dist.all_gather_object(items, item)
        return items  # type: ignore[return-value]

    def spread(self, items: Sequence[Item], work: Callable[[list[Item]], list[Result]]) -> list[Result]:
        """What `work`, one result an item, makes of all items, in their order; each rank works on every `size`-th one.

        What is raised on one rank is raised on every rank, as RankFailed where it is no error meant for people.
        Collective: every rank must call.
        """
        if self.size == 1:
            return work(list(items))
        parts = self.everywhere(lambda: work(list(items[self.rank :: self.size])))
        return [parts[place % self.size][place // self.size] for place in range(len(items))]

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
