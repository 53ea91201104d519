"""Seconds by phase of a step."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import record_function


class PhaseClock:
    """Adds up the seconds of each named phase since the last `reset`.

    >>> clock = PhaseClock()
    >>> with clock("rollout"):
    ...     pass
    >>> list(clock.seconds)
    ['rollout']
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)  # 0 for a phase that did not come
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with record_function(f"dapo/{phase}"):  # a name in the profiler's trace
                yield
        finally:
            self.seconds[phase] += time.perf_counter() - start

    @property
    def total(self) -> float:
        return time.perf_counter() - self._start
