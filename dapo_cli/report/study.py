"""What a report compares: points, each with its runs, from an ablation's folder or from run folders side by side."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dapo_cli.config.suggest import hint
from dapo_cli.errors import UserError
from dapo_cli.report.runs import Record, Run, State, read_or_explain, read_run
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.manifest import FREE_KEYS, Changed, changed, leaves

PLAN_FILE = "ablation.json"
STATUS_SUFFIX = ".status.jsonl"  # beside a run's folder
RUNS_PREFIX = "points/"
LADDER = "ladder"
SEED_KEY = "run.seed"


@dataclass(frozen=True)
class Point:
    """One setting with its runs, a seed each. `planned` is what the plan says it changes; None without a plan.

    `reference`: a published value of this point, in the published unit; drawn on an axis of its own.
    """

    name: str
    label: str
    runs: list[Run]
    planned: Changed | None = None
    reference: float | None = None

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.finished]

    @property
    def recipe(self) -> Record | None:
        """Of the first run that has one."""
        return next((run.recipe for run in self.runs if run.recipe), None)


@dataclass(frozen=True)
class Study:
    """All that a report shows. `match`: (steps, rollouts or seconds, amount), None where nothing says so."""

    name: str
    kind: str
    recipe: str
    match: tuple[str, float] | None
    baseline: Point
    points: list[Point]

    @property
    def runs(self) -> list[Run]:
        return [run for point in self.points for run in point.runs]

    @property
    def is_ladder(self) -> bool:
        """Whether each point stands on the one before it, the baseline first."""
        return self.kind == LADDER and self.baseline is self.points[0]

    def before(self, point: Point) -> Point | None:
        """The rung below; None for the first, and for what is no ladder."""
        place = self.points.index(point)
        return self.points[place - 1] if self.is_ladder and place else None


def read_study(paths: Sequence[str], baseline: str | None = None) -> Study:
    """An ablation's folder, or one or more run folders. `baseline` names a point, or one of the runs given.

    Raises UserError where there is neither, a plan is unreadable, or a baseline is no point.
    """
    folders = [Path(path).expanduser() for path in paths]
    ablations = [folder for folder in folders if (folder / PLAN_FILE).exists()]
    if not ablations:
        return _study_of_runs(folders, baseline)
    if len(folders) > 1:
        raise UserError(f"{ablations[0]} is an ablation: give it alone, or run folders of it (points/…/seed_…)")
    return _study_of_ablation(folders[0], baseline)


def changes(point: Point, baseline: Point) -> Changed | None:
    """Keys of the resolved recipes that differ, but for the seed and what decides no number; None where a side has no
    manifest."""
    if point.recipe is None or baseline.recipe is None:
        return None
    return changed(decisive(baseline.recipe), decisive(point.recipe))


def decisive(recipe: Record) -> Record:
    """A recipe's leaves by dotted key, without the seed and the keys that decide no number."""
    return {key: value for key, value in leaves(recipe, "") if key != SEED_KEY and not key.startswith(FREE_KEYS)}


def _study_of_runs(folders: Sequence[Path], baseline: str | None) -> Study:
    """Runs whose recipes are equal but for the seed are one point; points in the order of their first runs."""
    groups: list[list[Run]] = []
    for folder in dict.fromkeys(folders):
        run = read_run(folder, str(folder))
        if run.state is State.MISSING:
            raise UserError(f"{folder}: neither a run folder (manifest.json) nor an ablation ({PLAN_FILE})")
        for group in groups:
            if decisive(_recipe_of(group[0])) == decisive(_recipe_of(run)):
                twin = next((other for other in group if other.seed == run.seed), None)
                if twin:
                    raise UserError(f"{twin.path} and {run.path}: the same recipe and seed; give one of them")
                group.append(run)
                break
        else:
            groups.append([run])
    points = [Point(name=group[0].name, label=_label(group), runs=group) for group in groups]
    chosen = _baseline(points, baseline)
    name = ", ".join(point.label for point in points)
    return Study(name, "runs", "as each run's recipe.yaml says", None, chosen, points)


def _label(seeds: Sequence[Run]) -> str:
    return seeds[0].name + (f" and {len(seeds) - 1} more" if len(seeds) > 1 else "")


def _recipe_of(run: Run) -> Record:
    assert run.recipe is not None
    return run.recipe


def _baseline(points: Sequence[Point], wanted: str | None, default: str | None = None) -> Point:
    name = wanted or default
    if name is None:
        return points[0]
    for point in points:
        if name == point.name or any(Path(name).expanduser() == run.path for run in point.runs):
            return point
    names = [point.name for point in points]
    said = "--baseline" if wanted else f"{PLAN_FILE}: baseline ="
    raise UserError(f"{said} {name}: no such point{hint(name, names)}; there are {', '.join(names)}")


def _study_of_ablation(folder: Path, baseline: str | None) -> Study:
    file = folder / PLAN_FILE
    try:
        plan = json.loads(file.read_bytes())
        points = list(_points(plan["points"], folder))
        name, kind, recipe = str(plan["name"]), str(plan["kind"]), str(plan["recipe"])
        match = (str(plan["match"]["by"]), float(plan["match"]["amount"])) if plan.get("match") else None
        default = str(plan["baseline"])
    except KeyError as error:
        raise UserError(f"{file}: no {error.args[0]}; `dapo ablate` writes this file") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: unreadable ({error}); `dapo ablate` writes this file") from None
    names = [point.name for point in points]
    if not points or len(set(names)) < len(names):
        raise UserError(f"{file}: needs points, of different names; `dapo ablate` writes this file")
    for point in points:
        if len({run.seed for run in point.runs}) < len(point.runs):
            raise UserError(f"{file}: point {point.name} has a seed twice; `dapo ablate` writes this file")
    return Study(name, kind, recipe, match, _baseline(points, baseline, default), points)


def last_event(file: Path) -> Record | None:
    """The last that `dapo ablate` noted of a run; None where it has not begun."""
    events = read_lines(file, "event")
    return events[-1] if events else None


def _with_event(run: Run, event: Record | None) -> Run:
    """A run that did not come to its end may have failed; then its last words say why."""
    if event is None or event.get("event") != "failed" or run.state not in (State.UNFINISHED, State.MISSING):
        return run
    words = f"exit code {event.get('exit_code')}: {event.get('message') or 'it said nothing'} ({run.detail})"
    return replace(run, state=State.FAILED, detail=words)


def _points(planned: Sequence[Record], folder: Path) -> Iterator[Point]:
    for point in planned:
        runs = []
        for planned_run in point["runs"]:
            seed, place = int(planned_run["seed"]), str(planned_run["dir"])
            run = read_or_explain(folder / place, place.removeprefix(RUNS_PREFIX), seed)
            runs.append(_with_event(run, last_event((folder / place).with_suffix(STATUS_SUFFIX))))
        reference = point.get("reference")
        yield Point(
            name=str(point["name"]),
            label=str(point.get("label") or point["name"]),
            runs=runs,
            planned={str(key): (old, new) for key, (old, new) in point["changed"].items()},
            reference=None if reference is None else float(reference),
        )
