"""Weights between processes: buckets that stream, tensors that arrive bit by bit, and sends that end in all cases."""

import json
import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dapo_cli.rollout.weight_group import Bucket, WeightGroup, in_buckets, own_address

CPU = torch.device("cpu")
SECONDS = 60  # for a process to start and join
SOON_S = 20  # within which a send ends that cannot get through; torch's own limit is ten minutes
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
WEIGHTS = st.lists(st.tuples(st.integers(0, 40), st.sampled_from(DTYPES)), max_size=12)


class TestBuckets:
    @given(WEIGHTS, st.integers(1, 200))
    def test_all_weights_come_in_order_in_as_few_buckets_as_the_order_allows(self, shapes, most_bytes):
        weights = [(f"w{place}", torch.full((size,), place, dtype=dtype)) for place, (size, dtype) in enumerate(shapes)]
        buckets = [bucket.weights for bucket in in_buckets(iter(weights), most_bytes)]
        assert all(buckets)
        flat = [weight for bucket in buckets for weight in bucket]
        assert [name for name, _ in flat] == [name for name, _ in weights]
        assert all(ours is theirs for (_, ours), (_, theirs) in zip(flat, weights, strict=True))
        sizes = [sum(tensor.nbytes for _, tensor in bucket) for bucket in buckets]
        for place, (bucket, size) in enumerate(zip(buckets, sizes, strict=True)):
            assert size <= most_bytes or sum(tensor.nbytes > 0 for _, tensor in bucket) == 1
            if place:  # what opens a bucket did not fit into the one before
                assert sizes[place - 1] + bucket[0][1].nbytes > most_bytes

    def test_by_hand(self):
        """Of 10 bytes at most: 4 + 4, then 4 + 6 since that is no more, 12 alone, 4."""
        sizes = [4, 4, 4, 6, 12, 4]
        buckets = in_buckets([(str(place), torch.zeros(size // 2, dtype=torch.bfloat16)) for place, size in
                              enumerate(sizes)], 10)  # fmt: skip
        assert [[name for name, _ in bucket.weights] for bucket in buckets] == [["0", "1"], ["2", "3"], ["4"], ["5"]]

    @given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 200))
    def test_no_more_than_a_bucket_is_held(self, sizes, most_bytes):
        """Whenever the source is asked for its next weight, what it gave before and is still alive is one bucket."""
        alive: list[weakref.ref[Tensor]] = []
        held: list[int] = []

        def source() -> Iterator[tuple[str, Tensor]]:
            for size in sizes:
                held.append(sum(tensor.nbytes for ref in alive if (tensor := ref()) is not None))
                tensor = torch.zeros(size)
                alive.append(weakref.ref(tensor))
                yield "w", tensor
                del tensor

        buckets = in_buckets(source(), most_bytes)
        while next(buckets, None):
            pass
        assert len(held) == len(sizes)
        for place, bytes_held in enumerate(held):
            assert bytes_held <= max([most_bytes, *(4 * size for size in sizes[:place])])

    def test_a_bucket_comes_before_the_rest_is_read(self):
        read: list[int] = []

        def source() -> Iterator[tuple[str, Tensor]]:
            for place in range(100):
                read.append(place)
                yield str(place), torch.zeros(1)

        next(in_buckets(source(), 12))
        assert read == [0, 1, 2, 3]  # the fourth shows that the bucket is full

    def test_the_record_says_what_a_receiver_must_know(self):
        bucket = Bucket([("a", torch.zeros(2, 3, dtype=torch.bfloat16)), ("b", torch.zeros((), dtype=torch.int64))])
        record = {"names": ["a", "b"], "dtypes": ["bfloat16", "int64"], "shapes": [[2, 3], []]}
        assert json.loads(json.dumps(bucket.record)) == record


def receive(connection: Connection, port: int, rank: int, size: int) -> None:
    """A process that joins, then receives what each record that comes says, and gives back the tensors' bytes."""
    torch.set_num_threads(1)
    group = WeightGroup.join("127.0.0.1", port, rank, size, CPU)
    connection.send("joined")
    while record := connection.recv():
        arrived = []
        for dtype, shape in zip(record["dtypes"], record["shapes"], strict=True):
            tensor = group.receive(getattr(torch, dtype), shape)
            assert tensor.dtype == getattr(torch, dtype) and list(tensor.shape) == shape
            arrived.append(bytes_of(tensor))
        connection.send(arrived)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


