"""Functions for worker processes to run; in a module of their own, so that a worker can import them."""

import os
import subprocess
import time

from dapo_cli.types import Outcome, Verdict


def by_command(text: str, answer: str) -> Verdict:
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
        case ["child"]:
            child = subprocess.Popen(["sleep", "60"])
            return Verdict(Outcome.RIGHT, str(child.pid), "child")
    return Verdict(Outcome.RIGHT if text == answer else Outcome.WRONG, text, "text")


def broken_warm_up() -> None:
    raise RuntimeError("warm-up fails on purpose")
