"""Weights & Biases, beside the run folder's own files and never instead of them."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from dapo_cli.config.schema import TrackingConfig
from dapo_cli.health.event import EventKind, HealthEvent
from dapo_cli.protocols import Metrics
from dapo_cli.tracking.manifest import Manifest
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.types import Group


class WandbTracker:
    """Sends figures under the run folder's name, with its manifest as the config; wandb's own files go into the folder.

    A fault of wandb (no network, no login, its service gone) is warned of once and never ends the run: the same figures
    are in the run folder.
    """

    def __init__(self, folder: RunFolder, manifest: Manifest, config: TrackingConfig) -> None:
        self.warned = False
        self.run: Any = self._attempt(lambda: start_wandb(folder, manifest, config))

    def step(self, step: int, metrics: Metrics) -> None:
        self._log(step, metrics)

    def timings(self, step: int, timings: Metrics) -> None:
        self._log(step, timings)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        self._log(step, metrics)

    def rollouts(self, step: int, judged: Sequence[Group], kept_uids: set[str]) -> None:
        """Completions stay in the run folder."""

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
                warnings.warn(f"wandb: {type(error).__name__}: {error}; the run goes on without it", stacklevel=3)
            self.warned = True
            return None


def start_wandb(folder: RunFolder, manifest: Manifest, config: TrackingConfig) -> Any:
    """Open the wandb run of this run folder, the same one again after a resume."""
    import wandb  # takes over a second, and only some runs ask for it

    run = wandb.init(
        project=config.wandb_project,
        name=folder.path.resolve().name,
        id=run_id(manifest),
        resume="allow",
        mode=config.wandb.value,
        dir=str(folder.path),
        config=manifest,
        # Capturing the terminal would break the live display; the code is in the manifest already.
        settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
    )
    # Steps that a resume repeats are logged again: wandb's own counter would refuse them.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def run_id(manifest: Manifest) -> str:
    """16 characters that stay the same over the run's resumes and differ between runs."""
    return hashlib.sha256(manifest["started"].encode()).hexdigest()[:16]
