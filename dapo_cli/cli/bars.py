"""How far a command is, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bars() -> Iterator[Callable[..., None]]:
    """`tell(name, total, *done)` on a bar of the name's own, where stderr is a terminal; what is done is added up."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        known: dict[str, TaskID] = {}

        def tell(name: str, total: int, *done: int) -> None:
            if name not in known:
                known[name] = progress.add_task(name, total=total)
            progress.update(known[name], completed=sum(done))

        yield tell
