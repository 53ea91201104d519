"""Weights & Biases, beside the run folder's own files and never instead of them."""

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from dapo_cli.config.schema import TrackingConfig, WandbMode
from dapo_cli.errors import UserError
from dapo_cli.health.event import EventKind, HealthEvent
from dapo_cli.protocols import Metrics
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.manifest import Manifest
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.types import Group

INIT_TIMEOUT_S = 10.0  # of an answer from the server; wandb's own 90 s would hold up the run
FINISH_TIMEOUT_S = 30.0  # for what is not sent yet at the end; wandb waits for ever
MOST_TABLES = 20  # of completions over a whole run
MOST_CHARACTERS = 8000  # of one text in them
LOGIN_REMEDY = "set WANDB_API_KEY, run `wandb login`, or take tracking.wandb=offline and `wandb sync` later"


class WandbTracker:
    """Sends figures under the run folder's name, with its manifest as the config and, beside recipe, patch and lock
    file, as an artifact, and tables of the completions in rollouts/; wandb's own files go into the folder.

    A fault of wandb (no network, its service gone) is warned of once and never ends the run: the same figures are in
    the run folder. Where the server does not answer at the start, wandb's files are kept for a later `wandb sync`.
    """

    def __init__(self, folder: RunFolder, manifest: Manifest, config: TrackingConfig) -> None:
        self.folder = folder
        self.steps_between_tables = -(-manifest["recipe"]["run"]["steps"] // MOST_TABLES)
        self.warned = False
        self.run = self._attempt(lambda: start_wandb(folder, manifest, config, config.wandb))
        if self.run is None and config.wandb is WandbMode.online:
            self.run = self._attempt(lambda: start_offline(folder, manifest, config))
        if self.run is not None:
            self._attempt(lambda: self.run.log_artifact(manifest_artifact(folder, manifest)))

    def step(self, step: int, metrics: Metrics) -> None:
        self._log(step, metrics)

    def timings(self, step: int, timings: Metrics) -> None:
        self._log(step, timings)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        self._log(step, metrics)

    def rollouts(self, step: int, judged: Sequence[Group], kept_uids: set[str]) -> None:
        """The file tracker, which comes before this one, has chosen and written the sample of this step."""
        file = self.folder.rollouts_file(step)
        if self.run is not None and step % self.steps_between_tables == 0 and file.exists():
            self._attempt(lambda: self.run.log({"step": step, "rollouts": completions_table(read_lines(file))}))

    def health(self, event: HealthEvent) -> None:
        if self.run is not None:
            level = "INFO" if event.event is EventKind.ended else "WARN"
            title = f"{event.rule} {event.event.value.replace('_', ' ')} at step {event.step}"
            self._attempt(lambda: self.run.alert(title=title, text=event.message, level=level))

    def close(self) -> None:
        if self.run is not None:
            self._attempt(self.run.finish)

    def _log(self, step: int, metrics: Metrics) -> None:
        if self.run is not None:
            measured = {key: value for key, value in metrics.items() if value is not None}
            self._attempt(lambda: self.run.log({"step": step, **measured}))

    def _attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            if not self.warned:
                reason, place = str(error).partition("\n")[0], self.folder.path
                warnings.warn(
                    f"wandb: {type(error).__name__}: {reason}; the run goes on. Its figures are in {place}; what wandb "
                    f"keeps of them is in {place}/wandb, for `wandb sync`",
                    stacklevel=3,
                )
            self.warned = True
            return None


def check_login() -> None:
    """Raises UserError where an online run would find no key. Whether its server takes it is not asked."""
    import wandb

    wandb.setup(wandb.Settings(silent=True, mode="online"))  # whatever WANDB_MODE says, as for the run
    try:
        found = wandb.login(prompt=False, verify=False)
    except wandb.errors.AuthenticationError as error:
        raise UserError(f"tracking.wandb=online: {error}; {LOGIN_REMEDY}") from None
    if not found:
        raise UserError(f"tracking.wandb=online, but wandb has no API key; {LOGIN_REMEDY}")


def start_wandb(folder: RunFolder, manifest: Manifest, config: TrackingConfig, mode: WandbMode) -> Any:
    """Open the wandb run of this run folder, the same one again after a resume."""
    import wandb  # takes over a second, and only some runs ask for it

    os.environ.setdefault("WANDB_DATA_DIR", str((folder.path / "wandb").resolve()))  # of artifacts; else ~/.local/share
    run = wandb.init(
        project=config.wandb_project,
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


def start_offline(folder: RunFolder, manifest: Manifest, config: TrackingConfig) -> Any:
    """After a start that failed: wandb's service holds on to the run's id until it is ended."""
    import wandb

    wandb.teardown()
    return start_wandb(folder, manifest, config, WandbMode.offline)


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


def run_id(manifest: Manifest) -> str:
    """16 characters that stay the same over the run's resumes and differ between runs."""
    return hashlib.sha256(manifest["started"].encode()).hexdigest()[:16]
