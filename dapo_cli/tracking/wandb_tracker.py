"""Weights & Biases, beside the run folder's own files and never instead of them."""

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from queue import SimpleQueue
from typing import IO, Any

from dapo_cli.config.schema import TrackingConfig
from dapo_cli.errors import UserError
from dapo_cli.health.event import EventKind, HealthEvent
from dapo_cli.protocols import Metrics
from dapo_cli.tracking.manifest import Manifest
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.wandb_worker import GIVE_UP_S, kill_children
from dapo_cli.types import Group

CLOSE_TIMEOUT_S = GIVE_UP_S + 10.0  # of the process, which should have ended itself
MOST_TABLES = 20  # of completions over a whole run
WORKER = "dapo_cli.tracking.wandb_worker"
LOGIN_REMEDY = "set WANDB_API_KEY, run `wandb login`, or take tracking.wandb=offline and `wandb sync` later"


class WandbTracker:
    """Hands figures, and places of completions in rollouts/, to a process that speaks to wandb (`wandb_worker`).

    Some of wandb's calls wait for its server, and go on waiting where the connection is lost. In a process of their own
    they hold up no step; the end of the run waits for it CLOSE_TIMEOUT_S at most. Whatever fails there is in the run
    folder all the same.
    """

    def __init__(self, folder: RunFolder, manifest: Manifest, config: TrackingConfig) -> None:
        self.folder = folder
        self.steps_between_tables = -(-manifest["recipe"]["run"]["steps"] // MOST_TABLES)
        arguments = (str(folder.path), config.wandb.value, config.wandb_project)
        own_service = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # to be ended
        self.process = subprocess.Popen(
            python(f"worker.main(*{arguments!r})"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**own_service, "WANDB_SILENT": "true"},
            start_new_session=True,  # Ctrl-C is for the run, which then ends this process in its own time
        )
        assert self.process.stdin is not None
        self.queue: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.feeder = threading.Thread(target=feed, args=(self.queue, self.process.stdin), daemon=True)
        self.feeder.start()

    def step(self, step: int, metrics: Metrics) -> None:
        self._send(step, metrics)

    def timings(self, step: int, timings: Metrics) -> None:
        self._send(step, timings)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        self._send(step, metrics)

    def rollouts(self, step: int, judged: Sequence[Group], kept_uids: set[str]) -> None:
        """The file tracker, which comes before this one, has chosen and written the sample of this step."""
        file = self.folder.rollouts_file(step)
        if step % self.steps_between_tables == 0 and file.exists():
            self._send(step, {"rollouts": str(file)})

    def health(self, event: HealthEvent) -> None:
        level = "INFO" if event.event is EventKind.ended else "WARN"
        title = f"{event.rule} {event.event.value.replace('_', ' ')} at step {event.step}"
        self._send(event.step, {"alert": {"title": title, "text": event.message, "level": level}})

    def close(self) -> None:
        self.queue.put(None)
        try:
            self.process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_children(self.process.pid)
            self.process.kill()
            self.process.wait()
            warnings.warn(f"wandb: its process hung and was ended; all figures are in {self.folder.path}", stacklevel=2)

    def _send(self, step: int, figures: dict[str, Any]) -> None:
        if self.feeder.is_alive():
            self.queue.put({"step": step} | {key: value for key, value in figures.items() if value is not None})


def feed(queue: "SimpleQueue[dict[str, Any] | None]", pipe: IO[bytes]) -> None:
    """A JSON line each, until None or until the process is gone, which has then said why. A process that waits for its
    server leaves the pipe full: that holds up the thread of this function alone."""
    try:
        with pipe:
            while (message := queue.get()) is not None:
                pipe.write(json.dumps(message, default=float).encode() + b"\n")
                pipe.flush()
    except OSError:
        return


def python(call: str) -> list[str]:
    """A fresh interpreter with this one's import path that makes one call into `wandb_worker`."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; import {WORKER} as worker; {call}"]


def check_login() -> None:
    """Raises UserError where an online run would find no key. Whether its server takes it is not asked.

    Asked in a process of its own: wandb starts its service for it, which holds up the end of whoever started it.
    """
    asked = subprocess.run(python("print(worker.login_problem() or '')"), capture_output=True, text=True)
    problem = asked.stdout.strip() if asked.returncode == 0 else asked.stderr.strip().rpartition("\n")[2]
    if problem:
        raise UserError(f"tracking.wandb=online: {problem}; {LOGIN_REMEDY}")
