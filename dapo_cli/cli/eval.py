"""`dapo eval`: evaluate models and checkpoints, judge stored generations anew, compare two evaluations."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dapo_cli.cli.bars import bars
from dapo_cli.cli.eval_tables import comparison_table, curve_table, figures_table, parts_table, rescored_table
from dapo_cli.cli.train import set_threads
from dapo_cli.config.schema import Instruction, Precision
from dapo_cli.config.suggest import hint
from dapo_cli.errors import UserError
from dapo_cli.evaluation.options import Options

if TYPE_CHECKING:
    from dapo_cli.evaluation.plan import EvaluationPlan, Task

Choice = TypeVar("Choice", bound=Enum)


def options_of(
    model: str | None, *, modes: Sequence[str], instruction: str | None, dtype: str | None, **given: Any
) -> Options:
    """The command line's texts as what they stand for; `given` go as they are. Raises UserError for unknown ones."""
    if model is None:
        raise UserError("MODEL_OR_RUN is missing: give a model, a run folder, or --rescore or --compare")
    if len(modes) > 1:
        raise UserError(f"--mode {modes[1]}: one at a time generates; then judge by others with --rescore")
    return Options(
        model,
        mode=next(iter(modes), None),
        instruction=_member(Instruction, "--instruction", instruction),
        dtype=_member(Precision, "--dtype", dtype),
        **given,
    )


def _member(choices: type[Choice], name: str, value: str | None) -> Choice | None:
    if value is None:
        return None
    if value not in choices.__members__:
        raise UserError(
            f"{name} {value}: must be one of {', '.join(choices.__members__)}{hint(value, choices.__members__)}"
        )
    return choices[value]


def evaluate(options: Options, as_json: bool) -> None:
    """Evaluate what `options` name, or go on where an earlier call stopped, and print the figures.

    Raises UserError before any weight is loaded for whatever is wrong with model, data, settings or folder.
    """
    set_threads(None)

    from dapo_cli.evaluation.plan import make_plan
    from dapo_cli.evaluation.session import carry_out

    plan = make_plan(options)
    for note in plan.notes():
        print(f"note: {note}", file=sys.stderr)
    try:
        with bars() as tell:
            results = carry_out(plan, lambda task, judged: tell(_name(task), len(task.data.problems), judged))
    except KeyboardInterrupt:
        folders = ", ".join(str(path) for path in plan.roots.values())
        print(f"interrupted: what is judged lies in {folders}; the same command goes on", file=sys.stderr)
        raise
    if as_json:
        flat = [each for series in results.values() for each in series]
        print(json.dumps(flat[0] if len(flat) == 1 else flat, indent=2, ensure_ascii=False))
        return
    _print(plan, results)


def rescore(path: Path, modes: Sequence[str], overrides: Sequence[str], as_json: bool) -> None:
    """Judge the generations at `path` by each of `modes`, and print their figures beside those stored."""
    from rich.console import Console

    from dapo_cli.evaluation.rescore import rescore as judge_anew
    from dapo_cli.reward.modes import reward_of

    if not modes:
        raise UserError("--rescore needs --mode: math, authors, strict_boxed, or your own FILE.py[:FUNCTION]")
    rewards = [reward_of(mode, overrides) for mode in modes]
    found = []
    for reward in rewards:
        with bars() as tell:
            found.append(judge_anew(path, reward, lambda done, total: tell("verifying", total, done)))
    if as_json:
        print(json.dumps([each.now for each in found], indent=2, ensure_ascii=False))
        return
    console = Console()
    console.print(rescored_table(found))
    for each in found:
        changes = ", ".join(f"{old} -> {new} {count:,}" for (old, new), count in each.changed.most_common())
        console.print(
            f"{each.now['mode']}: {each.changed.total():,} of {each.completions:,} verdicts differ from those stored"
            + (f" ({changes})" if changes else ""),
            markup=False,
        )
        console.print(f"  in {', '.join(map(str, each.files))}", markup=False, soft_wrap=True)


def compare(a: Path, b: Path, common: bool, as_json: bool) -> None:
    """Print the paired difference B - A of two evaluations."""
    from rich.console import Console

    from dapo_cli.evaluation.compare import compare as pair_up

    found = pair_up(a, b, common=common)
    if as_json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False))
        return
    console = Console()
    for part in comparison_table(found):
        console.print(part)


def _name(task: "Task") -> str:
    return task.data.name if task.step is None else f"{task.data.name}, step {task.step}"


def _print(plan: "EvaluationPlan", results: dict[str, list[dict[str, Any]]]) -> None:
    from rich.console import Console

    console = Console()
    for name, series in results.items():
        tasks = [task for task in plan.tasks if task.data.name == name]
        if len(series) > 1 or plan.options.all_checkpoints:
            console.print(curve_table(series))
        else:
            console.print(figures_table(series[0], tasks[0].folder.tokens_per_s()))
        for column, values in series[-1]["parts"].items():
            console.print(parts_table(column, values, series[-1]))
        console.print(f"in {plan.roots[name]}/", markup=False, soft_wrap=True)
