"""Verification in worker processes that can be killed: a hard time limit for each case, whatever the case does.

No signals, threads or forks of the parent are involved: workers are fresh interpreters at the other end of a socket, so
the pool works from any thread, beside CUDA, and without importing the caller's main module.
"""

import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from dapo_cli.reward.worker import Function
from dapo_cli.reward.worker_handle import Setup, TimedVerdict, WorkerHandle
from dapo_cli.types import Case, Outcome, Verdict

MAX_COMPLETION_CHARS = 1_000_000  # longer ones are cut from the front, since the answer is at the end
MAX_FAILED_STARTS = 2  # in one round: a machine may be out of memory or processes for a moment
MAX_BATCH_CASES = 64  # handed over in one message: enough that the message costs nothing beside the cases


class VerifierPool:
    """`function(prompt, completion, answer) -> Verdict` over `workers` processes, `timeout_s` seconds at most for each.

    `function` and `warm_up` (run once in each fresh worker, outside of any limit) must be picklable by the name of a
    module other than `__main__`. The constructor returns at once, so that workers start while the caller loads a model.
    `memory_limit_bytes` bounds a worker's address space; None does not.

    Outcome FAILED comes with rule "timeout" (limit reached, worker killed), "crash" (the worker died), "memory"
    (the memory limit was hit) or "error:KeyError" (what the function raised; the first such error is shown on stderr).
    Other cases are never affected.
    """

    def __init__(
        self,
        function: Function,
        *,
        workers: int,
        timeout_s: float,
        warm_up: Callable[[], None] | None = None,
        memory_limit_bytes: int | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"a verifier pool needs at least one worker, got {workers}")
        for target in (function, warm_up):
            if getattr(target, "__module__", None) == "__main__":
                raise ValueError(
                    f"{target!r} is defined in __main__, where workers cannot import it; move it to a module"
                )
        self._setup = Setup(function, warm_up, timeout_s, memory_limit_bytes)
        self._lock = threading.Lock()  # one round at a time
        self._closed = False
        self._fault_shown = False
        self._workers = [WorkerHandle(self._setup) for _ in range(workers)]

    def verify(self, cases: Sequence[Case]) -> list[Verdict]:
        """One verdict per case, in order; repeated cases are judged once. Of a completion longer than
        MAX_COMPLETION_CHARS only the end is judged.

        Raises RuntimeError when workers cannot start, or after `close`; a UserError of the warm-up comes through.
        """
        return [timed.verdict for timed in self.verify_timed(cases)]

    def verify_timed(
        self, cases: Sequence[Case], progress: Callable[[int], None] = lambda done: None
    ) -> list[TimedVerdict]:
        """`verify` with the seconds of each; `progress` is told how many different cases are done so far."""
        cases = [Case(prompt, text[-MAX_COMPLETION_CHARS:], answer) for prompt, text, answer in cases]
        distinct = list(dict.fromkeys(cases))
        with self._lock:
            if self._closed:
                raise RuntimeError("this verifier pool is closed")
            try:
                timed = dict(zip(distinct, self._judge(distinct, progress), strict=True))
            except BaseException:
                self._drop_unfinished()
                raise
        return [timed[case] for case in cases]

    def wait_until_ready(self) -> None:
        """Returns when every worker has warmed up. Raises as `verify` does."""
        with self._lock:
            while starting := [worker for worker in self._workers if not worker.ready]:
                for worker in _ready(starting):
                    if ended := worker.exchange({}):
                        worker.fail_to_start(ended)
                for worker in starting:
                    if worker.overdue:
                        worker.fail_to_start("timeout")

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

    def _judge(self, cases: list[Case], progress: Callable[[int], None]) -> list[TimedVerdict]:
        round_ = _Round(cases, deque(range(len(cases))))
        while len(round_.verdicts) < len(cases):
            self._hand_over(round_)
            ready = _ready(self._workers)
            for slot, worker in enumerate(self._workers):
                # Everything sent is read before a limit is applied: a late reader must not blame a worker.
                ended = worker.exchange(round_.verdicts) if worker in ready else None
                if worker.fault and not self._fault_shown:
                    print(worker.fault, file=sys.stderr, end="", flush=True)
                    self._fault_shown = True
                if ended is not None:
                    self._replace(slot, ended, round_)
                elif worker.overdue and worker not in ready:
                    self._replace(slot, "timeout", round_)
            progress(len(round_.verdicts))
        return [round_.verdicts[index] for index in range(len(cases))]

    def _hand_over(self, round_: "_Round") -> None:
        """Give each idle worker a share of what is left: large at first, small at last, so that all end together."""
        for worker in self._workers:
            if round_.waiting and worker.idle:
                size = min(MAX_BATCH_CASES, -(-len(round_.waiting) // (4 * len(self._workers))))
                worker.hand_over([round_.waiting.popleft() for _ in range(size)], round_.cases)

    def _replace(self, slot: int, rule: str, round_: "_Round") -> None:
        """Put a fresh worker in place of a dead or stuck one; the case it was at fails, the cases behind it go back."""
        worker = self._workers[slot]
        worker.kill()
        if not worker.ready:
            round_.failed_starts += 1
            if round_.failed_starts > MAX_FAILED_STARTS:
                worker.fail_to_start(rule)
        # A worker that died before it began its cases is not their doing, unless the same happens again.
        if worker.pending and (worker.begun or worker.pending[0] in round_.sent_back):
            failed = Verdict(Outcome.FAILED, None, rule)
            round_.verdicts[worker.pending.popleft()] = TimedVerdict(failed, worker.seconds_at_case)
        elif worker.pending:
            round_.sent_back.add(worker.pending[0])
        round_.waiting.extendleft(reversed(worker.pending))
        self._workers[slot] = WorkerHandle(self._setup)

    def _drop_unfinished(self) -> None:
        """After an interrupt: no worker may hold cases whose verdicts the next round would take for its own."""
        for slot, worker in enumerate(self._workers):
            if worker.pending or not worker.ready:
                worker.kill()
                self._workers[slot] = WorkerHandle(self._setup)


@dataclass
class _Round:
    """One call of `verify`: `waiting` are indices of cases to hand over, next first."""

    cases: list[Case]
    waiting: deque[int]
    verdicts: dict[int, TimedVerdict] = field(default_factory=dict)
    sent_back: set[int] = field(default_factory=set)
    failed_starts: int = 0


def _ready(workers: Sequence[WorkerHandle]) -> list[WorkerHandle]:
    """The workers that have something to tell, or take more of what they are sent; none when the next limit is over."""
    now = time.monotonic()
    deadline = min((worker.deadline for worker in workers if not worker.idle), default=now)
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.channel, worker.events, worker)
        return [key.data for key, _ in selector.select(max(0.0, deadline - now))]
