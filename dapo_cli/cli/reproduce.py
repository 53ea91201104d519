"""`dapo reproduce`: a run made again from its manifest, and compared with what it left."""

import sys
from pathlib import Path

from dapo_cli.config.load import load_recipe
from dapo_cli.errors import UserError
from dapo_cli.reproduce.compare import RunComparison, compare_runs
from dapo_cli.reproduce.recorded import Recorded, read_recorded
from dapo_cli.reproduce.rerun import rerun
from dapo_cli.reproduce.verify import manifest_now, notes, refusals
from dapo_cli.reproduce.worktree import git_commands, recorded_code
from dapo_cli.tracking.manifest import Manifest, shown
from dapo_cli.tracking.run_folder import RunFolder

IDENTICAL, DIFFERENT = 0, 1


def reproduce(run: Path, steps: int | None, out: Path | None, allow_changes: bool, checkout: bool) -> int:
    """Returns 0 where the rerun's figures are the recorded ones, 1 where not.

    Raises UserError before any training where code, data, model or versions are others than the run's.
    """
    recorded = read_recorded(run, steps)
    target = RunFolder(out or recorded.run.path.resolve().with_name(f"{recorded.run.path.resolve().name}-reproduced"))
    if target.path.exists() and (not target.path.is_dir() or any(target.path.iterdir())):
        raise UserError(f"{target.path}: is there already; remove it, or give another folder with -o")

    def check(now: Manifest) -> None:
        if different := refusals(recorded, now):
            _refuse(recorded, different, allow_changes, checkout)

    print(f"{run}: {recorded.steps} steps, started {recorded.manifest['started'][:19]} UTC; rerun in {target.path}")
    if checkout:
        with recorded_code(recorded) as code:
            print(f"code: commit {shown(recorded.manifest['code']['commit'])} in a worktree of its own", flush=True)
            rerun(recorded, target, code, check)
    else:
        loaded = load_recipe(str(recorded.source.recipe_file), recorded.overrides(target.path))
        now = manifest_now(loaded)
        different = refusals(recorded, now)
        if different:
            _refuse(recorded, different, allow_changes, checkout)
        else:
            print("verified: code, recipe, data, model and versions are those of the run")
        for line in notes(recorded, now):
            print(f"note: {line}")
        sys.stdout.flush()
        # The process reads all of it again, later: what changed in between is refused, too.
        rerun(recorded, target, None, lambda manifest: None if different else check(manifest))
    every = int(recorded.manifest["recipe"]["eval"]["every"])
    return _tell(compare_runs(recorded.run, target, recorded.steps, every))


def _refuse(recorded: Recorded, different: list[str], allowed: bool, checkout: bool) -> None:
    """Raises UserError, or where it is allowed says what differs and returns."""
    if allowed:
        for line in different:
            print(f"Warning: differs from the run: {line}", file=sys.stderr)
        return
    message = "\n  ".join([f"{recorded.run.path} cannot be reproduced with what is here:", *different])
    if not checkout and any(line.startswith("code of dapo_cli") for line in different):
        commands = git_commands(recorded)
        if commands:
            message += "\n  ".join(["\nWith the run's own code (--checkout does this by itself):", *commands])
    raise UserError(f"{message}\nGive back what the run was made with, or --allow-changes to go on all the same.")


def _tell(comparison: RunComparison) -> int:
    evaluations = f"{comparison.evaluations} evaluation{'s' if comparison.evaluations != 1 else ''}"
    steps = f"{comparison.steps} step{'s' if comparison.steps != 1 else ''}"
    if not comparison.differences:
        print(f"identical: all figures of {steps} and {evaluations}")
        return IDENTICAL
    print(f"different: {len(comparison.differences)} figures of {steps} and {evaluations}")
    print(f"first: {comparison.differences[0]}")
    if largest := comparison.rounding:
        print(
            f"All counts and texts are equal. Of the other numbers, the largest relative difference is "
            f"{largest.relative:.1e}: {largest}"
        )
    return DIFFERENT
