"""Checkpoints: written whole or not at all, pruned to a number, restored exactly."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dapo_cli.distributed.world import World
from dapo_cli.errors import RankFailed, UserError
from dapo_cli.protocols import Learner, Sampler
from dapo_cli.tracking.files import sync
from dapo_cli.tracking.provenance import file_sha256
from dapo_cli.tracking.run_folder import checkpoint_steps

ALONE = World()
UNFINISHED = ".unfinished"
FOR_GOOD = "kept"  # a file of this name in a checkpoint spares it from pruning
UMASK = os.umask(0)
os.umask(UMASK)
FULL_BYTES = 1 << 20  # a disk with less free space is full: writers fill it up to their last block before they fail


class Checkpoints:
    """The folder `checkpoints/` of a run: `step_000012/` holds what the learner saves (`learner.state`) and state.json
    (the sampler: stream position, running yield, carried groups; the random state of torch).

    A checkpoint is written beside its final name, flushed to disk and then renamed, so that a folder named after a
    step is always complete. All ranks see the same folder.
    """

    def __init__(self, folder: Path, keep: int, world: World = ALONE, reach_back: int | None = None) -> None:
        """Beside the `keep` newest ones and those saved for good, two stay so that any step to come finds one that is
        `reach_back` steps older or more: the newest that is, and the next that will be. None keeps none for that."""
        self.folder = folder
        self.keep = keep
        self.world = world
        self.reach_back = reach_back

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        return checkpoint_steps(self.folder)

    def save(self, step: int, learner: Learner, sampler_state: dict[str, Any], *, for_good: bool = False) -> None:
        """`for_good` spares the checkpoint from pruning.

        Raises OSError with ENOSPC on a full disk, after removing what was half-written; older checkpoints stay.
        Collective: every rank must call.
        """

        def write(folder: Path) -> None:
            learner.save(folder)
            names = self.world.on_main(lambda: sorted(path.name for path in folder.iterdir()))
            hashes = self.world.spread(names, lambda own: [file_sha256(folder / name) for name in own])
            files = dict(zip(names, hashes, strict=True))
            self.world.on_main(
                lambda: (folder / "state.json").write_text(json.dumps(_state(step, files, sampler_state)))
            )
            if for_good:
                self.world.on_main((folder / FOR_GOOD).touch)

        self.world.on_main(self._clear)
        write_folder_atomically(self.path(step), write, self.world)
        self.world.on_main(self._prune)

    def _prune(self) -> None:
        steps = self.steps()
        spared = {step for step in steps if (self.path(step) / FOR_GOOD).exists()}
        if self.reach_back is not None:
            reached = [step for step in steps if step <= steps[-1] + 1 - self.reach_back]
            spared |= {*reached[-1:], *steps[len(reached) : len(reached) + 1]}
        for old in steps[: -self.keep]:
            if old not in spared:
                self._remove(old)

    def drop_after(self, step: int) -> None:
        """Remove the checkpoints of later steps, the newest first: a kill on the way leaves a run that goes on."""
        self._clear()
        for later in reversed([each for each in self.steps() if each > step]):
            self._remove(later)

    def _remove(self, step: int) -> None:
        """A kill on the way leaves no half of a checkpoint under its name."""
        removed = _unfinished(self.path(step))
        os.replace(self.path(step), removed)
        sync(self.folder)
        shutil.rmtree(removed)

    def _clear(self) -> None:
        """Remove what a kill left half-written or half-removed."""
        for left in self.folder.glob(f"*{UNFINISHED}"):
            shutil.rmtree(left)

    def restore(self, learner: Learner, sampler: Sampler) -> int:
        """Load the newest checkpoint; returns its step, 0 where there is none. Collective: every rank must call."""
        steps = self.world.on_main(self.steps)
        if not steps:
            return 0
        folder, state = self._checked(steps[-1])
        learner.load(folder)
        sampler.load_state_dict(state["sampler"])
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["torch_rng"]), dtype=torch.uint8))
        return steps[-1]

    def read_weights(self, step: int | None, load: Callable[[Path], None]) -> int:
        """Let `load` take the weights out of the checkpoint of `step`, None for the newest one; returns its step."""
        steps = self.steps()
        if not steps or (step is not None and step not in steps):
            wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise UserError(f"{self.folder}: {wanted}; there are {', '.join(map(str, steps)) or 'none'}")
        found = steps[-1] if step is None else step
        folder, _ = self._checked(found)
        load(folder)
        return found

    def _checked(self, step: int) -> tuple[Path, dict[str, Any]]:
        """The folder of a checkpoint and its state, whose files are as they were written; UserError where not.
        Collective: every rank must call."""
        folder = self.path(step)
        try:
            state = json.loads((folder / "state.json").read_text())
            hashes = self.world.spread(list(state["files"]), lambda own: [file_sha256(folder / name) for name in own])
            damaged = [name for name, now in zip(state["files"], hashes, strict=True) if now != state["files"][name]]
            if damaged or state["step"] != step:
                raise ValueError(f"{damaged[0]} was changed" if damaged else f"it is of step {state['step']}")
            return folder, state
        except (OSError, ValueError, LookupError, TypeError, RankFailed) as error:
            raise UserError(
                f"{folder}: the checkpoint does not load ({type(error).__name__}: {error}). "
                "Remove this folder to resume from the checkpoint before it."
            ) from error

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"


def _state(step: int, files: dict[str, str], sampler_state: dict[str, Any]) -> dict[str, Any]:
    return {
        "step": step,
        "files": files,
        "sampler": sampler_state,
        "torch_rng": torch.get_rng_state().numpy().tobytes().hex(),
    }


def _unfinished(folder: Path) -> Path:
    return folder.with_name(folder.name + UNFINISHED)


def write_folder_atomically(final: Path, write: Callable[[Path], None], world: World = ALONE) -> None:
    """Let `write` fill a folder that takes the name `final` only once everything is on disk; an existing one is
    replaced. Collective: every rank must call, and writes what its `write` does."""
    unfinished = _unfinished(final)

    def begin() -> None:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)

    def finish() -> None:
        for path in [*unfinished.rglob("*"), unfinished]:
            if path.is_file():
                path.chmod(0o666 & ~UMASK)  # safetensors lets only the owner read
            sync(path)
        if final.exists():
            shutil.rmtree(final)
        os.replace(unfinished, final)
        sync(final.parent)

    world.on_main(begin)
    try:
        write(unfinished)
        world.on_main(finish)
    except BaseException as error:
        if not world.is_main:
            raise
        full = "No space left" in str(error) or shutil.disk_usage(unfinished).free < FULL_BYTES
        shutil.rmtree(unfinished, ignore_errors=True)
        if full:  # torch and safetensors say so in exceptions of their own
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final)) from error
        raise
