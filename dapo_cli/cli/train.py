"""`dapo train`: start a run, or continue the one in its folder."""

import errno
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from dapo_cli.config.load import LoadedRecipe, load_recipe
from dapo_cli.config.schema import SingleLearner, WandbMode
from dapo_cli.distributed.launch import (
    accept_signals,
    check_launcher,
    launch,
    leave,
    reporting_failure,
    reports_failures,
    started_by_launcher,
)
from dapo_cli.errors import ProcessFailed, RunStopped, UserError
from dapo_cli.tracking.run_folder import RunFolder, checkpoint_steps

SHOWN_FILES = 10

if TYPE_CHECKING:
    from dapo_cli.distributed.world import World
    from dapo_cli.inputs import Inputs
    from dapo_cli.tracking.manifest import Manifest


def train(recipe: str, overrides: Sequence[str], allow_changes: bool) -> None:
    """Run a recipe to its last step, or go on where its run folder ends.

    Raises UserError before any work for whatever is wrong with recipe, data, model or folder, RunStopped for a run that
    ended early with its state saved.
    """
    loaded = _load(recipe, overrides)
    folder = RunFolder(loaded.recipe.run.dir)
    if started_by_launcher():
        with reporting_failure():
            _check_start(loaded)
            check_launcher(loaded.recipe.launch, single=isinstance(loaded.recipe.learner, SingleLearner))
            _train(loaded, folder, allow_changes)
            leave(0)
    _check_start(loaded)
    processes = loaded.recipe.launch.processes_per_node * loaded.recipe.launch.nodes
    if processes > 1:
        _launch(loaded, folder, [recipe, *overrides, *(["--allow-changes"] if allow_changes else [])])
    else:
        _train(loaded, folder, allow_changes)


def _check_start(loaded: LoadedRecipe) -> None:
    """What costs nothing to know beforehand: raises UserError for a run that must not start here."""
    _check_clean(loaded)
    if loaded.recipe.tracking.wandb is WandbMode.online and os.environ.get("RANK", "0") == "0":
        from dapo_cli.tracking.wandb_tracker import check_login

        check_login()


def _check_clean(loaded: LoadedRecipe) -> None:
    """Where run.require_clean asks for it: raises UserError naming the files whose changes no commit holds."""
    from dapo_cli.tracking.provenance import checkout_of, uncommitted

    files = uncommitted() if loaded.recipe.run.require_clean else []
    if files:
        named = "".join(f"\n  {name}" for name in files[:SHOWN_FILES])
        more = f"\n  and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
        raise UserError(
            f"run.require_clean=true, but the code in {checkout_of()} has uncommitted changes:{named}{more}\n"
            "Commit or stash them, or run with run.require_clean=false, which keeps them in code.patch."
        )


def _launch(loaded: LoadedRecipe, folder: RunFolder, arguments: list[str]) -> None:
    """Check everything once here, so that what is wrong is said once, and before any process starts."""
    _read_inputs(loaded, folder)
    try:
        arguments = ["-m", "dapo_cli", "train", *arguments]
        launch(loaded.recipe.launch, arguments, loaded.recipe.run.threads, name=loaded.recipe.run.dir)
    except ProcessFailed as error:
        saved = checkpoint_steps(folder.checkpoints)
        remedy = "\nThe same command goes on from the last checkpoint." if saved else ""
        raise ProcessFailed(f"{error}{remedy}") from error


def _train(loaded: LoadedRecipe, folder: RunFolder, allow_changes: bool) -> None:
    """This process's part of the run, which may be all of it."""
    set_threads(loaded.recipe.run.threads or _recorded_threads(folder))

    from dapo_cli.cli.check import warn
    from dapo_cli.distributed.world import join_world

    inputs = _read_inputs(loaded, folder)
    world = join_world(with_group=not isinstance(loaded.recipe.learner, SingleLearner))
    world.on_main(lambda: warn(loaded.name, loaded.recipe, inputs))
    with ExitStack() as stack:
        world.on_main(lambda: stack.enter_context(folder.lock()))
        _check_ranks(loaded, inputs, folder, world)
        try:
            _run(loaded, inputs, folder, allow_changes, world, stack)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise RunStopped(
                f"{folder.path}: the disk is full. What was saved before is whole: free some space and run the same "
                "command to go on."
            ) from error
        world.barrier()
    if world.is_main:
        _print_summary(folder)


