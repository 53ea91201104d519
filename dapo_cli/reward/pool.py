"""Verification in worker processes that can be killed: a hard time limit for each case, whatever the case does.

No signals, threads or forks of the parent are involved: workers are fresh interpreters at the other end of a socket, so
the pool works from any thread, beside CUDA, and without importing the caller's main module.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType

from dapo_cli.reward import math_verifier
from dapo_cli.reward.worker import BEGUN, MEMORY, READY
from dapo_cli.types import Outcome, Verdict

Case = tuple[str, str]  # completion text, reference answer

MAX_BATCH_CASES = 64  # handed over in one message: enough that the message costs nothing beside the cases
MEMORY_LIMIT_BYTES = 2 << 30  # address space of a worker; one with sympy loaded needs about 0.2 GiB
START_LIMIT_S = 120.0  # from start to ready; importing sympy takes 0.3 to 2 s on an idle machine


class VerifierPool:
    """`function(text, answer) -> Verdict` over `workers` processes; `timeout_s` is the limit of one case, in seconds.

    `function` and `warm_up` (run once in each fresh worker, outside of any limit) must be importable by name from a
    module other than `__main__`. The constructor returns at once, so that workers start while the caller loads a model.

    Outcome FAILED comes with rule "timeout" (limit reached, worker killed), "crash" (the worker died), "memory"
    (the memory limit was hit) or "error" (the function raised). Other cases are never affected.
    """

    def __init__(
        self,
        workers: int,
        timeout_s: float,
        function: Callable[[str, str], Verdict] = math_verifier.verify,
        warm_up: Callable[[], None] | None = math_verifier.warm_up,
        memory_limit_bytes: int | None = MEMORY_LIMIT_BYTES,
    ) -> None:
        if workers < 1:
            raise ValueError(f"a verifier pool needs at least one worker, got {workers}")
        for target in (function, warm_up):
            if getattr(target, "__module__", None) == "__main__":
                raise ValueError(
                    f"{target!r} is defined in __main__, where workers cannot import it; move it to a module"
                )
        self._timeout_s = timeout_s
        self._setup = (function, warm_up, timeout_s, memory_limit_bytes)
        self._lock = threading.Lock()  # one round at a time
        self._closed = False
        self._workers = [_Worker(self._setup, self._timeout_s) for _ in range(workers)]

    def verify(self, cases: Sequence[Case]) -> list[Verdict]:
        """One verdict per (completion text, reference answer), in order; repeated cases are judged once.

        Raises RuntimeError when workers cannot start, or after `close`.
        """
        cases = [(text, answer) for text, answer in cases]
        distinct = list(dict.fromkeys(cases))
        with self._lock:
            if self._closed:
                raise RuntimeError("this verifier pool is closed")
            try:
                verdicts = dict(zip(distinct, self._judge(distinct), strict=True))
            except BaseException:
                self._drop_unfinished()
                raise
        return [verdicts[case] for case in cases]

    def close(self) -> None:
        """End every worker and wait until it is gone."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.kill()

    def __enter__(self) -> "VerifierPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _judge(self, cases: list[Case]) -> list[Verdict]:
        round_ = _Round(cases, deque(range(len(cases))))
        while len(round_.verdicts) < len(cases):
            self._hand_over(round_)
            now = time.monotonic()
            deadline = min((worker.deadline for worker in self._workers if not worker.idle), default=now)
            readable = wait([worker.connection for worker in self._workers], max(0.0, deadline - now))
            for slot, worker in enumerate(self._workers):
                # Everything sent is read before a limit is applied: a late reader must not blame a worker.
                ended = worker.receive(round_.verdicts) if worker.connection in readable else None
                if ended is not None:
                    self._replace(slot, ended, round_)
                elif not worker.idle and time.monotonic() >= worker.deadline and not worker.connection.poll():
                    self._replace(slot, "timeout", round_)
        return [round_.verdicts[index] for index in range(len(cases))]

    def _hand_over(self, round_: "_Round") -> None:
        """Give each idle worker a share of what is left: large at first, small at last, so that all end together."""
        for worker in self._workers:
            if round_.waiting and worker.idle:
                size = min(MAX_BATCH_CASES, -(-len(round_.waiting) // (4 * len(self._workers))))
                worker.send([round_.waiting.popleft() for _ in range(size)], round_.cases)

    def _replace(self, slot: int, rule: str, round_: "_Round") -> None:
        """Put a fresh worker in place of a dead or stuck one; the case it was at fails, the cases behind it go back."""
        worker = self._workers[slot]
        worker.kill()
        if not worker.ready:
            raise RuntimeError(
                f"a verifier worker did not start ({rule}, exit status {worker.process.returncode}); "
                "its own error output is above"
            )
        # A worker that died before it began its cases is not their doing, unless the same happens again.
        if worker.pending and (worker.begun or worker.pending[0] in round_.sent_back):
            round_.verdicts[worker.pending.popleft()] = Verdict(Outcome.FAILED, None, rule)
        elif worker.pending:
            round_.sent_back.add(worker.pending[0])
        round_.waiting.extendleft(reversed(worker.pending))
        self._workers[slot] = _Worker(self._setup, self._timeout_s)

    def _drop_unfinished(self) -> None:
        """After an interrupt: no worker may hold cases whose verdicts the next round would take for its own."""
        for slot, worker in enumerate(self._workers):
            if worker.pending or not worker.ready:
                worker.kill()
                self._workers[slot] = _Worker(self._setup, self._timeout_s)


@dataclass
class _Round:
    """One call of `verify`: `waiting` are indices of cases to hand over, next first."""

    cases: list[Case]
    waiting: deque[int]
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    sent_back: set[int] = field(default_factory=set)


class _Worker:
    """The parent's view of one process: `pending` are the cases handed over and not yet answered, oldest first."""

    def __init__(self, setup: tuple[object, ...], timeout_s: float) -> None:
        self.connection, theirs = Pipe()
        self.process = _start(theirs)
        with contextlib.suppress(OSError):  # a process that is gone shows as end of file on the next read
            self.connection.send(setup)
        self.ready = False
        self.begun = False
        self.pending: deque[int] = deque()
        self.deadline = time.monotonic() + START_LIMIT_S
        self._timeout_s = timeout_s

    @property
    def idle(self) -> bool:
        return self.ready and not self.pending

    def send(self, indices: list[int], cases: list[Case]) -> None:
        self.begun = False
        self.pending.extend(indices)
        with contextlib.suppress(OSError):
            self.connection.send([cases[index] for index in indices])
        self.deadline = time.monotonic() + self._timeout_s

    def receive(self, verdicts: dict[int, Verdict]) -> str | None:
        """Read all that has come; returns how the process ended ("memory" or "crash"), None while it lives."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if message == MEMORY:
                    return "memory"
                if message == READY:
                    self.ready = True
                elif message == BEGUN:
                    self.begun = True
                else:
                    verdicts[self.pending.popleft()] = message
                self.deadline = time.monotonic() + self._timeout_s
        except (EOFError, OSError):
            return "crash"
        return None

    def kill(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its own session, so children of a user's function go too
            self.process.wait()
        self.connection.close()


def _start(connection: Connection) -> subprocess.Popen[bytes]:
    """A fresh interpreter with this one's import path. `connection` is closed here: the worker's end is the only one,
    so that its death shows as end of file."""
    with connection:
        serve = f"from dapo_cli.reward.worker import main; main({connection.fileno()})"
        entry = f"import sys; sys.path[:] = {sys.path!r}; {serve}"
        return subprocess.Popen(
            [sys.executable, "-c", entry],
            pass_fds=[connection.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a user's function prints must not mix with the caller's output
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
