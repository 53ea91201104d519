"""What a run shows on the terminal: a live display, or one line a step where there is no terminal to draw on."""

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.console import Group as Rows
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dapo_cli.config.schema import HealthAction
from dapo_cli.health.event import EventKind, HealthEvent
from dapo_cli.protocols import Metrics, Tracker
from dapo_cli.types import Group

# heading, key, format; in the order shown
COLUMNS = (
    ("accuracy", "judged/accuracy", "{:.1%}"),
    ("reward", "judged/reward", "{:+.2f}"),
    ("informative", "sampler/informative_rate", "{:.0%}"),
    ("entropy", "policy/entropy", "{:.3f}"),
    ("length", "length/mean", "{:.1f}"),
    ("tokens/s", "tokens_per_s/rollout", "{:,.0f}"),
)
NOTHING = "-"
# What an alarm that begins does, where nothing else says so.
DONE = {
    HealthAction.checkpoint: " This step's checkpoint is kept.",
    HealthAction.pause: " The run pauses: remove the file `paused` in its folder to go on.",
}
BARS = "▁▂▃▄▅▆▇█"
SPARKLINE_STEPS = 60


def console_tracker(steps: int, console: Console | None = None) -> Tracker:
    """The live display on a terminal, else plain lines. `steps` is the number the run goes to."""
    console = console or Console()
    can_redraw = console.is_terminal and not console.is_dumb_terminal
    return LiveTracker(steps, console) if can_redraw else PlainTracker(steps)


def tell(line: str) -> None:
    """Print a line. A reader who goes away (`| head`) or a full disk behind standard output must not end a run: from
    then on nothing is printed."""
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it takes standard output's place


class StepTimes:
    """Time to go, from the mean of the steps of this process: a resumed run may be on another machine."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.seconds: list[float] = []

    def eta(self, step: int, timings: Metrics) -> str:
        self.seconds.append(timings["seconds/step"] or 0.0)
        return clock_time(sum(self.seconds) / len(self.seconds) * (self.steps - step))


class PlainTracker:
    """Aligned lines on standard output, flushed one by one, for logs and pipes."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.times = StepTimes(steps)
        self.headed = False
        self.metrics: Metrics = {}

    def step(self, step: int, metrics: Metrics) -> None:
        self.metrics = metrics

    def timings(self, step: int, timings: Metrics) -> None:
        if not self.headed:
            self._print("step", [heading for heading, _, _ in COLUMNS], "ETA")
            self.headed = True
        self._print(f"{step}/{self.steps}", figures(self.metrics | timings), self.times.eta(step, timings))

    def evaluation(self, step: int, metrics: Metrics) -> None:
        tell(evaluation_line(step, metrics))

    def rollouts(self, step: int, judged: Sequence[Group], kept_uids: set[str]) -> None:
        """Nothing of these is shown."""

    def health(self, event: HealthEvent) -> None:
        tell(health_line(event))

    def close(self) -> None:
        """Every line is out when its call returns."""

    def _print(self, step: str, cells: Sequence[str], eta: str) -> None:
        widths = (max(len(heading), 7) for heading, _, _ in COLUMNS)
        line = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        tell(f"{step:>{max(4, 2 * len(str(self.steps)) + 1)}}  {line}  {eta:>7}")


class LiveTracker:
    """Progress bar, the last step's figures and the course of accuracy, redrawn in place; evaluations stay above it."""

    def __init__(self, steps: int, console: Console) -> None:
        self.steps = steps
        self.times = StepTimes(steps)
        self.accuracies: list[float] = []
        self.metrics: Metrics = {}
        self.live = Live(self._waiting(), console=console, refresh_per_second=4)
        self.live.start()

    def step(self, step: int, metrics: Metrics) -> None:
        self.metrics = metrics
        if metrics["judged/accuracy"] is not None:
            self.accuracies.append(metrics["judged/accuracy"])

    def timings(self, step: int, timings: Metrics) -> None:
        eta = self.times.eta(step, timings)
        self.live.update(self._display(step, figures(self.metrics | timings), eta), refresh=True)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        self.live.console.print(evaluation_line(step, metrics), highlight=False)

    def rollouts(self, step: int, judged: Sequence[Group], kept_uids: set[str]) -> None:
        """Nothing of these is shown."""

    def health(self, event: HealthEvent) -> None:
        style = "dim" if event.event is EventKind.ended else "yellow"
        self.live.console.print(health_line(event), style=style, highlight=False, markup=False)

    def close(self) -> None:
        self.live.stop()

    def _waiting(self) -> Text:
        return Text("the first step is under way …", style="dim")

    def _display(self, step: int, cells: Sequence[str], eta: str) -> Rows:
        progress = Table.grid(padding=(0, 1))
        progress.add_row(
            f"step {step}/{self.steps}", ProgressBar(total=self.steps, completed=step, width=40), f"ETA {eta}"
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading, _, _ in COLUMNS:
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_row(*cells)
        return Rows(progress, table, Text(f"accuracy {sparkline(self.accuracies)}", style="green", no_wrap=True))


def figures(metrics: Metrics) -> list[str]:
    """The cells of COLUMNS; a dash where there was nothing to measure."""
    values = [(metrics[key], form) for _, key, form in COLUMNS]
    return [NOTHING if value is None else form.format(value) for value, form in values]


def evaluation_line(step: int, metrics: Metrics) -> str:
    """For example `held-out accuracy 46.1% ± 3.1 after step 0 (256 prompts, 1 sample each)`; of a table, whose
    evaluation samples nothing, `expected accuracy 7.0% after step 0 (512 prompts)`. Failed verdicts are counted behind
    the samples."""
    k = metrics["eval/samples_per_prompt"]
    kind, samples = ("expected", "") if k is None else ("held-out", f", {k} sample{'' if k == 1 else 's'} each")
    failed = f", {count:,} verdicts failed" if (count := metrics.get("eval/verifier_failed")) else ""
    prompts = metrics["eval/prompts"]
    return f"{kind} accuracy {with_error(metrics)} after step {step} ({prompts} prompts{samples}{failed})"


def health_line(event: HealthEvent) -> str:
    """For example `warning, step 3: verifier_failures: 37 of 512 verdicts failed (timeout 30, memory 7), …`, with what
    the run does about it; of an alarm that ends, `step 5: verifier_failures: its signs, there since step 3, are
    gone.`"""
    warning = "" if event.event is EventKind.ended else "warning, "
    done = DONE.get(event.action, "") if event.event is EventKind.began else ""
    return f"{warning}step {event.step}: {event.rule}: {event.message}{done}"


def with_error(metrics: Metrics) -> str:
    """Accuracy and its standard error, both in percent; the latter only where there is one."""
    error = metrics["eval/standard_error"]
    return f"{metrics['eval/accuracy']:.1%}" + ("" if error is None else f" ± {100 * error:.1f}")


def sparkline(shares: Sequence[float]) -> str:
    """Bars for the last SPARKLINE_STEPS shares; the lowest bar is 0, the highest 1.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    return "".join(BARS[min(int(share * len(BARS)), len(BARS) - 1)] for share in shares[-SPARKLINE_STEPS:])


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds as a clock shows them.

    >>> clock_time(7.6), clock_time(83), clock_time(3600 * 30 + 61)
    ('0:08', '1:23', '30:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
