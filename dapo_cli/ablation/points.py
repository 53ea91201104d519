"""From a plan to its points: a recipe each, checked all together before the first run."""

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dapo_cli.ablation.plan import BUDGET_KEYS, NAME, Entry, Kind, Match, MatchBy, Plan, raise_problems
from dapo_cli.config.compose import Composer
from dapo_cli.config.keys import choice_key, shape_of, shown
from dapo_cli.config.load import LoadedRecipe, load_recipe, plain_tree
from dapo_cli.config.ranges import SEED
from dapo_cli.config.source import COMMAND_LINE, read_overrides
from dapo_cli.errors import UserError
from dapo_cli.tracking.manifest import Changed, changed, leaves

OWN_KEYS = ("run.dir", "run.seed")  # of a run, not of a point
THREADS = "run.threads=1"  # where nothing else is said: a number that follows the machine would change the results


@dataclass(frozen=True, eq=False)
class Point:
    """One recipe to compare. `overrides` are all that it takes beside the seed and the folder of a run, `changed` the
    keys in which it differs from the baseline, whose value comes first."""

    name: str
    label: str
    overrides: tuple[str, ...]
    recipe: LoadedRecipe
    changed: Changed
    reference: float | None


@dataclass(frozen=True)
class Run:
    """One training run of an ablation, in the folder `dir` below the ablation's."""

    point: Point
    seed: int

    @property
    def name(self) -> str:
        return f"{self.point.name}/seed_{self.seed}"

    @property
    def dir(self) -> Path:
        return Path("points", self.point.name, f"seed_{self.seed}")


@dataclass(frozen=True)
class Ablation:
    """A plan with its recipes. The first point is the baseline."""

    plan: Plan
    recipe_file: Path
    match: Match
    points: tuple[Point, ...]

    @property
    def runs(self) -> list[Run]:
        """Seed by seed, so that an ablation that is stopped early has compared all points on some seeds."""
        return [Run(point, seed) for seed in self.plan.seeds for point in self.points]


def expand(plan: Plan) -> list[Entry]:
    """The points that a plan asks for, the baseline first, with what each sets beyond `base`.

    ladder: each rung adds to those before. leave_one_out: all parts, then without each. grid: every combination, the
    last axis fastest. list: as it stands.
    """
    match plan.kind:
        case Kind.ladder:
            sets = itertools.accumulate(entry.overrides for entry in plan.entries)
            return [
                Entry(entry.name, entry.label, overrides, entry.reference)
                for entry, overrides in zip(plan.entries, sets, strict=True)
            ]
        case Kind.leave_one_out:
            full = Entry("full", "full", ())
            return [full] + [
                Entry(f"without_{part.name}", f"without {part.label}", part.overrides, part.reference)
                for part in plan.entries
            ]
        case Kind.grid:
            return [_grid_entry(plan.axes, values) for values in itertools.product(*plan.axes.values())]
        case Kind.list:
            return list(plan.entries)


def _grid_entry(axes: dict[str, tuple[str, ...]], values: Sequence[str]) -> Entry:
    """Named by its values: `clip_high=0.28,dynamic=true`, with the sections where keys of two have the same last
    part."""
    overrides = tuple(f"{key}={value}" for key, value in zip(axes, values, strict=True))
    leaves = [key.rpartition(".")[2] for key in axes]
    short = len(set(leaves)) == len(leaves)
    named = [f"{leaf if short else key}={value}" for leaf, key, value in zip(leaves, axes, values, strict=True)]
    name = "".join(letter if letter in "=," or NAME.fullmatch(f"x{letter}") else "-" for letter in ",".join(named))
    return Entry(name, ", ".join(overrides), overrides)


def load_ablation(plan: Plan) -> Ablation:
    """Every point's recipe, checked. Raises UserError with the problems of all points, each problem once."""
    recipe_file = plan.recipe_file
    entries = expand(plan)
    points, problems = _load(plan, recipe_file, entries)
    raise_problems(plan.path, [*_plan_problems(plan, recipe_file, entries), *problems])
    match = plan.match or Match(MatchBy.steps, points[0].recipe.recipe.run.steps)
    raise_problems(plan.path, _rule_problems(match, points))
    baseline = _leaves(points[0].recipe)
    return Ablation(plan, recipe_file, match, tuple(_compared(point, baseline) for point in points))


