"""The process group by which the learner's rank 0 sends weights to a server of vLLM's: made by hand, beside any default
group, so that each server has its own and takes no other with it when it ends. Needs torch alone, on both sides."""

import ctypes
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET_BYTES = 256 << 20
JOIN_TIMEOUT = timedelta(seconds=60)
SEND_TIMEOUT = timedelta(minutes=10)


class WeightGroup:
    """Rank 0 sends, the server's workers are ranks 1 and up. Over gloo on a CPU, NCCL on GPUs."""

    def __init__(self, store: dist.Store, rank: int, size: int, device: torch.device) -> None:
        """Collective: every member must call."""
        self.device = device
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = SEND_TIMEOUT
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, size, SEND_TIMEOUT)

    @staticmethod
    def store(size: int) -> dist.TCPStore:
        """Where the members find each other; its `port` is one that the system chooses."""
        return dist.TCPStore("0.0.0.0", 0, size, is_master=True, timeout=JOIN_TIMEOUT, wait_for_workers=False)

    @classmethod
    def host(cls, store: dist.Store, size: int, device: torch.device, check: Callable[[], None]) -> "WeightGroup":
        """Rank 0's. `check` is called while the others are waited for, and may raise to give up. Raises TimeoutError
        where they do not come."""
        members = [f"rank_{rank}" for rank in range(1, size)]
        give_up_at = time.monotonic() + JOIN_TIMEOUT.total_seconds()
        while not store.check(members):
            check()
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"nobody came within {JOIN_TIMEOUT.total_seconds():g} s")
            time.sleep(0.01)
        return cls(store, 0, size, device)

    @classmethod
    def join(cls, host: str, port: int, rank: int, size: int, device: torch.device) -> "WeightGroup":
        store = dist.TCPStore(host, port, size, is_master=False, timeout=JOIN_TIMEOUT, wait_for_workers=False)
        store.set(f"rank_{rank}", "")
        return cls(store, rank, size, device)

    def send(self, tensors: Sequence[Tensor], check: Callable[[], None]) -> None:
        """Give them to all other members; `check` is called while these take their time, and may raise to give up."""
        for tensor in tensors:
            self._broadcast(_bytes_of(tensor.to(self.device)), check)

    def leave(self) -> None:
        """Never use the group again. It is kept for good: its end would wait for what is still being sent."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))

    def receive(self, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        self._broadcast(_bytes_of(tensor), lambda: None)
        return tensor

    def _broadcast(self, data: Tensor, check: Callable[[], None]) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        work = self._group.broadcast([data], options)
        while not work.is_completed():
            check()
            time.sleep(0.0005)
        work.wait()


def _bytes_of(tensor: Tensor) -> Tensor:
    """The tensor's memory, [bytes] uint8: types that a backend does not know travel, too."""
    return tensor.contiguous().view(-1).view(torch.uint8)


@dataclass(frozen=True)
class Bucket:
    """Some weights, by name, small enough to be held at once."""

    weights: list[tuple[str, Tensor]]

    @property
    def record(self) -> dict[str, list[Any]]:
        """What the receiver must know before the tensors come; JSON-able."""
        return {
            "names": [name for name, _ in self.weights],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in self.weights],
            "shapes": [list(tensor.shape) for _, tensor in self.weights],
        }


def in_buckets(weights: Iterable[tuple[str, Tensor]], most_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """The weights in their order, as many at a time as are not above `most_bytes`, or a larger one alone."""
    held: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if held and size + tensor.nbytes > most_bytes:
            yield Bucket(held)
            held, size = [], 0
        held.append((name, tensor))
        size += tensor.nbytes
    if held:
        yield Bucket(held)


def own_address(towards: str) -> str:
    """The address of this machine that the host `towards` can reach; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])
