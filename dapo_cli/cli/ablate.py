"""`dapo ablate`: the points of a plan, trained over seeds, each run a process and a folder of its own."""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import typer

from dapo_cli.ablation.devices import places_for, visible_gpus
from dapo_cli.ablation.folder import AblationFolder
from dapo_cli.ablation.plan import read_plan
from dapo_cli.ablation.points import Ablation, Run, change_lines, load_ablation
from dapo_cli.ablation.progress import unmatched
from dapo_cli.ablation.runner import Event, Runner
from dapo_cli.ablation.slurm import array_script
from dapo_cli.config.shipped import find_plan, first_comment, plan_names
from dapo_cli.config.suggest import hint
from dapo_cli.errors import RunStopped, UserError
from dapo_cli.interrupt import StopRequest
from dapo_cli.report.runs import ACCURACY, TRAINING_ACCURACY, State
from dapo_cli.report.study import read_study
from dapo_cli.tracking.files import write_atomically

FAILED = 1  # exit code where runs failed


def list_plans() -> None:
    names = plan_names()
    width = max(map(len, names), default=0)
    for name in names:
        typer.echo(f"{name:<{width}}  {first_comment(find_plan(name))}")


def describe(plan: str) -> None:
    """Print the points of a plan, what each is loaded with, and what it changes against the baseline."""
    ablation = load_ablation(read_plan(plan))
    seeds = ", ".join(map(str, ablation.plan.seeds))
    typer.echo(
        f"{ablation.plan.name}: {ablation.plan.kind.name} on {ablation.plan.recipe}, {len(ablation.points)} points x "
        f"{len(ablation.plan.seeds)} seeds ({seeds}), matched by {ablation.match.amount:,} {ablation.match.by.name}, "
        f"in {ablation.plan.dir}/"
    )
    for point in ablation.points:
        typer.echo(f"\n{point.name}" + (f"  ({point.label})" if point.label != point.name else ""))
        typer.echo(f"  overrides  {' '.join(point.overrides)}")
        if point is ablation.points[0]:
            typer.echo("  baseline")
        for line in change_lines(point):
            typer.echo(f"  changed    {line}")


def write_script(plan: str, script: Path, at_a_time: int | None) -> None:
    """Lay the ablation's folder out and write its Slurm script, without running anything."""
    ablation = load_ablation(read_plan(plan))
    folder = AblationFolder(ablation.plan.dir)
    with folder.lock(shared=False):
        check_inputs([run for run in ablation.runs if not folder.is_done(run)])
        folder.write(ablation)
    try:
        write_atomically(script, array_script(ablation, script, at_a_time).encode())
    except OSError as error:
        raise UserError(f"--slurm {script}: cannot be written ({error.strerror})") from None
    typer.echo(f"wrote {script}: {len(ablation.runs)} tasks; its head says how to submit it")


def ablate(plan: str, jobs: int | None, retry_failed: bool) -> int:
    """Run what is left of a plan; returns the exit code. Raises UserError before any run starts for whatever is wrong
    with plan, recipes, data, models or folder, RunStopped where a signal ended it."""
    ablation = load_ablation(read_plan(plan))
    folder = AblationFolder(ablation.plan.dir)
    places = places_for(ablation, jobs, visible_gpus(), len(os.sched_getaffinity(0)))
    with folder.lock(shared=False):
        undone = [run for run in ablation.runs if not folder.is_done(run)]
        given_up = [run for run in undone if _failed(folder, run) and not retry_failed]
        waiting = [run for run in undone if run not in given_up]
        check_inputs(waiting)
        folder.write(ablation)
        done = len(ablation.runs) - len(undone)
        if done or given_up:
            left_out = f", {len(given_up)} failed before and left out" if given_up else ""
            typer.echo(f"{done} of {len(ablation.runs)} runs are done{left_out}")
        outcomes = _run(ablation, folder, places, waiting)
        failed = given_up + [run for run in waiting if outcomes.get(run.name) is Event.failed]
        _conclude(ablation, folder, failed)
    return FAILED if failed else 0


