"""`dapo watch`: a run's curves and state in the terminal, redrawn while it goes on."""

import time
from pathlib import Path

from rich.console import Console, RenderableType
from rich.console import Group as Rows
from rich.live import Live
from rich.text import Text

from dapo_cli.errors import UserError
from dapo_cli.watch.frame import frame
from dapo_cli.watch.snapshot import Snapshot, read_snapshot

REFRESH_S = 1.0
READING_SHARE = 0.1  # of the time, at most, goes into reading the files of a long run


def watch(run: Path, once: bool) -> None:
    """Draw until the run is over or Ctrl-C; without a terminal to draw on, or with `once`, a single frame.

    Raises UserError for what is no run folder, and for files that are damaged.
    """
    console = Console()
    if once or not console.is_terminal or console.is_dumb_terminal:
        snapshot = read_snapshot(run)
        if snapshot is None:
            raise UserError(
                f"{run}: no run has started there: `dapo train` writes manifest.json once it has read its data"
            )
        console.print(_frame(snapshot, console))
        return
    try:
        _wait(run, console)
        _follow(run, console)
    except KeyboardInterrupt:
        return


def _wait(run: Path, console: Console) -> None:
    """Until the run has written what it is."""
    if read_snapshot(run) is not None:
        return
    with console.status(Text(f"no run yet, waiting for one to start in {run} (Ctrl-C ends this)")):
        while read_snapshot(run) is None:
            time.sleep(REFRESH_S)


def _follow(run: Path, console: Console) -> None:
    """The last frame stays on the terminal, whatever ends this."""
    shown: RenderableType = Text()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            going = True
            while going:
                began = time.monotonic()
                shown, going = _look(run, console, shown)
                live.update(shown, refresh=True)
                if going:
                    time.sleep(max(REFRESH_S, (time.monotonic() - began) / READING_SHARE))
    finally:
        console.print(shown)


def _look(run: Path, console: Console, before: RenderableType) -> tuple[RenderableType, bool]:
    """A new frame and whether there will be others. A file that cannot be read now may be under a resume's hands: the
    frame before stays, with the reason below it."""
    try:
        snapshot = read_snapshot(run)
    except (UserError, OSError) as error:
        return Rows(before, Text(str(error), style="red")), True
    if snapshot is None:
        return Text(f"{run}: its manifest.json is gone", style="red"), False
    return _frame(snapshot, console), snapshot.activity.may_go_on


def _frame(snapshot: Snapshot, console: Console) -> RenderableType:
    return frame(snapshot, console.width, console.height, ascii_only=console.options.ascii_only)
