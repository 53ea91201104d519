"""The report's tables as CSV: figures with all their digits, shares from 0 to 1, empty where nothing was measured."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from dapo_cli.report.results import TRAINING, PointResult, Results
from dapo_cli.report.runs import ROLLOUTS, SECONDS, Run
from dapo_cli.report.statistics import Estimate
from dapo_cli.report.study import Study

ESTIMATE = ("", "_low", "_high", "_count", "_over")
VERDICTS = {True: "yes", False: "no", None: ""}


def results_csv(results: Results) -> bytes:
    """A row a point: its figures as the report's tables show them. `…_low` and `…_high` bound 95 % intervals, `…_count`
    seeds or pairs of seeds went into them, and `…_over` says what they are taken over."""
    seeds = sorted({run.seed for run in results.study.runs})
    heads = [f"{name}{suffix}" for name in ("mean", "to_baseline", "to_before") for suffix in ESTIMATE]
    for name in ("to_before", "to_baseline"):
        heads.insert(heads.index(f"{name}_over") + 1, f"{name}_distinguishable")
    columns = ["point", "label", "metric", "runs", "finished", *heads]
    columns += ["rollouts_in_common", "mean_at_common_rollouts"]
    columns += [*(f"seed_{seed}" for seed in seeds), *TRAINING]
    return _csv(columns, [_result_row(result, results, seeds) for result in results.points])


def _result_row(result: PointResult, results: Results, seeds: Sequence[int]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "point": result.point.name,
        "label": result.point.label,
        "metric": results.metric,
        "runs": len(result.point.runs),
        "finished": len(result.point.finished),
        "rollouts_in_common": results.common_rollouts,
        "mean_at_common_rollouts": result.at_common.mean if result.at_common else None,
    }
    row |= _cells("mean", result.estimate)
    for name, found in (("to_baseline", result.to_baseline), ("to_before", result.to_before)):
        row |= _cells(name, found)
        row[f"{name}_distinguishable"] = VERDICTS[found.distinguishable if found else None]
    row |= {f"seed_{seed}": result.values[seed].value if seed in result.values else None for seed in seeds}
    return row | result.training


def _cells(name: str, found: Estimate | None) -> dict[str, Any]:
    values = (found.mean, found.low, found.high, found.count, found.basis.value) if found else [None] * len(ESTIMATE)
    return {f"{name}{suffix}": value for suffix, value in zip(ESTIMATE, values, strict=True)}


def curves_csv(study: Study) -> bytes:
    """A row a step of each run that could be read, the evaluation before step 1 included: what was spent by then, and
    every figure of metrics.jsonl and evals.jsonl."""
    kept = [(point, run) for point in study.points for run in point.runs if run.steps or run.evals]
    keys = list(dict.fromkeys(key for _, run in kept for record in [*run.evals, *run.steps] for key in record))
    columns = ["point", "seed", "state", "step", ROLLOUTS, SECONDS, *(key for key in keys if key != "step")]
    rows = ({"point": point.name} | row for point, run in kept for row in _steps_of(run))
    return _csv(columns, rows)


def _steps_of(run: Run) -> Iterator[dict[str, Any]]:
    steps = {record["step"]: record for record in run.steps}
    evals = {record["step"]: record for record in run.evals}
    totals = run.totals()
    for step in sorted({*steps, *evals}):
        yield {
            "seed": run.seed,
            "state": run.state.value,
            **evals.get(step, {}),
            **steps.get(step, {}),
            **totals.get(step, {}),
        }


def _csv(columns: Sequence[str], rows: Any) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
