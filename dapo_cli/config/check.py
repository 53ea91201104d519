"""Everything wrong with the leaves and the `defaults` list of a recipe, one line a problem."""

from functools import cache
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from dapo_cli.config import schema
from dapo_cli.config.compose import Composer
from dapo_cli.config.keys import Key, Shape, choice_key, options_with, shape_of, shown
from dapo_cli.config.source import Leaf, Source
from dapo_cli.config.suggest import closest_key, hint
from dapo_cli.config.tabular_rules import ALL_OR_NONE


def usable_defaults(source: Source, composer: Composer) -> tuple[list[Any], list[str]]:
    """The options and bases of a `defaults` list that can be composed, and the problems of its other entries."""
    usable, problems = [], []
    for entry in source.defaults:
        problem = _entry_problem(entry, source, composer)
        if problem:
            problems.append(f"{source.defaults_place}: defaults entry {_shown(entry)}: {problem}")
        else:
            usable.append(entry)
    plain = [entry for entry in usable if not _is_override(entry)]
    if "_self_" in plain[:-1]:
        problems.append(
            f"{source.defaults_place}: defaults: put `- _self_` last; its own values go over those of its options"
        )
    return [entry for entry in usable if entry != "_self_"], problems


def _is_override(entry: Any) -> bool:
    return isinstance(entry, dict) and next(iter(entry)).startswith("override ")


def _shown(entry: Any) -> str:
    if isinstance(entry, dict):
        return ", ".join(f"`{key}: {shown(value)}`" for key, value in entry.items())
    return f"`{entry}`"


def _entry_problem(entry: Any, source: Source, composer: Composer) -> str | None:
    if entry == "_self_":
        return None
    if isinstance(entry, str):
        return _base_problem(entry, source, composer)
    if not isinstance(entry, dict) or len(entry) != 1:
        return "must be `GROUP: OPTION`, the name of a recipe to inherit, or `_self_`"
    ((key, option),) = entry.items()
    return choice_problem(str(key).removeprefix("override "), option, composer)


def _base_problem(name: str, source: Source, composer: Composer) -> str | None:
    found = composer.find(name.lstrip("/").removesuffix(".yaml"))
    if found is None:
        known = [file.stem for folder in composer.folders for file in folder.glob("*.yaml")]
        return f"no recipe of that name beside this one or among the shipped{hint(name, known)}"
    if found.resolve() == source.path.resolve():
        return "a recipe cannot inherit itself; rename this file"
    return None


def choice_problem(key: str, option: Any, composer: Composer) -> str | None:
    """What is wrong with choosing `option` for `key`, a group with or without `@SECTION`; None when nothing is."""
    group, _, slot = key.lstrip("/").partition("@")
    groups, slots = composer.groups(), shape_of({}).slots
    if group not in groups:
        return f"no group {group}; groups: {', '.join(sorted(groups))}{hint(group, groups)}"
    if slot and (slot not in slots or slots[slot].group != group):
        homes = [name for name, info in slots.items() if info.group == group] or [f"its own place, by `{group}` alone"]
        return f"{slot} takes no {group} option; {group} goes to {' or '.join(homes)}"
    options = composer.options(group)
    if not isinstance(option, str) or option.removesuffix(".yaml") not in options:
        return f"no option {option} of {group}; options: {', '.join(options)}{hint(str(option), options)}"
    return None


def leaf_problem(name: str, leaf: Leaf, shape: Shape) -> str | None:
    """What is wrong with one leaf, place included; None when nothing is, or when its section's option is unknown."""
    if name in shape.keys:
        reason = _value_problem(shape.keys[name], leaf.value)
        return f"{leaf.place}: {name} = {shown(leaf.value)}: {reason}" if reason else None
    if name in shape.sections:
        return _section_problem(name, leaf, shape)
    slot = next((slot for slot in shape.slots if name.startswith(f"{slot}.")), None)
    if slot and slot not in shape.filled:
        group = shape.slots[slot].group
        if shape.slots[slot].required:
            return None
        return f"{leaf.place}: {name}: {slot} has no option; add `- {group}@{slot}: OPTION` to defaults"
    if name in options_with():
        owners = ", ".join(options_with()[name])
        said = f"{leaf.place}: {name} = {shown(leaf.value)}: not a key of {slot}'s option; it belongs to {owners}"
        whole = f" ({ALL_OR_NONE})" if slot == "model" else ""
        return f"{said}: delete it, or choose that option{whole}"
    near = closest_key(name, [*shape.keys, *options_with()])
    advice = f"; did you mean {near}?" if near else "; `dapo recipe keys` lists them all"
    return f"{leaf.place}: {name} = {shown(leaf.value)}: no such key{advice}"


def _section_problem(name: str, leaf: Leaf, shape: Shape) -> str | None:
    if leaf.value is None and name in shape.slots and not shape.slots[name].required:
        return None
    if leaf.value is None:
        return f"{leaf.place}: {name} is an empty section; give it keys or delete the line"
    if name in shape.slots:
        group = shape.slots[name].group
        choice = choice_key(group, name)
        remedy = f"choose its option by `- {choice}: OPTION` in defaults, or by {choice}=OPTION on the command line"
        return f"{leaf.place}: {name} = {shown(leaf.value)}: {name} is a section; {remedy}"
    inside = [key for key in shape.keys if key.startswith(f"{name}.")]
    return f"{leaf.place}: {name} = {shown(leaf.value)}: {name} is a section; set its keys: {', '.join(inside)}"


def _value_problem(key: Key, value: Any) -> str | None:
    """OmegaConf decides what a value may be, so that a check here never disagrees with the composition."""
    if value == MISSING:
        return None
    if key.kind is bool and str(value).lstrip("+-").isdigit():
        return f"must be {key.expected}"  # OmegaConf takes any number but 0 for true
    try:
        _blank(key.owner)[key.field_name] = value
        OmegaConf.create({"value": value})
    except GrammarParseError:
        return "not a valid ${...} expression"
    except OmegaConfBaseException:
        near = hint(str(value), key.expected.removeprefix("one of ").split(", ")) if "one of" in key.expected else ""
        return f"must be {key.expected}{near}"
    return None


@cache
def _blank(owner: type) -> DictConfig:
    return OmegaConf.structured(owner)


def missing_problems(shape: Shape, values: dict[str, Any], recipe: str) -> list[str]:
    """Options not chosen and keys without a value; `values` are those of all layers, by key."""
    problems = []
    for slot, info in shape.slots.items():
        if info.required and slot not in shape.filled:
            options = ", ".join(schema.OPTIONS[info.group])
            problems.append(
                f"{recipe}: no {slot} chosen; add `- {slot}: OPTION` to its defaults list (options: {options})"
            )
    for name, key in shape.keys.items():
        if values.get(name, key.default) == MISSING:
            problems.append(f"{recipe}: {name} is missing: it has no default; set it ({key.expected})")
    return problems
