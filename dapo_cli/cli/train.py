"""`dapo train`: start a run, or continue the one in its folder."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from dapo_cli.config.load import LoadedRecipe, load_recipe
from dapo_cli.errors import RunStopped, UserError
from dapo_cli.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from dapo_cli.build import Inputs


def train(recipe: str, overrides: Sequence[str], allow_changes: bool) -> None:
    """Run a recipe to its last step, or go on where its run folder ends.

    Raises UserError before any work for whatever is wrong with recipe, data, model or folder, RunStopped for a run that
    ended early with its state saved.
    """
    loaded = _load(recipe, overrides)
    folder = RunFolder(loaded.recipe.run.dir)
    # Another number of threads adds up in another order: a resume keeps the one that the run began with.
    recorded_threads = folder.read_manifest()["hardware"]["threads"] if folder.started else None
    _set_threads(loaded.recipe.run.threads or recorded_threads)

    from dapo_cli.build import read_inputs

    inputs = read_inputs(loaded.recipe)
    with folder.lock():
        try:
            _run(loaded, inputs, folder, allow_changes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise RunStopped(
                f"{folder.path}: the disk is full. What was saved before is whole: free some space and run the same "
                "command to go on."
            ) from error
    _print_summary(folder)


def _load(recipe: str, overrides: Sequence[str]) -> LoadedRecipe:
    """The recipe of a path, of a shipped name, or of a run folder (whose own place then is its run.dir)."""
    folder = RunFolder(recipe)
    if not folder.started:
        return load_recipe(recipe, overrides)
    if any(override.startswith("run.dir=") for override in overrides):
        raise UserError(f"{recipe} is a run folder, which is continued where it is: leave run.dir out")
    return load_recipe(str(folder.recipe_file), [*overrides, f"run.dir={folder.path}"])


def _set_threads(threads: int | None) -> None:
    """Must come before torch is imported.

    OpenMP's waiting threads spin for milliseconds by default, and any other busy process then makes every operation
    wait for a processor. Not spinning at all doubles the time of small operations. About 50 microseconds serve both.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "4000")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def _run(loaded: LoadedRecipe, inputs: "Inputs", folder: RunFolder, allow_changes: bool) -> None:
    from omegaconf import OmegaConf

    from dapo_cli.build import build_parts, build_tracker, manifest_of
    from dapo_cli.checkpoint import write_folder_atomically
    from dapo_cli.config.resolved import to_yaml
    from dapo_cli.interrupt import StopRequest
    from dapo_cli.tracking.manifest import differences, resumed
    from dapo_cli.tracking.provenance import read_code
    from dapo_cli.train import train as train_loop

    steps, code = loaded.recipe.run.steps, read_code()
    tree = cast(dict[str, Any], OmegaConf.to_container(loaded.config, enum_to_str=True))
    manifest = manifest_of(loaded, tree, inputs, code)
    recorded = folder.read_manifest() if folder.started else None
    changes = differences(recorded, manifest) if recorded else []
    if changes and not allow_changes:
        raise UserError(
            "\n  ".join([f"run.dir={folder.path} holds a run that differs:", *changes])
            + "\nGive another run.dir for a new run, or --allow-changes to go on with this one all the same."
        )
    with StopRequest() as stop, closing(build_parts(loaded.recipe, inputs, folder)) as parts:
        start_step = 0
        if recorded is None:
            folder.start(manifest, to_yaml(loaded), code.patch)
        else:
            start_step = parts.checkpoints.restore(parts.learner, parts.sampler)
            if start_step > steps:
                raise UserError(f"run.steps={steps}: the run in {folder.path} is already at step {start_step}")
            folder.rewind(start_step)
            manifest = resumed(recorded, manifest, start_step, changes)
            if changes:
                folder.change(manifest, to_yaml(loaded), code.patch, start_step)
            else:
                folder.write_manifest(manifest)
            print(f"{folder.path}: going on after step {start_step} of {steps}", file=sys.stderr)
        with closing(build_tracker(loaded.recipe, folder, manifest)) as tracker:
            train_loop(parts, tracker, start_step, stop)
        if start_step < steps or not folder.export.exists():
            write_folder_atomically(folder.export, parts.learner.export)


def _print_summary(folder: RunFolder) -> None:
    from dapo_cli.tracking.summary import summary_lines

    print("\n".join(summary_lines(folder)))
