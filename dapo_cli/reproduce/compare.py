"""Two runs' figures, step by step and key by key."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.manifest import ABSENT
from dapo_cli.tracking.run_folder import RunFolder

Record = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """One figure that two runs have otherwise; ABSENT where one of them lacks it. Without a `key`, a whole line."""

    file: str
    step: int
    key: str
    before: Any
    now: Any

    @property
    def relative(self) -> float | None:
        """|before - now| over the larger of the two sizes, from 0 to 2; None where one of them is not a float."""
        if not (isinstance(self.before, float) and isinstance(self.now, float)):
            return None
        largest = max(abs(self.before), abs(self.now))
        return abs(self.before - self.now) / largest if largest else 0.0

    def __str__(self) -> str:
        return (
            f"{self.file}, step {self.step}, {self.key or 'the line'}: {self.before} in the run folder, {self.now} now"
        )


@dataclass(frozen=True)
class RunComparison:
    """How many lines of metrics.jsonl and evals.jsonl were compared, and what differs, in the order of steps."""

    steps: int
    evaluations: int
    differences: list[Difference]

    @property
    def rounding(self) -> Difference | None:
        """The largest difference where all of them are between floats, and so may be of rounding; None where a count,
        a text or a line differs, or nothing does."""
        if not self.differences or any(each.relative is None for each in self.differences):
            return None
        return max(self.differences, key=lambda each: each.relative or 0.0)


def compare_runs(recorded: RunFolder, rerun: RunFolder, steps: int, eval_every: int) -> RunComparison:
    """The figures of steps 1 to `steps`.

    A run is evaluated after its last step whatever that is; so an evaluation counts as missing only at a step at which
    both must have made it: before the first, and each `eval_every` steps (0: none).
    """
    metrics = [_up_to(folder.metrics_file, steps) for folder in (recorded, rerun)]
    evals = [_up_to(folder.evals_file, steps) for folder in (recorded, rerun)]
    odd = {step for step in evals[0].keys() ^ evals[1].keys() if step and not (eval_every and step % eval_every == 0)}
    evals = [{step: record for step, record in each.items() if step not in odd} for each in evals]
    found = [
        *_differences("metrics.jsonl", metrics[0], metrics[1], range(1, steps + 1)),
        *_differences("evals.jsonl", evals[0], evals[1], sorted(evals[0].keys() | evals[1].keys())),
    ]
    found.sort(key=lambda each: each.step)  # stable: of one step, metrics first
    return RunComparison(len(metrics[0].keys() & metrics[1].keys()), len(evals[0].keys() & evals[1].keys()), found)


def records_by_step(file: Path) -> dict[int, Record]:
    """The lines of a file of JSON records. Raises UserError for a line that is no record with a step."""
    return {record["step"]: record for record in read_lines(file, "step")}


def _up_to(file: Path, step: int) -> dict[int, Record]:
    return {number: record for number, record in records_by_step(file).items() if number <= step}


def _differences(
    file: str, old: dict[int, Record], new: dict[int, Record], steps: range | list[int]
) -> Iterator[Difference]:
    for step in steps:
        if step not in old or step not in new:
            there = ["there" if step in each else ABSENT for each in (old, new)]
            yield Difference(file, step, "", there[0], there[1])
            continue
        for key in dict.fromkeys([*old[step], *new[step]]):
            before, now = old[step].get(key, ABSENT), new[step].get(key, ABSENT)
            # As text: 1 and 1.0, or 0.0 and -0.0, are equal to Python.
            if ABSENT in (before, now) or json.dumps(before) != json.dumps(now):
                yield Difference(file, step, key, before, now)