def _load(plan: Plan, recipe_file: Path, entries: list[Entry]) -> tuple[list[Point], list[str]]:
    """All points, their recipes under the first seed and not yet compared, and what is wrong with any."""
    points, faulty = [], defaultdict(list)
    for entry in entries:
        overrides = [*plan.base, *entry.overrides, *([plan.match.override] if plan.match else [])]
        run = [f"run.seed={plan.seeds[0]}", f"run.dir={plan.dir / 'points' / entry.name}"]
        try:
            recipe = load_recipe(str(recipe_file), [*overrides, *run])
            if recipe.recipe.run.threads is None:
                overrides.append(THREADS)
                recipe = load_recipe(str(recipe_file), [*overrides, *run])
            points.append(Point(entry.name, entry.label, tuple(overrides), recipe, {}, entry.reference))
        except UserError as error:
            for problem in str(error).splitlines()[1:] or [str(error)]:
                faulty[problem.strip().removeprefix(f"{COMMAND_LINE}: ")].append(entry.name)
    return points, _with_points(faulty, len(entries))


def _with_points(faulty: dict[str, list[str]], points: int) -> list[str]:
    """Each problem once, behind the names of the points that have it."""
    return [
        f"{'every point' if len(names) == points else 'point ' + ', '.join(names)}: {problem}"
        for problem, names in faulty.items()
    ]


def _compared(point: Point, baseline: dict[str, Any]) -> Point:
    return replace(point, changed=changed(baseline, _leaves(point.recipe)))


def _plan_problems(plan: Plan, recipe_file: Path, entries: list[Entry]) -> list[str]:
    """Rules that the plan's text breaks, before any recipe is loaded."""
    problems = []
    names = [entry.name for entry in entries]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            problems.append(
                f"point {name}: comes {names.count(name)} times; give values that differ in a folder's name"
            )
    if "${" in str(plan.dir):
        problems.append(f"dir = {plan.dir}: a plan's folder takes no ${{...}}")
    for seed in plan.seeds:
        if seed not in SEED:
            problems.append(f"seeds has {seed}: must be {SEED}")
    groups = Composer(recipe_file).groups()
    taken = dict.fromkeys(OWN_KEYS, "each run has its own")
    for by, key in BUDGET_KEYS.items():
        if by is not MatchBy.steps or (plan.match and plan.match.by is by):
            taken[key] = "`match` sets it for all points alike"
    problems += [f"base: {problem}" for problem in _taken(plan.base, groups, taken)]
    faulty: defaultdict[str, list[str]] = defaultdict(list)
    for entry in entries:
        for problem in _taken(entry.overrides, groups, taken):
            faulty[problem].append(entry.name)
    return [*problems, *_with_points(faulty, len(entries))]


def _taken(overrides: Sequence[str], groups: set[str], taken: dict[str, str]) -> list[str]:
    keys = read_overrides(list(overrides), groups).leaves
    return [f"{key}: {taken[key]}; take it out" for key in keys if key in taken]


def _rule_problems(match: Match, points: list[Point]) -> list[str]:
    """Rules between points, and of recipes that an ablation cannot run."""
    problems = []
    seen: dict[str, str] = {}
    for point in points:
        run, nodes = point.recipe.recipe.run, point.recipe.recipe.launch.nodes
        twin = seen.setdefault(json.dumps(_leaves(point.recipe), sort_keys=True), point.name)
        if twin != point.name:
            problems.append(f"points {twin} and {point.name} have the same recipe, key by key; drop one")
        if match.by is MatchBy.steps and run.steps != match.amount:
            problems.append(
                f"point {point.name}: run.steps = {run.steps}, but {match.amount} in {points[0].name}: without "
                "`match`, points are matched by steps; set the same, or match by rollouts or seconds"
            )
        for by, key in BUDGET_KEYS.items():
            value = getattr(run, key.removeprefix("run."))
            if by not in (match.by, MatchBy.steps) and value is not None:
                problems.append(f"point {point.name}: {key} = {value} in the recipe: take it out, `match` decides")
        if nodes > 1:
            problems.append(f"point {point.name}: launch.nodes = {nodes}: an ablation's runs take one node each")
    return problems


def _leaves(loaded: LoadedRecipe) -> dict[str, Any]:
    """All that decides a point's results but the seed: the option of each slot and every key."""
    slots = shape_of({}).slots
    options = {choice_key(slots[slot].group, slot): option for slot, option in loaded.options.items()}
    return options | {key: value for key, value in leaves(plain_tree(loaded.config), "") if key not in OWN_KEYS}


def change_lines(point: Point) -> list[str]:
    """`algorithm.clip_high: 0.2 -> 0.28` for every key that differs from the baseline."""
    return [f"{key}: {shown(before)} -> {shown(own)}" for key, (before, own) in point.changed.items()]
