"""Traces of chosen steps by torch's profiler, one file a rank, for chrome://tracing or ui.perfetto.dev."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class StepProfiler:
    """Of no steps, it does nothing."""

    def __init__(self, folder: Path, steps: Sequence[int], rank: int) -> None:
        self.folder, self.steps, self.rank = folder, steps, rank
        self._running: profile | None = None

    def begin(self, step: int) -> None:
        if step in self.steps:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
            self._running = profile(activities=activities)
            self._running.start()

    def end(self, step: int) -> None:
        if self._running is not None:
            self._running.stop()
            self.folder.mkdir(exist_ok=True)
            self._running.export_chrome_trace(str(self.folder / f"step_{step:06d}_rank_{self.rank}.json.gz"))
            self._running = None
