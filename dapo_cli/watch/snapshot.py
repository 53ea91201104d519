"""What a run is and where it stands, from its folder's files, at one moment."""

import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dapo_cli.errors import UserError
from dapo_cli.report.runs import Record, Run, State, read_run
from dapo_cli.tracking.console import COLUMNS
from dapo_cli.tracking.lock import lock_held
from dapo_cli.tracking.run_folder import RunFolder, checkpoint_steps


class Activity(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    """By an alarm, until a person removes the file `paused`."""
    STOPPED = "stopped"
    FINISHED = "finished"
    UNKNOWN = "not finished"
    """The file system has no locks, so nobody can tell whether a process is at it."""

    @property
    def may_go_on(self) -> bool:
        return self in (Activity.RUNNING, Activity.PAUSED, Activity.UNKNOWN)


@dataclass(frozen=True)
class Snapshot:
    """`checkpoint` is the step of the newest one, `idle_s` the seconds since the last step ended; None without one."""

    run: Run
    activity: Activity
    checkpoint: int | None
    idle_s: float | None

    @property
    def recipe(self) -> Record:
        assert self.run.recipe is not None, "a run that started has a recipe"
        return self.run.recipe

    @property
    def step(self) -> int:
        return self.run.steps[-1]["step"] if self.run.steps else 0

    @property
    def steps(self) -> int:
        """How many steps the run goes to."""
        return self.recipe["run"]["steps"]


def read_snapshot(path: Path) -> Snapshot | None:
    """None where a run may begin but has not written its manifest yet.

    Raises UserError for what is no run folder, and for files that are damaged.
    """
    folder = RunFolder(path)
    held = lock_held(folder.lock_file)  # before the files are read: of a run that is over, these are then the last
    run = read_run(folder.path, str(path), figures=[key for _, key, _ in COLUMNS])
    if run.state is State.MISSING:
        _check_vacant(folder)
        return None
    checkpoints = checkpoint_steps(folder.checkpoints)
    newest = checkpoints[-1] if checkpoints else None
    return Snapshot(run, _activity(folder, held), newest, _seconds_since(folder.timings_file))


def _activity(folder: RunFolder, held: bool | None) -> Activity:
    if held:
        return Activity.PAUSED if folder.paused_file.exists() else Activity.RUNNING
    if folder.finished:
        return Activity.FINISHED
    return Activity.UNKNOWN if held is None else Activity.STOPPED


def _check_vacant(folder: RunFolder) -> None:
    """A run can begin where nothing is, or where one holds or held the lock; other folders are a mistake."""
    if folder.path.is_dir() and not folder.lock_file.exists() and any(folder.path.iterdir()):
        raise UserError(f"{folder.path}: no run folder (it has no manifest.json); `dapo watch` takes one run's folder")
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path}: is a file; `dapo watch` takes a run's folder (key run.dir)")


def _seconds_since(file: Path) -> float | None:
    try:
        return max(0.0, time.time() - file.stat().st_mtime)
    except FileNotFoundError:
        return None