def run_only(plan: str, name: str) -> int:
    """Run one run of an ablation whose folder is laid out, beside others that do the same; returns the exit code."""
    ablation = load_ablation(read_plan(plan))
    folder = AblationFolder(ablation.plan.dir)
    by_name = {run.name: run for run in ablation.runs}
    if name not in by_name:
        raise UserError(f"--only {name}: no run of the plan{hint(name, by_name)}; runs: {', '.join(by_name)}")
    run = by_name[name]
    places = places_for(ablation, 1, visible_gpus(), len(os.sched_getaffinity(0)))
    with folder.lock(shared=True):
        folder.check(ablation, run)
        if folder.is_done(run):
            typer.echo(f"{name} is done")
            return 0
        outcomes = _run(ablation, folder, places, [run])
    return FAILED if outcomes[name] is Event.failed else 0


def _run(
    ablation: Ablation, folder: AblationFolder, places: list[dict[str, str]], runs: Sequence[Run]
) -> dict[str, Event]:
    """Raises RunStopped where a signal ended the runs before they were over."""
    from dapo_cli.cli.ablate_display import ablation_view

    if not runs:
        return {}
    with StopRequest() as stop, closing(ablation_view(ablation, folder, runs)) as view:
        runner = Runner(ablation, folder, places, view, stop)
        runner.run(runs)
    if stop.requested and any(runner.outcomes.get(run.name) not in (Event.done, Event.failed) for run in runs):
        done = sum(map(folder.is_done, ablation.runs))
        raise RunStopped(
            f"{stop.requested}: stopped with {done} of {len(ablation.runs)} runs done; the same command goes on."
        )
    return runner.outcomes


def _failed(folder: AblationFolder, run: Run) -> bool:
    last = folder.last_event(run)
    return last is not None and last["event"] == Event.failed.name


def _conclude(ablation: Ablation, folder: AblationFolder, failed: Sequence[Run]) -> None:
    _print_table(ablation, folder)
    for run in ablation.runs:
        if folder.is_done(run) and (line := unmatched(folder.run_folder(run), run, ablation.match)):
            typer.echo(f"warning: {line}")
    for run in failed:
        event = folder.last_event(run) or {}
        typer.echo(f"failed: {run.name}: {event.get('message')} (log: {folder.log_file(run)})")
    if failed:
        typer.echo("--retry-failed tries failed runs again, from their last checkpoints.")
    typer.echo(f"next: dapo report {folder.path} -o report.html")


def _print_table(ablation: Ablation, folder: AblationFolder) -> None:
    """The report's first table, and what is left out of it."""
    from dapo_cli.cli.report import print_table  # matplotlib
    from dapo_cli.report.page import results_table
    from dapo_cli.report.results import compare_points

    evaluates = any(point.recipe.recipe.eval.data is not None for point in ablation.points)
    study = read_study([str(folder.path)])
    typer.echo("")
    try:
        print_table(results_table(compare_points(study, ACCURACY if evaluates else TRAINING_ACCURACY)))
    except UserError as error:  # no run made a step
        typer.echo(f"no table: {error}")
    for each in study.runs:
        if each.state not in (State.FINISHED, State.FAILED):
            typer.echo(f"warning: {each.name} is {each.state.value}, and left out of the table: {each.detail}")


def check_inputs(runs: Sequence[Run]) -> None:
    """Read each different choice of data, model and reward once. Raises UserError for what cannot serve."""
    if not runs:
        return
    from dapo_cli.inputs import read_inputs

    seen = set()
    for run in runs:
        recipe = run.point.recipe.recipe
        inputs = (
            recipe.model,
            recipe.data,
            recipe.eval,
            recipe.sampling,
            recipe.reward,
            recipe.rollout,
            recipe.learner,
        )
        key = repr((*inputs, recipe.algorithm.groups_per_step))
        if key in seen:
            continue
        seen.add(key)
        try:
            read_inputs(recipe)
        except UserError as error:
            raise UserError(f"point {run.point.name}: {error}") from error
