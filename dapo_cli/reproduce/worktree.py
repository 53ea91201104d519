"""The code of a recorded run: its commit in a git worktree of its own, with the recorded patch on top."""

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dapo_cli.errors import UserError
from dapo_cli.reproduce.recorded import Recorded, patch_differences
from dapo_cli.tracking.manifest import shown
from dapo_cli.tracking.provenance import PACKAGE_FOLDER, checkout_of, package_sha256, run_git


def git_commands(recorded: Recorded) -> list[str]:
    """What a person types to run the recorded code; empty where no commit is recorded."""
    commit = recorded.manifest["code"]["commit"]
    if not commit:
        return []
    folder = f"../dapo-{commit[:12]}"
    commands = [f"git worktree add --detach {folder} {commit}"]
    if recorded.source.patch_file.exists():
        commands.append(f"git -C {folder} apply {shlex.quote(str(recorded.source.patch_file.resolve()))}")
    return [*commands, f"PYTHONPATH=$(realpath {folder}) dapo reproduce {shlex.quote(str(recorded.run.path))}"]


@contextmanager
def recorded_code(recorded: Recorded, package: Path = PACKAGE_FOLDER) -> Iterator[Path]:
    """A temporary worktree of the checkout that `package` is of, with the run's code; gone at the end.

    Raises UserError where there is no such checkout, commit or patch, and where the sources that come of them are not
    those that the manifest names.
    """
    code = recorded.manifest["code"]
    checkout = checkout_of(package)
    if checkout is None or not code["commit"]:
        missing = "it records no commit" if checkout else f"{package.parent} is no git checkout"
        raise UserError(f"--checkout of {recorded.run.path}: {missing}; run it from a clone that has the recorded code")
    if different := patch_differences(recorded.source, recorded.manifest):
        raise UserError(f"--checkout of {recorded.run.path}: {different[0]}")
    with tempfile.TemporaryDirectory(prefix="dapo-code-") as temporary:
        tree = Path(temporary).resolve() / "code"
        _git(checkout, "worktree", "add", "--detach", str(tree), code["commit"])
        try:
            if recorded.source.patch_file.exists():
                _git(tree, "apply", str(recorded.source.patch_file.resolve()))
            found = package_sha256(tree / package.name)
            if found != code["package_sha256"]:
                raise UserError(
                    f"--checkout of {recorded.run.path}: commit and patch give sources with sha256 {shown(found)}, but "
                    f"the run's were {shown(code['package_sha256'])}: it ran code that git ignores"
                )
            yield tree
        finally:
            run_git(checkout, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *arguments: str) -> None:
    done = run_git(folder, *arguments)
    if done.returncode:
        raise UserError(f"git {' '.join(arguments)} in {folder}: {done.stderr.decode(errors='replace').strip()}")