class Receivers:
    """Processes that this one sends to as rank 0."""

    def __init__(self, number: int) -> None:
        size = 1 + number
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        spawn = multiprocessing.get_context("spawn")
        self.connections: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for rank in range(1, size):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=receive, args=(theirs, store.port, rank, size), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self.connections.append(ours)
            self.processes.append(process)
        self.group = WeightGroup(store, 0, size, CPU)
        assert self.answers() == ["joined"] * number

    def announce(self, bucket: Bucket) -> None:
        for connection in self.connections:
            connection.send(bucket.record)

    def answers(self) -> list:
        assert all(connection.poll(SECONDS) for connection in self.connections)
        return [connection.recv() for connection in self.connections]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(SECONDS)


@pytest.fixture
def started() -> Iterator[Callable[[int], Receivers]]:
    running: list[Receivers] = []

    def start(number: int) -> Receivers:
        running.append(Receivers(number))
        return running[-1]

    yield start
    for receivers in running:
        receivers.kill()


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Any bits, NaNs and infinities among them."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return data.view(dtype).reshape(shape)


def odd_tensors() -> list[Tensor]:
    shapes = [(), (1,), (7,), (0,), (3, 0, 2), (5, 3), (2, 3, 4, 5), (300, 1001)]
    tensors = [random_bits(shape, dtype, seed) for seed, dtype in enumerate(DTYPES) for shape in shapes]
    for dtype in DTYPES:
        whole = random_bits((6, 8), dtype, 99)
        tensors += [whole.t(), whole[::2, 1::3], whole[:, 3], whole[2:4], whole[:1].expand(4, 8)]
    assert sum(not tensor.is_contiguous() for tensor in tensors) == 4 * len(DTYPES)
    return tensors


def test_tensors_arrive_bit_by_bit_at_all_receivers(started):
    receivers = started(2)
    for bucket in (
        Bucket([(str(place), tensor) for place, tensor in enumerate(odd_tensors())]),
        Bucket([("parameter", torch.nn.Parameter(torch.randn(4, 4)))]),
    ):
        tensors = [tensor.detach() for _, tensor in bucket.weights]
        expected = [bytes_of(tensor) for tensor in tensors]
        receivers.announce(bucket)
        receivers.group.send([tensor for _, tensor in bucket.weights], lambda: None)
        assert receivers.answers() == [expected, expected]
        assert [bytes_of(tensor) for tensor in tensors] == expected  # and the sender's own stay as they were


SIZES = pytest.mark.parametrize("numbers", [1, 4 << 20], ids=["small", "large"])


@SIZES
def test_a_receiver_that_dies_before_ends_the_send(started, numbers):
    receivers = started(1)
    receivers.kill()
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        receivers.group.send([torch.zeros(numbers)], lambda: None)
    assert time.monotonic() - began < SOON_S


@SIZES
def test_a_receiver_that_dies_in_between_ends_the_send(started, numbers):
    """It joins and takes one tensor, and is killed while the next one waits for it."""
    receivers = started(1)
    receivers.announce(Bucket([("first", torch.zeros(3))]))
    receivers.group.send([torch.zeros(3)], lambda: None)
    assert receivers.answers() == [[bytes(12)]]
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        receivers.group.send([torch.zeros(numbers)], receivers.kill)
    assert time.monotonic() - began < SOON_S


@SIZES
def test_check_may_give_up_a_send_that_nobody_receives(started, numbers):
    class GivenUp(Exception):
        pass

    receivers = started(1)
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 100:
            raise GivenUp

    began = time.monotonic()
    with pytest.raises(GivenUp):
        receivers.group.send([torch.zeros(numbers)], check)
    assert calls == 100 and time.monotonic() - began < SOON_S


def test_own_address_towards_this_machine():
    assert own_address("127.0.0.1") == own_address("localhost") == "127.0.0.1"
