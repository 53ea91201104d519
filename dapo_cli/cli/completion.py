"""What a shell offers after TAB: recipes, plans, runs, keys and their values.

Opens no recipe, so that it answers at once: the keys of all options are offered, whichever of them a recipe has chosen.
"""

import types
import typing
from enum import Enum
from functools import cache
from pathlib import Path

import typer

from dapo_cli.config import schema
from dapo_cli.config.keys import Key, choice_key, shape_of, shown
from dapo_cli.config.shipped import SUFFIXES, plan_names, recipe_names, recipes_folder

RUNS = "runs"  # where the shipped recipes put theirs


def shipped(incomplete: str) -> list[str]:
    """Names of shipped recipes."""
    return _starting(recipe_names(), incomplete)


def recipes(incomplete: str) -> list[str]:
    """What RECIPE may be: a shipped name, or a YAML file."""
    return [*shipped(incomplete), *_files(incomplete)]


def recipes_and_runs(incomplete: str) -> list[str]:
    """What `dapo train` takes: a run folder, too."""
    return [*recipes(incomplete), *runs(incomplete)]


def plans(incomplete: str) -> list[str]:
    """Plans of ablations: a shipped name, or a YAML file."""
    return [*_starting(plan_names(), incomplete), *_files(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Run folders: those in the folder that is being typed, and in runs/; by their manifest."""
    typed = Path(incomplete.rpartition("/")[0] or ".")
    found = {str(file.parent) for folder in (typed, Path(RUNS)) for file in folder.glob("*/manifest.json")}
    return _starting(sorted(found), incomplete)


def overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """KEY=VALUE: sections, then keys, then values.

    bash hands `algorithm=da` over as three words, of which it replaces the last: there, values come without their key.
    """
    before = [word for word in ctx.params.get("overrides") or [] if word != "="]
    if "=" not in incomplete and before and before[-1] in _values():
        return _starting(_values()[before[-1]], incomplete)
    return _assignments(incomplete)


def _assignments(incomplete: str) -> list[str]:
    name, equals, value = incomplete.partition("=")
    if equals:
        return [f"{name}={each}" for each in _starting(_values().get(name, []), value)]
    names = _starting(sorted(_values()), incomplete)
    if len(names) == 1:  # `key=` alone would get a space behind it
        return [f"{names[0]}=", *(f"{names[0]}={each}" for each in _values()[names[0]])]
    steps = sorted({_step(each, incomplete.count(".")) for each in names})
    return [f"{each}=" for each in names] if len(steps) == 1 else steps  # neither must a section


def _step(name: str, dots: int) -> str:
    """The part of a key up to the first dot behind `dots` ones, or the whole of it: `eval.` of `eval.every`."""
    parts = [name] if "@" in name else name.split(".")
    return ".".join(parts[: dots + 1]) + ("." if len(parts) > dots + 1 else "=")


def _starting(words: list[str], start: str) -> list[str]:
    """A name with a line break is left out: the shell would make two words of it."""
    return [word for word in words if word.startswith(start) and word.isprintable()]


def _files(incomplete: str) -> list[str]:
    folder = Path(incomplete.rpartition("/")[0] or ".")
    files = [str(path) for suffix in SUFFIXES for path in folder.glob(f"*{suffix}")]
    return _starting(sorted(files), incomplete)


@cache
def _values() -> dict[str, list[str]]:
    """What may stand after `=`: of every key of every option its choices, else its default; of a group its options."""
    shape = shape_of({})
    keys = dict(shape.keys)
    found: dict[str, list[str]] = {}
    for slot, info in shape.slots.items():
        for option in schema.OPTIONS[info.group].values():
            keys |= shape_of({slot: option}).keys
        found[choice_key(info.group, slot)] = _options(info.group)
    presets = {path.parent.name for path in recipes_folder().glob("*/*.yaml")} & set(schema.Recipe.__dataclass_fields__)
    found |= {group: _options(group) for group in presets if group not in found}
    return found | {name: _values_of(key) for name, key in keys.items()}


def _options(group: str) -> list[str]:
    files = [path.stem for path in (recipes_folder() / group).glob("*.yaml")]
    return sorted({*schema.OPTIONS.get(group, {}), *files})


def _values_of(key: Key) -> list[str]:
    kinds = typing.get_args(key.kind) or (key.kind,)
    choices = [name for kind in kinds if issubclass(kind, Enum) for name in kind.__members__]
    choices += ["false", "true"] if bool in kinds else []
    if choices:
        return choices + (["null"] if types.NoneType in kinds else [])
    return [] if key.default in (schema.MISSING, "") else [shown(key.default)]
