"""The child process behind `pool.VerifierPool`: judges what it is handed until its parent goes away."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from dapo_cli.types import Outcome, Verdict

READY = "ready"
BEGUN = "begun"
MEMORY = "memory"  # the last word of a worker that hit its memory limit
ORPHAN_FACTOR = 3  # a case that outlives its limit so many times has no parent left to end it


def main(descriptor: int) -> None:
    """Serve the parent at the other end of the socket `descriptor`.

    The parent sends (function, warm_up, timeout_s, memory_limit_bytes) once, then lists of cases. A list is answered by
    BEGUN and then one Verdict a case, in order: the next case begins the moment a verdict is sent, so that the parent
    knows which case is running and since when.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        function, warm_up, timeout_s, memory_limit_bytes = connection.recv()
        if warm_up is not None:
            warm_up()
        _limit_memory(memory_limit_bytes)
        connection.send(READY)
        while True:
            cases = connection.recv()
            connection.send(BEGUN)
            for case in cases:
                try:
                    with _kernel_alarm(ORPHAN_FACTOR * timeout_s):
                        verdict = _judge(function, case)
                except MemoryError:
                    connection.send(MEMORY)
                    return  # caches may be what fills the memory: only a fresh process is sure to have room
                connection.send(verdict)


def _judge(function: Callable[[str, str], Verdict], case: tuple[str, str]) -> Verdict:
    try:
        return function(*case)
    except MemoryError:
        raise
    except Exception:
        return Verdict(Outcome.FAILED, None, "error")


@contextlib.contextmanager
def _kernel_alarm(seconds: float) -> Iterator[None]:
    """End this process by the kernel after `seconds`, even inside C code that never returns to the interpreter.

    The parent kills a worker long before. This is for the worker whose parent was itself killed: a busy worker does not
    see the end of the pipe. (A parent-death signal would not do: it fires when the starting *thread* ends.)
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(limit_bytes: int | None) -> None:
    if limit_bytes is None:
        return
    import resource

    with contextlib.suppress(ValueError, OSError):  # a lower limit that the system already sets stays in force
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
