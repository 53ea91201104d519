"""The child process behind `pool.VerifierPool`: judges what it is handed until its parent goes away."""

import contextlib
import os
import pickle
import signal
import socket
import time
import traceback
from base64 import b64decode
from collections.abc import Callable, Iterator

from dapo_cli.errors import UserError
from dapo_cli.reward.channel import Channel
from dapo_cli.reward.user_function import UserFunction
from dapo_cli.types import Case, Outcome, Verdict

READY = "ready"
BEGUN = "begun"
FAULT = "fault"  # before the verdict of the first case on which the function raised: what it raised
MEMORY = "memory"  # the last word of a worker that hit its memory limit
USER_ERROR = "user_error"
ORPHAN_FACTOR = 3  # a case that outlives its limit so many times has no parent left to end it

Function = Callable[[str, str, str], Verdict]  # (prompt, completion, answer)


def main(descriptor: int) -> None:
    """Serve the parent at the other end of the socket `descriptor`. Every message is a list, its kind first.

    The parent sends the pickled (function, warm_up, timeout_s, memory_limit_bytes) once, then lists of numbered cases.
    A list is answered by BEGUN and then a numbered verdict a case, in order: the next case begins the moment a verdict
    is sent, so that the parent knows which case is running and since when. A UserError of the warm-up goes in READY's
    place.
    """
    os.set_inheritable(descriptor, False)  # a child that outlives its case must not keep the line open
    channel = Channel(socket.socket(fileno=descriptor), blocking=True)
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(channel)


def _serve(channel: Channel) -> None:
    (setup,) = channel.receive()
    function, warm_up, timeout_s, memory_limit_bytes = pickle.loads(b64decode(setup))
    if warm_up is not None:
        try:
            warm_up()
        except UserError as error:
            channel.send([USER_ERROR, str(error)])
            return
    _limit_memory(memory_limit_bytes)
    channel.send([READY])
    judge, process, told = _Judge(function), os.getpid(), False
    while True:
        for cases in channel.receive():
            channel.send([BEGUN])
            for number, case in cases:
                start = time.perf_counter()
                try:
                    with _kernel_alarm(ORPHAN_FACTOR * timeout_s):
                        verdict = judge(Case(*case))
                except MemoryError:
                    channel.send([MEMORY])
                    return  # caches may be what fills the memory: only a fresh process is sure to have room
                if os.getpid() != process:
                    os._exit(0)  # a copy that the function forked and let return
                seconds = time.perf_counter() - start
                if judge.fault and not told:
                    channel.send([FAULT, judge.fault])
                    told = True
                channel.send([number, verdict.outcome.value, verdict.extracted, verdict.rule, seconds])


class _Judge:
    """`function` with its faults as verdicts; `fault` describes the first of the process, empty until then."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.fault = ""

    def __call__(self, case: Case) -> Verdict:
        try:
            return self.function(*case)
        except MemoryError:
            raise
        except Exception as error:
            self.fault = self.fault or _description(self.function, error)
            return Verdict(Outcome.FAILED, None, f"error:{type(error).__name__}")


def _description(function: Function, error: Exception) -> str:
    """The traceback as the author of the function wants it: under the file's name, from its first frame on."""
    trace = error.__traceback__
    around = {__file__, UserFunction.__call__.__code__.co_filename}
    while trace is not None and trace.tb_frame.f_code.co_filename in around:
        trace = trace.tb_next
    label = f"reward.path={function.path}" if isinstance(function, UserFunction) else "the verifier"
    return f"{label}: a verdict failed. The first error:\n" + "".join(
        traceback.format_exception(error.with_traceback(trace))
    )


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
