"""Ctrl-C, SIGTERM and a closed terminal end a run after the current step, with a checkpoint; a second one ends it at
once."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType


class StopRequest:
    """Context manager; `requested` names the first signal. The previous handlers return on exit.

    A `quiet` one is of one process among several: whoever started them speaks, and ends them at a second signal.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.requested: str | None = None

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.requested and self.quiet:
            return
        if self.requested:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name
        if not self.quiet:
            say_stopping(self.requested)


def say_stopping(name: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be what went away
        print(
            f"\n{name}: stopping after this step, with a checkpoint (again: stop at once)", file=sys.stderr, flush=True
        )


_LIBC = ctypes.CDLL(None)  # found before a fork: nothing may be loaded between it and exec
_PR_SET_PDEATHSIG = 1
_ORPHANED = 130


def stop_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """In a new process of the process `parent` (fit for a `preexec_fn`): on Linux the kernel sends it a signal, which
    asks a run to save and stop, when its parent dies, however it dies."""
    with contextlib.suppress(AttributeError):
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it was dead before
        os._exit(_ORPHANED)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """End a process of a session of its own with all that it started there, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
