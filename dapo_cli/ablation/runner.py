"""Runs of an ablation, each a `dapo train` in a process of its own, so many at a time; one that fails stops none."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Protocol

from dapo_cli.ablation.folder import AblationFolder, overrides_of
from dapo_cli.ablation.points import Ablation, Run
from dapo_cli.interrupt import StopRequest, kill_session, stop_with_parent

POLL_S = 0.2
KILL_AFTER_S = 10.0  # what a process is given to end at once
SIGNAL_AGAIN_S = 0.5
RUN_STOPPED, RUN_INTERRUPTED = 3, 130  # exit codes of `dapo train`
TRAIN = (sys.executable, "-m", "dapo_cli", "train")


class Event(Enum):
    started = "started"
    done = "done"
    failed = "failed"
    interrupted = "interrupted"


class View(Protocol):
    """Where an ablation's course is shown."""

    def started(self, run: Run) -> None: ...

    def ended(self, run: Run, event: Event, message: str) -> None:
        """`message` is the last that the run said."""
        ...

    def refresh(self) -> None:
        """Called again and again while runs are under way."""
        ...


@dataclass
class _Process:
    run: Run
    place: int
    popen: subprocess.Popen[bytes]
    log_start: int
    began: float


@dataclass
class Runner:
    """`places` are the environment variables of each place for a run. One signal lets the runs that are under way save
    and stop, a second one ends them at once."""

    ablation: Ablation
    folder: AblationFolder
    places: Sequence[dict[str, str]]
    view: View
    stop: StopRequest
    command: Sequence[str] = TRAIN
    outcomes: dict[str, Event] = field(default_factory=dict)

    def run(self, runs: Sequence[Run]) -> None:
        """To the end of all, or of those that had begun where a signal came. Raises KeyboardInterrupt at the second
        signal. `outcomes` has what became of each run that was started."""
        waiting, processes = deque(runs), list[_Process]()
        told = False
        try:
            while processes or (waiting and not self.stop.requested):
                if self.stop.requested and not told:
                    _signal(processes, signal.SIGTERM)
                    told = True
                free = sorted(set(range(len(self.places))) - {process.place for process in processes})
                for place in free:
                    if waiting and not self.stop.requested:
                        processes.append(self._start(waiting.popleft(), place))
                for process in [each for each in processes if each.popen.poll() is not None]:
                    processes.remove(process)
                    self._end(process)
                self.view.refresh()
                time.sleep(POLL_S)
        finally:
            self._end_at_once(processes)

    def _start(self, run: Run, place: int) -> _Process:
        log = self.folder.log_file(run)
        log.parent.mkdir(parents=True, exist_ok=True)
        recipe = [str(self.ablation.recipe_file), *overrides_of(run, self.folder.path)]
        threads = run.point.recipe.recipe.run.threads
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [*self.command, *recipe],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": str(threads or 1), **self.places[place]},
                start_new_session=True,  # the terminal's Ctrl-C reaches it through this process, once
                preexec_fn=partial(stop_with_parent, os.getpid()),
            )
            log_start = output.tell()
        self.folder.note(run, Event.started.name, pid=popen.pid)
        self.view.started(run)
        return _Process(run, place, popen, log_start, time.monotonic())

    def _end(self, process: _Process) -> None:
        status = process.popen.returncode
        message = self._last_words(process)
        if status == 0:
            event = Event.done
        elif self.stop.requested and _by_signal(status):  # it is this process that sent the signal
            event = Event.interrupted
        else:
            event = Event.failed
        more: dict[str, Any] = {"exit_code": status, "seconds": round(time.monotonic() - process.began, 1)}
        if event is not Event.done:
            more["message"] = message
        self.folder.note(process.run, event.name, **more)
        self.outcomes[process.run.name] = event
        self.view.ended(process.run, event, message)

    def _last_words(self, process: _Process) -> str:
        """The last error that a run's process printed, else its last line."""
        with self.folder.log_file(process.run).open("rb") as log:
            log.seek(process.log_start)
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("Error: ")]
        return (errors or lines or ["it printed nothing"])[-1].strip()

    def _end_at_once(self, processes: list[_Process]) -> None:
        """Of a runner that is left before its runs are over: by a second signal, or a fault of its own."""
        deadline = time.monotonic() + KILL_AFTER_S
        while any(process.popen.poll() is None for process in processes) and time.monotonic() < deadline:
            _signal(processes, signal.SIGTERM)  # again: two that come close together count as one
            time.sleep(SIGNAL_AGAIN_S)
        for process in processes:
            if process.popen.poll() is None:
                kill_session(process.popen)
            self._end(process)


def _signal(processes: Sequence[_Process], number: signal.Signals) -> None:
    for process in processes:
        if process.popen.poll() is None:
            process.popen.send_signal(number)


def _by_signal(status: int) -> bool:
    """Whether a process ended by a signal, or said that it did; a run that was not ready to save dies of it."""
    return status in (RUN_STOPPED, RUN_INTERRUPTED) or status < 0
