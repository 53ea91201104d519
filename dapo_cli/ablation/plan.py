"""The plan of an ablation, as its YAML file says it: which recipe, which points, which seeds, matched by what."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dapo_cli.config.shipped import find_plan, find_recipe
from dapo_cli.config.source import read_yaml, yaml_complaint
from dapo_cli.config.suggest import hint
from dapo_cli.errors import UserError

Choice = TypeVar("Choice", bound=Enum)

MOST_SEEDS = MOST_POINTS = 10_000  # what is more was not meant, and would not end

NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")  # of a folder, and of a run after --only


class Kind(Enum):
    ladder = "ladder"
    leave_one_out = "leave_one_out"
    grid = "grid"
    list = "list"


class MatchBy(Enum):
    steps = "steps"
    rollouts = "rollouts"
    seconds = "seconds"


ENTRIES = {Kind.ladder: "rungs", Kind.leave_one_out: "parts", Kind.grid: "axes", Kind.list: "points"}
BUDGET_KEYS = {
    MatchBy.steps: "run.steps",
    MatchBy.rollouts: "run.budget_rollouts",
    MatchBy.seconds: "run.budget_seconds",
}
PLAN_KEYS = ("recipe", "dir", "kind", "base", *ENTRIES.values(), "seeds", "match")
ENTRY_KEYS = ("name", "label", "set", "reference")


@dataclass(frozen=True)
class Match:
    """What all points may spend: so many steps, judged completions, or seconds of training."""

    by: MatchBy
    amount: int | float

    @property
    def override(self) -> str:
        return f"{BUDGET_KEYS[self.by]}={self.amount}"


@dataclass(frozen=True)
class Entry:
    """A rung, part or point of a plan. `overrides` are what it sets; `reference` is a published figure to show beside
    this point's."""

    name: str
    label: str
    overrides: tuple[str, ...]
    reference: float | None = None