def _read_inputs(loaded: LoadedRecipe, folder: RunFolder) -> "Inputs":
    """A run that goes on reads model and data of the hub at the commits that it began with."""
    from dapo_cli.inputs import read_inputs
    from dapo_cli.tracking.pins import pinned

    return read_inputs(pinned(loaded.recipe, folder.read_manifest()) if folder.started else loaded.recipe)


def _load(recipe: str, overrides: Sequence[str]) -> LoadedRecipe:
    """The recipe of a path, of a shipped name, or of a run folder (whose own place then is its run.dir)."""
    folder = RunFolder(recipe)
    if not folder.started:
        return load_recipe(recipe, overrides)
    if any(override.startswith("run.dir=") for override in overrides):
        raise UserError(f"{recipe} is a run folder, which is continued where it is: leave run.dir out")
    return load_recipe(str(folder.recipe_file), [*overrides, f"run.dir={folder.path}"])


def _check_ranks(loaded: LoadedRecipe, inputs: "Inputs", folder: RunFolder, world: "World") -> None:
    """All ranks must run the same recipe, data and code, and see the same run folder. Raises UserError."""
    if world.size == 1:
        return
    from dapo_cli.tabular.table import Table
    from dapo_cli.tracking.manifest import differences
    from dapo_cli.tracking.provenance import package_versions, read_code

    assert not isinstance(inputs.pretrained, Table), "a table is trained by one process"
    own = {
        "recipe": _tree(loaded),
        "data": inputs.data_record,
        "model": {"commit": inputs.pretrained.commit, "config": inputs.pretrained.config.to_dict()},
        "code": read_code().record,
        "packages": package_versions(),
    }
    first, lock = world.gather((own, folder.lock_file.read_bytes() if world.is_main else b""))[0]

    def check() -> None:
        different = [line.partition(":")[0] for line in differences(first, own)]
        if different:
            raise UserError(
                f"rank {world.rank} differs from rank 0 in {', '.join(different)}: start the same on all nodes"
            )
        for _ in range(20):  # a shared file system may take a while to show a new file
            if folder.lock_file.exists() and folder.lock_file.read_bytes() == lock:
                return
            time.sleep(0.5)
        raise UserError(f"run.dir={folder.path}: rank {world.rank} sees another folder there than rank 0; share it")

    world.everywhere(check)


def _tree(loaded: LoadedRecipe) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return cast(dict[str, Any], OmegaConf.to_container(loaded.config, enum_to_str=True))


def _recorded_threads(folder: RunFolder) -> int | None:
    """Another number of threads adds up in another order: a resume of one process keeps the one that it began with."""
    if started_by_launcher() or not folder.started:
        return None
    manifest = folder.read_manifest()
    return manifest["hardware"]["threads"] if manifest["processes"] == 1 else None


