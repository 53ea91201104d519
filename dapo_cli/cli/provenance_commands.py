"""`dapo reproduce` and `dapo diff`: their options."""

from pathlib import Path
from typing import Annotated

import typer

from dapo_cli.cli import completion
from dapo_cli.cli.arguments import RunArgument


def reproduce(
    run: RunArgument,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to make again; else all that the run has.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="New folder of the rerun; else RUN-reproduced.")
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Go on although code, data, model or versions differ.")
    ] = False,
    checkout: Annotated[
        bool, typer.Option("--checkout", help="Run the recorded commit and patch, in a temporary git worktree.")
    ] = False,
) -> int:
    """Make a run again from its manifest, and compare every figure: exit code 0 identical, 1 different.

    Code, recipe, data, model and package versions are checked against the manifest first; what differs is refused
    (exit code 2). Recorded hub commits and threads are used, whatever the branches and the machine say now.

    \b
    dapo reproduce runs/quickstart-seed0
    dapo reproduce runs/quickstart-seed0 --steps 2 --checkout
    """
    from dapo_cli.cli.reproduce import reproduce as run_again

    return run_again(run, steps, out, allow_changes, checkout)


def diff(
    one: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.", autocompletion=completion.runs)],
    other: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another.", autocompletion=completion.runs)],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Two runs side by side: what differs in recipe, code, data, model, versions and hardware, and their results."""
    from dapo_cli.cli.diff import diff as run_diff

    run_diff(one, other, as_json)
