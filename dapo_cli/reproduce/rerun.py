"""Starts the recorded recipe again, in a process and a folder of its own."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dapo_cli.errors import ProcessFailed, RunStopped
from dapo_cli.interrupt import StopRequest, kill_session, stop_with_parent
from dapo_cli.reproduce.recorded import Recorded
from dapo_cli.tracking.manifest import Manifest
from dapo_cli.tracking.run_folder import RunFolder

POLL_S = 0.1
KILL_AFTER_S = 60


def rerun(recorded: Recorded, target: RunFolder, code: Path | None, check: Callable[[Manifest], None]) -> None:
    """Train `recorded.steps` steps into `target`; with the package in the folder `code`, None for the present one.

    `check` gets the rerun's own manifest, which is there before its first step, and may raise to end it: then `target`
    is removed, too. Raises RunStopped at a signal, ProcessFailed where the run fails.
    """
    command = [sys.executable, "-m", "dapo_cli", "train", str(recorded.source.recipe_file)]
    with StopRequest() as stop:
        process = subprocess.Popen(
            [*command, *recorded.overrides(target.path)],
            stdin=subprocess.DEVNULL,
            env=os.environ | _code_first(code),
            start_new_session=True,  # the terminal's Ctrl-C reaches it through this process, once
            preexec_fn=partial(stop_with_parent, os.getpid()),
        )
        try:
            _watch(process, target, check, stop)
        except BaseException:
            _end(process)
            raise
    if stop.requested and process.returncode:
        raise RunStopped(f"{stop.requested}: {target.path} is an unfinished rerun; remove it and start again")
    if process.returncode:
        raise ProcessFailed(f"the rerun in {target.path} ended with exit code {process.returncode}; its error is above")


def _watch(
    process: subprocess.Popen[bytes], target: RunFolder, check: Callable[[Manifest], None], stop: StopRequest
) -> None:
    checked = told = False
    while True:
        ended = process.poll() is not None  # before the look at the manifest: a short run may write it and end
        if not checked and target.started:
            checked = True
            try:
                check(target.read_manifest())
            except BaseException:
                kill_session(process)  # nothing of it is to be kept
                shutil.rmtree(target.path, ignore_errors=True)
                raise
        if ended:
            return
        if stop.requested and not told:
            process.send_signal(signal.SIGTERM)
            told = True
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, and end it with all that it started where it takes too long."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(KILL_AFTER_S)
    except subprocess.TimeoutExpired:
        kill_session(process)


def _code_first(code: Path | None) -> dict[str, str]:
    """Environment in which a folder's package is found before all others, the working directory's included."""
    if code is None:
        return {}
    paths = [str(code), os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
