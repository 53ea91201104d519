"""The figures of every point: the compared one over seeds, its differences, and how the training went."""

from collections.abc import Sequence
from dataclasses import dataclass

from dapo_cli.config.suggest import hint
from dapo_cli.errors import UserError
from dapo_cli.report.curves import at_rollouts, common_rollouts
from dapo_cli.report.runs import ROLLOUTS, SECONDS, STEP, Measured, Run
from dapo_cli.report.statistics import Estimate, bonferroni, estimate, paired_difference
from dapo_cli.report.study import Point, Study

# What a point's training is described by: means over the finished runs of their final figures.
TRAINING = ("judged/reward", "policy/entropy", "length/mean", "sampler/informative_rate", ROLLOUTS, SECONDS, STEP)
OWN_KEYS = (ROLLOUTS, SECONDS)  # figures that are counted here, of no file


@dataclass(frozen=True)
class PointResult:
    """`to_before`: to the rung below, of a ladder. `at_common`: the metric where `Results.common_rollouts` were spent;
    None where a run was not evaluated near there. `training`: of TRAINING's keys; None where nothing was measured."""

    point: Point
    values: dict[int, Measured]
    estimate: Estimate | None
    to_baseline: Estimate | None
    to_before: Estimate | None
    at_common: Estimate | None
    training: dict[str, float | None]


@dataclass(frozen=True)
class Results:
    """`metric` is what is compared; `common_rollouts` what every finished run spent at least.

    `corrected`: the points whose difference to the baseline is distinguishable also where all of these
    intervals are to hold together (Bonferroni)."""

    study: Study
    metric: str
    common_rollouts: float | None
    points: list[PointResult]
    corrected: list[PointResult]

    @property
    def baseline(self) -> PointResult:
        return next(result for result in self.points if result.point is self.study.baseline)

    @property
    def alone(self) -> bool:
        """Whether there is one point, and so nothing to compare it with."""
        return len(self.points) == 1

    @property
    def others(self) -> list[PointResult]:
        return [result for result in self.points if result.point is not self.study.baseline]

    @property
    def highest(self) -> PointResult | None:
        """The point of the highest mean, the first of equals; None where no run came to an end."""
        measured = [result for result in self.points if result.estimate]
        return max(measured, key=lambda result: mean_of(result.estimate)) if measured else None

    @property
    def comparisons(self) -> int:
        """Intervals of differences that the report shows; the second rung's two are one."""
        found = [result.to_baseline for result in self.points]
        found += [
            result.to_before for result in self.points if self.study.before(result.point) is not self.study.baseline
        ]
        return sum(each is not None and each.half_width is not None for each in found)


def mean_of(found: Estimate | None) -> float:
    assert found is not None
    return found.mean


def compare_points(study: Study, metric: str) -> Results:
    """Raises UserError where no run holds the metric, or no run a step."""
    check_metric(study, metric)
    values = {id(point): final_values(point.finished, metric) for point in study.points}
    base = values[id(study.baseline)]
    common = common_rollouts(study.points)
    results = []
    for point in study.points:
        own, before = values[id(point)], study.before(point)
        results.append(
            PointResult(
                point=point,
                values=own,
                estimate=estimate(own),
                to_baseline=None if point is study.baseline else paired_difference(own, base),
                to_before=paired_difference(own, values[id(before)]) if before else None,
                at_common=estimate(_at_rollouts(point.finished, metric, common)),
                training={key: mean_final(point.finished, key) for key in TRAINING},
            )
        )
    confidence = bonferroni(max(1, len(study.points) - 1))
    held = [
        result
        for result in results
        if result.to_baseline
        and (again := paired_difference(result.values, base, confidence)) is not None
        and again.distinguishable
    ]
    return Results(study, metric, common, results, held)


def check_metric(study: Study, metric: str) -> None:
    known = {*OWN_KEYS, *(key for run in study.runs for record in [*run.steps, *run.evals] for key in record)} - {STEP}
    if not any(run.steps for run in study.runs):
        raise UserError(f"{study.name}: no run has finished a step; {_states(study.runs)}. Train first (`dapo train`)")
    if metric not in known:
        raise UserError(
            f"--metric {metric}: in no run{hint(metric, sorted(known))}; evals.jsonl and metrics.jsonl name the "
            "figures, and judged/accuracy is there without evaluations"
        )


def _states(runs: Sequence[Run]) -> str:
    return "; ".join(f"{run.name}: {run.state.value} ({run.detail})" for run in runs[:5]) + ("; …" * (len(runs) > 5))


def final_values(runs: Sequence[Run], key: str) -> dict[int, Measured]:
    """Seed -> the figure at the end of its run, in the order of the seeds."""
    found = {run.seed: run.final(key) for run in sorted(runs, key=lambda run: run.seed)}
    return {seed: measured for seed, measured in found.items() if measured is not None}


def _at_rollouts(runs: Sequence[Run], metric: str, place: float | None) -> dict[int, Measured]:
    """Of evaluations alone: a single step's figure is too noisy to be read at one place. Of all the runs or of none:
    a mean over some seeds would stand beside means over all."""
    if place is None or not metric.startswith("eval/"):
        return {}
    found = {run.seed: value for run in runs if (value := at_rollouts(run, metric, place)) is not None}
    return {seed: Measured(value) for seed, value in found.items()} if len(found) == len(runs) else {}


def mean_final(runs: Sequence[Run], key: str) -> float | None:
    if key == STEP:
        steps = {run.seed: Measured(run.steps[-1][STEP]) for run in runs if run.steps}
        found = estimate(steps)
    else:
        found = estimate(final_values(runs, key))
    return found.mean if found else None
