"""One run as a report reads it: its folder's files, checked line by line, and whether it came to its end."""

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import Any

from dapo_cli.budget import ROLLOUTS_TOTAL
from dapo_cli.errors import UserError
from dapo_cli.report.statistics import Measured
from dapo_cli.tracking.files import each_record
from dapo_cli.tracking.health_file import Alarm, read_alarms
from dapo_cli.tracking.manifest import Manifest
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.training_time import training_seconds

Record = dict[str, Any]

ACCURACY = "eval/accuracy"
TRAINING_ACCURACY = "judged/accuracy"
ROLLOUTS = "rollouts"  # judged completions so far
SECONDS = "seconds"  # of training so far
STEP = "step"

LAST_SHARE = 0.1  # of the steps: what a figure of single steps is averaged over to stand for the end of a run


class State(Enum):
    FINISHED = "finished"
    UNFINISHED = "unfinished"
    FAILED = "failed"
    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Run:
    """`name` is the folder as the report shows it, `detail` how far it came or what is wrong with it.

    `steps`, `timings` and `evals` hold the records of metrics.jsonl, timings.jsonl and evals.jsonl; empty where the run
    is missing or damaged. `alarms` are those of health.jsonl; None without that file, which older runs do not have.
    """

    seed: int
    path: Path
    name: str
    state: State
    detail: str
    manifest: Manifest | None = None
    steps: list[Record] = field(default_factory=list)
    timings: list[Record] = field(default_factory=list)
    evals: list[Record] = field(default_factory=list)
    alarms: list[Alarm] | None = None

    @property
    def finished(self) -> bool:
        return self.state is State.FINISHED

    @property
    def recipe(self) -> Record | None:
        return self.manifest["recipe"] if self.manifest else None

    def totals(self) -> dict[int, Mapping[str, float]]:
        """Step -> rollouts and training seconds spent up to its end; step 0 included."""
        numbers = [record[STEP] for record in self.steps]
        spent = [0, *(record[ROLLOUTS_TOTAL] for record in self.steps)]
        by_step = {record[STEP]: training_seconds([record]) for record in self.timings}
        passed = accumulate((by_step.get(number, math.nan) for number in numbers), initial=0.0)
        rows = zip([0, *numbers], spent, passed, strict=True)
        return {step: {STEP: step, ROLLOUTS: rollouts, SECONDS: seconds} for step, rollouts, seconds in rows}

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) wherever the figure was measured: of an evaluation, a step, its timings, or what was spent."""
        if key in (ROLLOUTS, SECONDS):
            found = [(step, total[key]) for step, total in self.totals().items()]
        else:
            records = [*self.evals, *self.steps, *self.timings]  # no figure is in two of the files
            found = [(record[STEP], number(record[key])) for record in records if record.get(key) is not None]
        return [(step, value) for step, value in found if math.isfinite(value)]

    def final(self, key: str) -> Measured | None:
        """The figure at the run's end: the last evaluation's, the last total, or the mean over the last tenth of the
        steps. None where it was not measured there."""
        series = self.series(key)
        last = self.steps[-1][STEP] if self.steps else 0
        if key.startswith("eval/"):
            if not series or series[-1][0] != last:
                return None
            evaluation = self.evals[-1]
            error = number(evaluation.get("eval/standard_error")) if key == ACCURACY else math.nan
            if not math.isfinite(error):
                return Measured(series[-1][1])
            return Measured(series[-1][1], error, int(number(evaluation["eval/prompts"])))
        if key in (ROLLOUTS, SECONDS):
            return Measured(series[-1][1]) if series and series[-1][0] == last else None
        span = max(1, round(LAST_SHARE * last))
        values = [value for step, value in series if step > last - span]
        return Measured(math.fsum(values) / len(values)) if values else None


def number(value: Any) -> float:
    """A figure as files hold it: "NaN" and "Infinity" are texts there. NaN for what is no figure."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def read_run(path: Path, name: str, seed: int | None = None, figures: Collection[str] | None = None) -> Run:
    """A run folder. `seed`: what the plan says, for a run that has not started; else its manifest says it. `figures`
    are those of single steps to keep, None for all: a long run has millions.

    Raises UserError where a file cannot be read, naming the file and line.
    """
    folder = RunFolder(path)
    if not folder.started:
        return Run(seed or 0, path, name, State.MISSING, "no manifest.json: never started")
    manifest = folder.read_manifest()
    try:
        recipe = manifest["recipe"]
        planned, found_seed = int(recipe["run"]["steps"]), int(recipe["run"]["seed"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{folder.manifest_file}: no recipe with run.steps and run.seed; restore the file") from None
    if seed is not None and found_seed != seed:
        raise UserError(f"{folder.manifest_file}: run.seed is {found_seed}, the plan says {seed}")
    steps = list(_records(folder.metrics_file, (ROLLOUTS_TOTAL,), figures))
    timings = list(_records(folder.timings_file, ("seconds/step",)))
    evals = list(_records(folder.evals_file, (ACCURACY, "eval/prompts")))
    state, detail = _state(folder, recipe, planned, steps, evals)
    alarms = read_alarms(folder.health_file)
    return Run(found_seed, path, name, state, detail, manifest, steps, timings, evals, alarms)


def _state(
    folder: RunFolder, recipe: Record, planned: int, steps: list[Record], evals: list[Record]
) -> tuple[State, str]:
    """Finished: as `RunFolder.finished`, with the evaluation after the last step where the recipe evaluates."""
    last = steps[-1][STEP] if steps else 0
    if not folder.finished:
        stopped = f"stopped after step {last} of {planned}" if last else "no step finished"
        return State.UNFINISHED, stopped if last < planned else f"all {last} steps, but no export"
    if recipe.get("eval", {}).get("data") is not None and (not evals or evals[-1][STEP] != last):
        return State.UNFINISHED, f"all {last} steps, but no evaluation after the last one"
    return (
        State.FINISHED,
        f"{last} of {planned} steps" if last >= planned else f"{last} steps, then its budget was spent",
    )


def read_or_explain(path: Path, name: str, seed: int) -> Run:
    """As `read_run`, but a folder that cannot be read becomes a run that says why."""
    try:
        return read_run(path, name, seed)
    except UserError as error:
        return Run(seed, path, name, State.DAMAGED, str(error))
    except OSError as error:
        return Run(seed, path, name, State.DAMAGED, f"{error.filename or path}: cannot be read ({error.strerror})")


def _records(file: Path, needed: tuple[str, ...], figures: Collection[str] | None = None) -> Iterator[Record]:
    """The lines of a file of JSON records in the order of their steps, each with the figures `needed`; others only if
    they are among `figures`."""
    before = -1
    kept = None if figures is None else {STEP, *needed, *figures}
    for place, record in enumerate(each_record(file, STEP, *needed), start=1):
        step = record[STEP]
        if not isinstance(step, int) or step <= before or not all(math.isfinite(number(record[key])) for key in needed):
            where = f"{file}, line {place}"
            raise UserError(f"{where}: step {step!r} after step {before}, or a figure that is no number; restore it")
        before = step
        yield {sys.intern(key): value for key, value in record.items() if kept is None or key in kept}
