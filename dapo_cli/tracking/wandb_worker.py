"""The process that speaks to Weights & Biases for a run: figures come on its standard input, a JSON line each."""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dapo_cli.config.schema import WandbMode
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.manifest import Manifest
from dapo_cli.tracking.run_folder import RunFolder

INIT_TIMEOUT_S = 10.0  # of an answer from the server; wandb's own limit is 90 s
FINISH_TIMEOUT_S = 20.0  # for what is not sent yet at the end; wandb waits for ever
GIVE_UP_S = 30.0  # after the last line: where the server is gone, an artifact makes wandb wait beyond its own limit
MOST_CHARACTERS = 8000  # of one text in a table


class Worker:
    """Opens the wandb run of a run folder, with its manifest as the config and, beside recipe, patch and lock file, as
    an artifact; wandb's own files go into the folder.

    A fault of wandb (no network, its service gone) is told once, and what comes after is tried all the same. Where the
    server does not answer at the start, wandb's files are kept for a later `wandb sync`.
    """

    def __init__(self, folder: RunFolder, mode: WandbMode, project: str) -> None:
        self.folder = folder
        self.warned = False
        manifest = folder.read_manifest()
        self.run = self._attempt(lambda: start_wandb(folder, manifest, mode, project))
        if self.run is None and mode is WandbMode.online:
            self.run = self._attempt(lambda: start_offline(folder, manifest, project))
        if self.run is not None:
            self._attempt(lambda: self.run.log_artifact(manifest_artifact(folder, manifest)))

    def work(self, messages: Iterable[dict[str, Any]]) -> None:
        """Log the figures of each message. "rollouts" is a file of completions, which becomes a table; "alert" comes
        alone."""
        if self.run is None:
            return
        for figures in messages:
            self._attempt(partial(self._log, figures))
        self._attempt(self.run.finish)

    def _log(self, figures: dict[str, Any]) -> None:
        if alert := figures.get("alert"):
            self.run.alert(**alert)
            return
        if file := figures.get("rollouts"):
            figures["rollouts"] = completions_table(read_lines(Path(file)))
        self.run.log(figures)

    def _attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            if not self.warned:
                reason, place = str(error).partition("\n")[0], self.folder.path
                print(
                    f"Warning: wandb: {type(error).__name__}: {reason}; the run goes on. Its figures are in {place}; "
                    f"what wandb keeps of them is in {place}/wandb, for `wandb sync`",
                    file=sys.stderr,
                )
            self.warned = True
            return None


def start_wandb(folder: RunFolder, manifest: Manifest, mode: WandbMode, project: str) -> Any:
    """Open the wandb run of this run folder, the same one again after a resume."""
    import wandb

    os.environ.setdefault("WANDB_DATA_DIR", str((folder.path / "wandb").resolve()))  # of artifacts; else ~/.local/share
    run = wandb.init(
        project=project,
        name=folder.path.resolve().name,
        id=run_id(manifest),
        resume="allow",
        mode=mode.value,
        dir=str(folder.path),
        config=manifest,
        settings=wandb.Settings(
            console="off",  # capturing the terminal would break the live display
            silent=True,
            disable_git=True,  # the code is in the manifest already
            save_code=False,
            init_timeout=INIT_TIMEOUT_S,
            finish_timeout=FINISH_TIMEOUT_S,
            finish_timeout_raises=True,
        ),
    )
    # Steps that a resume repeats are logged again: wandb's own counter would refuse them.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def start_offline(folder: RunFolder, manifest: Manifest, project: str) -> Any:
    """After a start that failed: wandb's service holds on to the run's id until it is ended."""
    import wandb

    wandb.teardown()
    return start_wandb(folder, manifest, WandbMode.offline, project)


def manifest_artifact(folder: RunFolder, manifest: Manifest) -> Any:
    """What the run is, as files. wandb makes a new version of it where a file differs, as the manifest does after each
    resume."""
    import wandb

    artifact = wandb.Artifact(f"run-manifest-{run_id(manifest)}", type="run-manifest")
    for file in (folder.manifest_file, folder.recipe_file, folder.patch_file, folder.requirements_file):
        if file.exists():
            artifact.add_file(str(file))
    return artifact


def completions_table(records: Sequence[dict[str, Any]]) -> Any:
    """Records of rollouts/ as a table; long texts lose their middle."""
    import wandb

    columns: list[str | int] = list(records[0]) if records else []
    return wandb.Table(columns=columns, data=[[_bounded(value) for value in record.values()] for record in records])


def _bounded(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= MOST_CHARACTERS:
        return value
    half = MOST_CHARACTERS // 2
    return f"{value[:half]} [… {len(value) - 2 * half} characters …] {value[-half:]}"


def login_problem() -> str | None:
    """Why an online run could not log in, None where wandb has a key."""
    import wandb

    wandb.setup(wandb.Settings(silent=True, mode="online"))  # whatever WANDB_MODE says, as for the run
    try:
        return None if wandb.login(prompt=False, verify=False) else "wandb has no API key"
    except wandb.errors.AuthenticationError as error:
        return str(error)


def run_id(manifest: Manifest) -> str:
    """16 characters that stay the same over the run's resumes and differ between runs."""
    return hashlib.sha256(manifest["started"].encode()).hexdigest()[:16]


def main(folder: str, mode: str, project: str) -> None:
    """Ends GIVE_UP_S after its input does, whatever wandb waits for, and also where the run was killed."""
    queue: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    threading.Thread(target=receive, args=(sys.stdin, queue, folder), daemon=True).start()
    Worker(RunFolder(folder), WandbMode(mode), project).work(iter(queue.get, None))


def receive(lines: Iterable[str], queue: "SimpleQueue[dict[str, Any] | None]", folder: str) -> None:
    for line in lines:
        queue.put(json.loads(line))
    queue.put(None)
    time.sleep(GIVE_UP_S)
    print(
        f"Warning: wandb: not done {GIVE_UP_S:.0f} s after the run's end, so ended. All figures are in {folder}; what "
        f"wandb kept of them is in {folder}/wandb, for `wandb sync`",
        file=sys.stderr,
        flush=True,
    )
    kill_children(os.getpid())
    os._exit(1)


def kill_children(pid: int) -> None:
    """wandb's service, which outlives its parent and goes on trying. Linux alone lists the children of a process."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            os.kill(int(child), signal.SIGKILL)
