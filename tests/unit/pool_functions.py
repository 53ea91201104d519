"""Functions for worker processes to run; in a module of their own, so that a worker can import them."""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time

from dapo_cli.types import Outcome, Verdict


def by_command(prompt: str, text: str, answer: str) -> Verdict:
    """`text` says what to do; anything else is right exactly when it is the answer."""
    match text.split():
        case ["sleep", seconds]:
            time.sleep(float(seconds))
        case ["spin"]:
            while True:
                pass
        case ["c-code"]:
            return Verdict(Outcome.RIGHT, str(len(str(7 ** (10**8)))), "finished")
        case ["exit"]:
            os._exit(3)
        case ["raise"]:
            raise ValueError("on purpose")
        case ["base-exception"]:
            raise SystemExit
        case ["memory"]:
            return Verdict(Outcome.RIGHT, str(len(bytearray(8 << 30))), "finished")
        case ["pid"]:
            return Verdict(Outcome.RIGHT, str(os.getpid()), "pid")
        case ["modules"]:
            import sys

            return Verdict(Outcome.RIGHT, " ".join(sorted(set(sys.modules) & {"torch", "sympy"})), "modules")
        case ["write-everywhere"]:
            for descriptor in range(3, 30):
                with contextlib.suppress(OSError):
                    os.write(descriptor, b"\x00\x10\x00\x00abc")
        case ["stop-later"]:
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
        case ["hold-lock-later"]:
            threading.Thread(target=lambda: re.match("(a*)*b", "a" * 60), daemon=True).start()
        case ["fork"]:
            os.fork()
        case ["child"]:
            child = subprocess.Popen(["sleep", "60"])
            return Verdict(Outcome.RIGHT, str(child.pid), "child")
    return Verdict(Outcome.RIGHT if text == answer else Outcome.WRONG, text, "text")


def warm_up_that_fails_once() -> None:
    """For the second process that tries; the file named in the environment counts them."""
    with open(os.environ["WARM_UPS_FILE"], "a+") as file:
        file.write("x")
        file.seek(0)
        if len(file.read()) == 2:
            raise RuntimeError("warm-up fails once on purpose")


def broken_warm_up() -> None:
    raise RuntimeError("warm-up fails on purpose")
