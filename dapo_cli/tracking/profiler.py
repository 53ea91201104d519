"""Traces of chosen steps by torch's profiler, one file a rank, for chrome://tracing or ui.perfetto.dev."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class StepProfiler:
    """Of no steps, it does nothing."""

    def __init__(self, folder: Path, steps: Sequence[int], rank: int) -> None:
        self.folder, self.steps, self.rank = folder, steps, rank

    @contextmanager
    def __call__(self, step: int) -> Iterator[None]:
        if step not in self.steps:
            yield
            return
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        trace = profile(activities=activities)
        try:
            with trace:
                yield
        finally:
            self.folder.mkdir(exist_ok=True)
            trace.export_chrome_trace(str(self.folder / f"step_{step:06d}_rank_{self.rank}.json.gz"))