@dataclass(frozen=True)
class Plan:
    """`entries` are those of `kind` but for a grid, which has `axes` (key -> values). No `match` leaves run.steps to
    the recipe."""

    path: Path
    recipe: str
    dir: Path
    kind: Kind
    base: tuple[str, ...]
    entries: tuple[Entry, ...]
    axes: dict[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    match: Match | None

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def recipe_file(self) -> Path:
        """The recipe beside the plan, or the one that its text means anywhere else. Raises UserError for neither."""
        beside = self.path.parent / self.recipe
        return beside if beside.is_file() else find_recipe(self.recipe)


def read_plan(path_or_name: str) -> Plan:
    """A plan file, or a shipped plan by its name. Raises UserError with every problem of its form."""
    path = find_plan(path_or_name)
    reader = _Reader()
    tree = _read_tree(path, reader.problems)
    for key in tree:
        if key not in PLAN_KEYS:
            reader.problems.append(f"{key}: no such key; keys: {', '.join(PLAN_KEYS)}{hint(str(key), PLAN_KEYS)}")
    kind = reader.choice("kind", tree.get("kind"), Kind)
    entries: tuple[Entry, ...] = ()
    axes: dict[str, tuple[str, ...]] = {}
    if kind is not None:
        for other, key in ENTRIES.items():
            if other is not kind and key in tree:
                reader.problems.append(f"{key}: belongs to kind {other.name}; kind {kind.name} takes {ENTRIES[kind]}")
        key = ENTRIES[kind]
        if kind is Kind.grid:
            axes = reader.axes(key, tree.get(key))
        else:
            entries = reader.entries(key, tree.get(key), at_least=1 if kind is Kind.leave_one_out else 2)
    plan = Plan(
        path=path,
        recipe=reader.text("recipe", tree.get("recipe")),
        dir=Path(reader.text("dir", tree.get("dir"))).expanduser(),
        kind=kind or Kind.list,
        base=reader.overrides("base", tree.get("base", [])),
        entries=entries,
        axes=axes,
        seeds=reader.seeds("seeds", tree.get("seeds", "1")),
        match=reader.match("match", tree["match"]) if "match" in tree else None,
    )
    raise_problems(path, reader.problems)
    return plan


def raise_problems(path: Path, problems: list[str]) -> None:
    """Raises UserError with all of them, where there are any."""
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise UserError("\n".join([f"plan {path}: {count}", *(f"  {problem}" for problem in problems)]))


def _read_tree(path: Path, problems: list[str]) -> dict[str, Any]:
    loader, node = read_yaml(path, "plan")
    problems += _given_twice(node, "")
    try:
        tree = loader.construct_document(node) if node is not None else {}
    except yaml.YAMLError as error:
        raise UserError(yaml_complaint(error)) from error
    if not isinstance(tree, dict):
        raise UserError(f"plan {path}: must be `key: value` lines (keys: {', '.join(PLAN_KEYS)})")
    return tree


def _given_twice(node: yaml.Node | None, prefix: str) -> Iterator[str]:
    if not isinstance(node, yaml.MappingNode):
        return
    for name, count in Counter(str(key.value) for key, _ in node.value).items():
        if count > 1:
            yield f"{prefix}{name} is given twice; keep one"
    for key, value in node.value:
        yield from _given_twice(value, f"{prefix}{key.value}.")


@dataclass
class _Reader:
    """Takes values of a plan as their key wants them; what is wrong goes to `problems`, and something usable comes
    back. All scalars are texts (`RecipeLoader`)."""

    problems: list[str] = field(default_factory=list)

    def text(self, key: str, value: Any) -> str:
        if isinstance(value, str) and value.strip():
            return value
        self.problems.append(f"{key}: missing" if value is None else f"{key} = {value}: must be a text")
        return ""

    def choice(self, key: str, value: Any, kind: type[Choice]) -> Choice | None:
        names = list(kind.__members__)
        if isinstance(value, str) and value in names:
            return kind[value]
        said = f"{key}: missing" if value is None else f"{key} = {value}"
        self.problems.append(f"{said}: must be one of {', '.join(names)}{hint(str(value), names)}")
        return None

    def number(self, key: str, value: Any, *, whole: bool, above: float) -> int | float | None:
        """None for what is no such number."""
        try:
            number = int(value) if whole else float(value)
            if above < number < float("inf"):
                return number
        except (TypeError, ValueError):
            pass
        self.problems.append(f"{key} = {value}: must be a {'whole ' if whole else ''}number above {above}")
        return None

    def overrides(self, key: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            self.problems.append(f"{key}: must be a list of KEY=VALUE texts")
            return ()
        for item in value:
            if not isinstance(item, str) or "=" not in item:
                self.problems.append(f"{key}: {item}: must be a KEY=VALUE text; put one with a list in quotes")
        return tuple(item for item in value if isinstance(item, str) and "=" in item)

    def entries(self, key: str, value: Any, at_least: int) -> tuple[Entry, ...]:
        if not isinstance(value, list) or len(value) < at_least:
            self.problems.append(f"{key}: must be a list of at least {at_least} of `{{name: …, set: [KEY=VALUE]}}`")
            return ()
        entries = [self._entry(f"{key}[{place}]", item) for place, item in enumerate(value)]
        names = [entry.name for entry in entries]
        for name in dict.fromkeys(filter(None, names)):
            if names.count(name) > 1:
                self.problems.append(f"{key}: name {name} is given twice; runs need names of their own")
        return tuple(entries)

    def _entry(self, key: str, value: Any) -> Entry:
        if not isinstance(value, dict):
            self.problems.append(f"{key} = {value}: must be `{{name: …, set: [KEY=VALUE]}}`")
            return Entry("", "", ())
        for other in value:
            if other not in ENTRY_KEYS:
                known = ", ".join(ENTRY_KEYS)
                self.problems.append(f"{key}.{other}: no such key; keys: {known}{hint(str(other), ENTRY_KEYS)}")
        name = self.text(f"{key}.name", value.get("name"))
        if name and not NAME.fullmatch(name):
            self.problems.append(f"{key}.name = {name}: names a folder: letters, digits and . _ + - only")
        label = self.text(f"{key}.label", value.get("label", name or "-"))
        reference = None
        if "reference" in value:
            reference = self.number(f"{key}.reference", value["reference"], whole=False, above=float("-inf"))
        return Entry(name, label, self.overrides(f"{key}.set", value.get("set", [])), reference)

    def axes(self, key: str, value: Any) -> dict[str, tuple[str, ...]]:
        if not isinstance(value, dict) or not value:
            self.problems.append(f"{key}: must be `KEY: [VALUE, …]` lines")
            return {}
        axes = {}
        for name, values in value.items():
            if isinstance(values, list) and values:
                axes[str(name)] = tuple(map(_spelt, values))
            else:
                self.problems.append(f"{key}.{name} = {values}: must be a list of values")
        if (count := prod(map(len, axes.values()))) > MOST_POINTS:
            self.problems.append(f"{key}: {count:,} combinations; at most {MOST_POINTS:,}")
            return {}
        return axes

    def seeds(self, key: str, value: Any) -> tuple[int, ...]:
        """A list of seeds, or how many: 3 stands for 0, 1, 2."""
        if not isinstance(value, list):
            count = int(self.number(key, value, whole=True, above=0) or 0)
            if count > MOST_SEEDS:
                self.problems.append(f"{key} = {count}: at most {MOST_SEEDS:,}; each is a run of every point")
                return ()
            return tuple(range(count))
        seeds = [self.number(key, item, whole=True, above=-1) for item in value]
        if not seeds or len(set(seeds)) < len(seeds):
            self.problems.append(f"{key} = {value}: must be different seeds, one at least")
        return tuple(int(seed or 0) for seed in seeds)

    def match(self, key: str, value: Any) -> Match | None:
        if not isinstance(value, dict) or set(value) != {"by", "amount"}:
            self.problems.append(f"{key} = {value}: must be `{{by: steps | rollouts | seconds, amount: N}}`")
            return None
        by = self.choice(f"{key}.by", value["by"], MatchBy)
        amount = self.number(f"{key}.amount", value["amount"], whole=by is not MatchBy.seconds, above=0)
        return Match(by, amount) if by is not None and amount is not None else None


def _spelt(value: Any) -> str:
    """A value of an axis as an override spells it: null, or a list in brackets."""
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf")).removesuffix("\n").removesuffix("\n...")