def set_threads(threads: int | None) -> None:
    """Must come before torch is imported.

    OpenMP's waiting threads spin for milliseconds by default, and any other busy process then makes every operation
    wait for a processor. Not spinning at all doubles the time of small operations. About 50 microseconds serve both.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "4000")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def _run(
    loaded: LoadedRecipe, inputs: "Inputs", folder: RunFolder, allow_changes: bool, world: "World", stack: ExitStack
) -> None:
    """`stack` closes the parts: last of all, since some engines take torch's process group with them."""
    from dapo_cli.build import build_parts, build_tracker
    from dapo_cli.checkpoint import Checkpoints
    from dapo_cli.export import export
    from dapo_cli.interrupt import StopRequest
    from dapo_cli.rollback import train_to_the_end
    from dapo_cli.tracking.trackers import Trackers

    steps = loaded.recipe.run.steps
    begin = world.on_main(lambda: _compare(loaded, inputs, folder, allow_changes, world))
    with StopRequest(quiet=reports_failures() or not world.is_main) as stop:
        parts = stack.enter_context(closing(build_parts(loaded.recipe, inputs, folder, world)))
        accept_signals()
        start_step = parts.checkpoints.restore(parts.learner, parts.sampler) if begin.recorded else 0
        manifest = world.on_main(lambda: _open(loaded, folder, begin, start_step))
        tracker = build_tracker(loaded.recipe, folder, manifest) if world.is_main else Trackers([])
        with closing(tracker):
            last_step, budget = train_to_the_end(parts, tracker, folder, start_step, stop)
        if world.is_main and budget.spent:
            print(f"{budget.spent} is spent: the run ends with step {last_step} of {steps}", file=sys.stderr)
        if start_step < last_step or not world.on_main(folder.export.exists):
            checkpoints = Checkpoints(folder.checkpoints, loaded.recipe.checkpoint.keep)
            world.on_main(lambda: export(loaded.recipe, inputs.pretrained, checkpoints, None, folder.export))


@dataclass(frozen=True)
class _Begin:
    """The manifest of this start, the one found in the folder (None: a new run), and how they differ."""

    manifest: "Manifest"
    patch: bytes
    recorded: "Manifest | None"
    changes: list[str]


def _compare(loaded: LoadedRecipe, inputs: "Inputs", folder: RunFolder, allow_changes: bool, world: "World") -> _Begin:
    """Raises UserError where the folder holds another run."""
    from dapo_cli.inputs import manifest_of
    from dapo_cli.preflight.dapo_likeness import likeness
    from dapo_cli.tracking.manifest import differences
    from dapo_cli.tracking.provenance import read_code

    code = read_code()
    verdict = {"algorithm": likeness(loaded.recipe).record}
    manifest = manifest_of(loaded, _tree(loaded), inputs, code, world.size) | verdict
    recorded = folder.read_manifest() if folder.started else None
    changes = differences(recorded, manifest) if recorded else []
    if changes and not allow_changes:
        raise UserError(
            "\n  ".join([f"run.dir={folder.path} holds a run that differs:", *changes])
            + "\nGive another run.dir for a new run, or --allow-changes to go on with this one all the same."
        )
    return _Begin(manifest, code.patch, recorded, changes)


def _open(loaded: LoadedRecipe, folder: RunFolder, begin: _Begin, start_step: int) -> "Manifest":
    """Lay the folder out for a new run, or rewind it to where the run goes on. Returns the manifest that holds."""
    from dapo_cli.config.resolved import to_yaml
    from dapo_cli.tracking.manifest import resumed
    from dapo_cli.tracking.provenance import requirements

    tested = {"selftest": folder.read_selftest(), "processes": begin.manifest["processes"]}
    if begin.recorded is None:
        folder.start(begin.manifest | tested, to_yaml(loaded), begin.patch, requirements())
        return begin.manifest | tested
    steps = loaded.recipe.run.steps
    if start_step > steps:
        raise UserError(f"run.steps={steps}: the run in {folder.path} is already at step {start_step}")
    folder.rewind(start_step, begin.recorded.get("rollbacks", []))
    folder.paused_file.unlink(missing_ok=True)
    locked = {"requirements_sha256": begin.manifest["requirements_sha256"]}
    manifest = resumed(begin.recorded, begin.manifest, start_step, begin.changes) | tested | locked
    folder.change_requirements(requirements(), start_step)
    if begin.changes:
        folder.change(manifest, to_yaml(loaded), begin.patch, start_step)
    else:
        folder.write_manifest(manifest)
    print(f"{folder.path}: going on after step {start_step} of {steps}", file=sys.stderr)
    return manifest


def _print_summary(folder: RunFolder) -> None:
    from dapo_cli.tracking.summary import summary_lines

    print("\n".join(summary_lines(folder)))
