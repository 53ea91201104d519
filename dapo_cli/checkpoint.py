"""Checkpoints: written whole or not at all, pruned to a number, restored exactly."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dapo_cli.errors import UserError
from dapo_cli.protocols import Learner, Sampler
from dapo_cli.tracking.files import sync
from dapo_cli.tracking.provenance import file_sha256

STEP_FOLDER = re.compile(r"step_(\d+)")
UNFINISHED = ".unfinished"
UMASK = os.umask(0)
os.umask(UMASK)
FULL_BYTES = 1 << 20  # a disk with less free space is full: writers fill it up to their last block before they fail


class Checkpoints:
    """The folder `checkpoints/` of a run: `step_000012/` holds model.safetensors, optimizer.pt and state.json (the
    sampler: stream position, running yield, carried groups; the random state of torch).

    A checkpoint is written beside its final name, flushed to disk and then renamed, so that a folder named after a
    step is always complete.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for name in os.listdir(self.folder) if (match := STEP_FOLDER.fullmatch(name)))

    def save(self, step: int, learner: Learner, sampler: Sampler) -> None:
        """Raises OSError with ENOSPC on a full disk, after removing what was half-written; older checkpoints stay."""
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self._path(step)

        def write(folder: Path) -> None:
            learner.save(folder)
            state = {
                "step": step,
                "files": {path.name: file_sha256(path) for path in sorted(folder.iterdir())},
                "sampler": sampler.state_dict(),
                "torch_rng": torch.get_rng_state().numpy().tobytes().hex(),
            }
            (folder / "state.json").write_text(json.dumps(state))

        write_folder_atomically(final, write)
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self._path(old))

    def restore(self, learner: Learner, sampler: Sampler) -> int:
        """Load the newest checkpoint; returns its step, 0 where there is none."""
        steps = self.steps()
        if not steps:
            return 0
        with self._reading(steps[-1]) as (folder, state):
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
        with self._reading(found) as (folder, _):
            load(folder)
        return found

    @contextmanager
    def _reading(self, step: int) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The folder of a checkpoint and its state, whose files are as they were written; UserError where not."""
        folder = self._path(step)
        try:
            state = json.loads((folder / "state.json").read_text())
            damaged = [name for name, sha256 in state["files"].items() if file_sha256(folder / name) != sha256]
            if damaged or state["step"] != step:
                raise ValueError(f"{damaged[0]} was changed" if damaged else f"it is of step {state['step']}")
            yield folder, state
        except UserError:
            raise
        except Exception as error:  # torch, safetensors and json: each has its own types for a damaged file
            raise UserError(
                f"{folder}: the checkpoint does not load ({type(error).__name__}: {error}). "
                "Remove this folder to resume from the checkpoint before it."
            ) from error

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"


def write_folder_atomically(final: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder that takes the name `final` only once everything is on disk; an existing one is
    replaced."""
    unfinished = final.with_name(final.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        write(unfinished)
        for path in [*unfinished.rglob("*"), unfinished]:
            if path.is_file():
                path.chmod(0o666 & ~UMASK)  # safetensors lets only the owner read
            sync(path)
    except BaseException as error:
        full = "No space left" in str(error) or shutil.disk_usage(unfinished).free < FULL_BYTES
        shutil.rmtree(unfinished, ignore_errors=True)
        if full:  # torch and safetensors say so in exceptions of their own
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final)) from error
        raise
    if final.exists():
        shutil.rmtree(final)
    os.replace(unfinished, final)
    sync(final.parent)
