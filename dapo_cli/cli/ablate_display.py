"""How an ablation's course is shown: one live table of its runs, or a line an event where there is no terminal."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dapo_cli.ablation.folder import AblationFolder
from dapo_cli.ablation.points import Ablation, Run
from dapo_cli.ablation.progress import RunProgress, read_progress
from dapo_cli.ablation.runner import Event, View
from dapo_cli.tracking.console import NOTHING, clock_time, tell

REFRESH_S = 1.0
ROWS = 30  # of a live table; a terminal shows no more
COLORS = {"done": "green", "failed": "red", "interrupted": "yellow"}


def ablation_view(ablation: Ablation, folder: AblationFolder, runs: Sequence[Run]) -> "PlainView":
    """The live table on a terminal, else plain lines. `runs` are those that this process goes through."""
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(ablation, folder, runs, console)
    return PlainView(ablation, folder, runs)


class PlainView(View):
    """A line on standard output when a run starts, and when it ends."""

    def __init__(self, ablation: Ablation, folder: AblationFolder, runs: Sequence[Run]) -> None:
        self.ablation, self.folder, self.runs = ablation, folder, runs
        self.begun: dict[str, float] = {}
        self.over = 0

    def progress(self, run: Run) -> RunProgress:
        return read_progress(self.folder.run_folder(run), run, self.ablation.match)

    def say(self, line: str) -> None:
        tell(line)

    def started(self, run: Run) -> None:
        self.begun[run.name] = time.monotonic()
        step = self.progress(run).step
        goes_on = f", going on after step {step}" if step else ""
        self.say(f"started      {run.name}{goes_on} (log: {self.folder.log_file(run)})")

    def ended(self, run: Run, event: Event, message: str) -> None:
        self.over += 1
        progress, seconds = self.progress(run), clock_time(time.monotonic() - self.begun[run.name])
        accuracy = "" if progress.held_out is None else f", held-out accuracy {progress.held_out:.1%}"
        text = f"{progress.step} steps in {seconds}{accuracy}" if event is Event.done else message
        self.say(f"{event.name:<11}  {run.name}: {text} ({self.over} of {len(self.runs)})")

    def refresh(self) -> None:
        """Between events there is nothing to say."""

    def close(self) -> None:
        """Every line is out when its call returns."""


class LiveView(PlainView):
    """A table of the runs, redrawn in place, with what is left of each and of all; events of trouble stay above it."""

    def __init__(self, ablation: Ablation, folder: AblationFolder, runs: Sequence[Run], console: Console) -> None:
        super().__init__(ablation, folder, runs)
        self.state: dict[str, str] = {}
        self.share_at_start = {run.name: self.progress(run).share for run in runs}
        self.began = self.drawn = time.monotonic()
        self.live = Live(self.table(), console=console, auto_refresh=False)
        self.live.start()

    def started(self, run: Run) -> None:
        self.begun[run.name] = time.monotonic()
        self.state[run.name] = "running"
        self.draw()

    def ended(self, run: Run, event: Event, message: str) -> None:
        self.over += 1
        self.state[run.name] = event.name
        if event is not Event.done:
            line = Text(f"{event.name}  {run.name}: {message}", style=COLORS[event.name])
            self.live.console.print(line, highlight=False)
        self.draw()

    def refresh(self) -> None:
        if time.monotonic() - self.drawn > REFRESH_S:
            self.draw()

    def close(self) -> None:
        self.draw()
        self.live.stop()

    def draw(self) -> None:
        self.live.update(self.table(), refresh=True)
        self.drawn = time.monotonic()

    def table(self) -> Table:
        progress = {run.name: self.progress(run) for run in self.runs}
        table = Table(box=None, pad_edge=False, header_style="dim", caption_justify="left", caption_style="")
        for heading in ("point", "seed", "step", "accuracy", "held-out", "ETA"):
            table.add_column(heading, justify="left" if heading == "point" else "right", no_wrap=True)
        for run in self.shown():
            now, state = progress[run.name], self.state.get(run.name, "waiting")
            eta = self.eta(run, now) if state == "running" else state
            cells = [f"{now.step}/{now.steps}", _percent(now.accuracy), _percent(now.held_out)]
            table.add_row(Text(run.point.label), str(run.seed), *cells, Text(eta, style=COLORS.get(state, "")))
        left = self.time_left(list(progress.values()))
        table.caption = f"{self.over} of {len(self.runs)} runs over, ETA of all {left}"
        return table

    def shown(self) -> list[Run]:
        """All runs; of many, those under way, then the last that ended, then those that come next."""
        if len(self.runs) <= ROWS:
            return list(self.runs)
        running = [run for run in self.runs if self.state.get(run.name) == "running"]
        ended = [run for run in self.runs if self.state.get(run.name, "running") != "running"]
        waiting = [run for run in self.runs if run.name not in self.state]
        return (running + ended[-ROWS // 2 :] + waiting)[:ROWS]

    def eta(self, run: Run, now: RunProgress) -> str:
        done = now.share - self.share_at_start[run.name]
        elapsed = time.monotonic() - self.begun[run.name]
        return clock_time(elapsed * (1 - now.share) / done) if done > 0 else NOTHING

    def time_left(self, progress: Sequence[RunProgress]) -> str:
        """By the share of all work that was done since this process began."""
        done = sum(each.share for each in progress) - sum(self.share_at_start.values())
        elapsed = time.monotonic() - self.began
        ended = {run.name for run in self.runs if self.state.get(run.name) in COLORS}
        left = sum(1 - each.share for run, each in zip(self.runs, progress, strict=True) if run.name not in ended)
        return clock_time(elapsed * left / done) if done > 0 else NOTHING


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"
