"""The `dapo` command, and what each way of ending means to the shell."""

import os
import sys
import traceback
from typing import NoReturn

import typer

from dapo_cli.cli.commands import app
from dapo_cli.errors import Diverged, ForPeople, OutOfSync, ProcessFailed, RunStopped, SelftestFailed, UserError

FAULT, BAD_INPUT, STOPPED, INTERRUPTED = 1, 2, 3, 130


def main() -> NoReturn:
    """Run the command line and exit: 0 done, 2 bad input, 3 a run stopped on purpose, 130 Ctrl-C, 1 anything else."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    sys.exit(run([argument for argument in arguments if argument != "--debug"], debug=debug))


def run(arguments: list[str], *, debug: bool) -> int:
    """Run the command line and return the exit code; what went wrong is told on stderr."""
    try:
        status = app(arguments, prog_name="dapo", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted. Python flushes stdout once more at exit: give it a place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _tell(error)


def _tell(error: Exception) -> int:
    """Print an error for people, unless another rank does, and give its exit code."""
    if isinstance(error, ForPeople) and error.told:
        return BAD_INPUT if isinstance(error, UserError) else STOPPED
    if isinstance(error, UserError):
        typer.echo(f"Error: {error}", err=True)
        return BAD_INPUT
    if isinstance(error, SelftestFailed):
        typer.echo(f"Error: {error}", err=True)
        return FAULT
    if isinstance(error, ProcessFailed):
        typer.echo(f"Error: {error}", err=True)
        return FAULT
    if isinstance(error, RunStopped | Diverged | OutOfSync):
        typer.echo(str(error), err=True)
        return STOPPED
    if hasattr(error, "exit_code") and hasattr(error, "show"):  # typer's own usage errors
        error.show()
        return error.exit_code
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    typer.echo(f"Error: {type(error).__name__}: {error}\nRun again with --debug for the traceback.", err=True)
    return FAULT
