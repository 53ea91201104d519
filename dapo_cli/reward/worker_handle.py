"""One worker process as the pool sees it: started, handed cases, read, killed."""

import contextlib
import os
import pickle
import selectors
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from dapo_cli.errors import UserError
from dapo_cli.interrupt import kill_session
from dapo_cli.reward.channel import Channel
from dapo_cli.reward.worker import BEGUN, FAULT, MEMORY, READY, USER_ERROR, Function
from dapo_cli.types import Case, Outcome, Verdict

START_LIMIT_S = 120.0  # from start to ready; importing sympy takes 0.3 to 2 s on an idle machine


class TimedVerdict(NamedTuple):
    """`seconds` in the worker; of a killed case, until it was killed."""

    verdict: Verdict
    seconds: float


class Setup(NamedTuple):
    """What every worker of a pool is given at its start."""

    function: Function
    warm_up: Callable[[], None] | None
    timeout_s: float
    memory_limit_bytes: int | None


class WorkerHandle:
    """`pending` are the cases handed over and not yet answered, oldest first; `deadline` is the oldest one's limit.
    `fault` describes the first case on which the function raised, empty until then."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        self.process = _start(theirs)
        self.channel = Channel(ours, blocking=False)
        self.ready = False
        self.begun = False
        self.fault = ""
        self.pending: deque[int] = deque()
        self.deadline = time.monotonic() + START_LIMIT_S
        self._timeout_s = setup.timeout_s
        self._send(b64encode(pickle.dumps(tuple(setup))).decode())

    @property
    def idle(self) -> bool:
        return self.ready and not self.pending

    @property
    def overdue(self) -> bool:
        return not self.idle and time.monotonic() >= self.deadline

    @property
    def events(self) -> int:
        """What to wait for: always its messages, and room to send where something is left to send."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.channel.sending else 0)

    @property
    def seconds_at_case(self) -> float:
        """Since the case that it is at began."""
        return time.monotonic() - (self.deadline - self._timeout_s)

    def hand_over(self, numbers: Sequence[int], cases: Sequence[Case]) -> None:
        self.begun = False
        self.pending.extend(numbers)
        self.deadline = time.monotonic() + self._timeout_s
        self._send([(number, cases[number]) for number in numbers])

    def exchange(self, verdicts: dict[int, TimedVerdict]) -> str | None:
        """Send what there is room for and read all that has come, verdicts by their case's number.

        Returns how the process ended ("memory" or "crash"), None while it lives. Raises the UserError of its warm-up.
        """
        try:
            self.channel.flush()
            for kind, *content in self.channel.receive():
                if kind == USER_ERROR:
                    raise UserError(content[0])
                if kind == MEMORY:
                    return "memory"
                if kind == READY:
                    self.ready = True
                elif kind == BEGUN:
                    self.begun = True
                elif kind == FAULT:
                    self.fault = str(content[0])
                elif kind == self.pending[0]:
                    verdicts[self.pending.popleft()] = _timed_verdict(*content)
                else:
                    return "crash"  # it answers what it was not asked
                self.deadline = time.monotonic() + self._timeout_s
        except (EOFError, OSError, ValueError, TypeError, IndexError):
            return "crash"  # gone, or something in it writes on the line
        return None

    def fail_to_start(self, how: str) -> NoReturn:
        self.kill()
        raise RuntimeError(
            f"a verifier worker did not start ({how}, exit status {self.process.returncode}); "
            "its own error output is above"
        )

    def kill(self) -> None:
        if self.process.returncode is None:
            kill_session(self.process)  # so that children of a user's function go, too
        self.channel.close()

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # a process that is gone shows as end of file on the next read
            self.channel.send(message)


def _timed_verdict(outcome: str, extracted: str | None, rule: str, seconds: float) -> TimedVerdict:
    return TimedVerdict(Verdict(Outcome(outcome), extracted, rule), seconds)


def _start(end: socket.socket) -> subprocess.Popen[bytes]:
    """A fresh interpreter with this one's import path. `end` is closed here: the worker's is the only one, so that its
    death shows as end of file."""
    with end:
        serve = f"from dapo_cli.reward.worker import main; main({end.fileno()})"
        entry = f"import sys; sys.path[:] = {sys.path!r}; {serve}"
        return subprocess.Popen(
            [sys.executable, "-c", entry],
            pass_fds=[end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a user's function prints must not mix with the caller's output
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
