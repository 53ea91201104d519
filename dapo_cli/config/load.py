"""From a recipe file and overrides to a checked `Recipe`, with the origin of each value."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dapo_cli.config import schema, validate
from dapo_cli.config.check import choice_problem, leaf_problem, missing_problems, usable_defaults
from dapo_cli.config.compose import Composer, Layer, compose
from dapo_cli.config.keys import shape_of
from dapo_cli.config.shipped import find_recipe, model_folder
from dapo_cli.config.source import Leaf, Overrides, flatten, nest, read_overrides, read_source
from dapo_cli.errors import UserError


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that passed every check.

    `config` is the resolved tree behind `recipe`. `origins` maps each leaf (`optimizer.lr`) to `default`, `file NAME`,
    `option GROUP=NAME` or `override`; `options` maps each slot that was filled (`data`, `eval.data`) to its option.
    """

    name: str
    path: Path
    recipe: schema.Recipe
    config: DictConfig
    origins: dict[str, str]
    options: dict[str, str]


def load_recipe(path_or_name: str, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load a recipe file or a shipped recipe. Raises UserError with every problem found, one line each."""
    path = find_recipe(path_or_name)
    source = read_source(path)
    composer = Composer(path)
    defaults, defaults_problems = usable_defaults(source, composer)
    given = read_overrides(list(overrides), composer.groups())
    choices, choice_problems = _usable_choices(given, composer)
    problems = [*source.problems, *defaults_problems, *given.problems, *choice_problems]
    try:
        layers = composer.layers(defaults, choices)
    except UserError as error:
        raise _failure(path, [*problems, str(error)]) from error

    written, form_problems = _leaves_of(layers)
    written += [("file " + path.name, source.leaves), ("override", given.leaves)]
    form_problems += _overruled_presets(given, written)
    chosen = {layer.package: layer for layer in layers if layer.path is None}
    shape = shape_of(_classes(chosen))
    checks = [leaf_problem(name, leaf, shape) for _, leaves in written for name, leaf in leaves.items()]
    problems += form_problems + [problem for problem in checks if problem]
    values = _merged([leaves for _, leaves in written])
    # eval.data=null empties a slot, unless a later layer sets keys in it.
    kept = flatten(nest(values))
    filled = {slot: layer for slot, layer in chosen.items() if kept.get(slot, layer) is not None}
    classes = _classes(filled)
    problems += missing_problems(shape_of(classes), values, path.name)
    if problems:
        raise _failure(path, problems)

    config = compose(classes, kept)
    _resolve(config, list(shape_of(classes).keys), path)
    recipe = OmegaConf.to_object(config)
    assert isinstance(recipe, schema.Recipe)
    problems = [*validate.problems(recipe), *_model_problems(recipe.model)]
    if problems:
        raise _failure(path, problems)
    origins = dict.fromkeys(flatten(plain_tree(config)), "default")
    for origin, leaves in written:
        origins |= {name: origin for name in leaves if name in kept}
    options = {slot: layer.option for slot, layer in filled.items()}
    return LoadedRecipe(path.stem, path, recipe, config, origins, options)


def load_section(slot: str, option: str, overrides: Sequence[str] = ()) -> Any:
    """One section by itself: a built-in option or an option file of its group, with `overrides` of its keys
    (`data.split=test`) laid over. Raises UserError with every problem found, one line each.

    >>> load_section("rollout", "transformers", ["rollout.max_batch_completions=64"])
    TransformersRollout(max_batch_completions=64)
    """
    composer = Composer(Path.cwd() / slot)
    if reason := choice_problem(slot, option, composer):
        raise UserError(f"{slot}={option}: {reason}")
    given = read_overrides(list(overrides), set())
    layers = composer.layers([{slot: option}], {})
    written, problems = _leaves_of(layers)
    leaves = [*(leaves for _, leaves in written), given.leaves]
    classes = _classes({layer.package: layer for layer in layers if layer.path is None})
    shape = shape_of(classes)
    own = {name: key for name, key in shape.keys.items() if name.startswith(f"{slot}.")}
    checks = [leaf_problem(name, leaf, shape) for found in leaves for name, leaf in found.items()]
    values = _merged(leaves)
    problems += [*given.problems, *(problem for problem in checks if problem)]
    problems += missing_problems(replace(shape, slots={}, keys=own), values, f"{slot}={option}")
    if not problems:
        section = OmegaConf.to_object(compose(classes, flatten(nest(values)))[slot])
        problems = validate.section_problems(section, slot)
    if problems:
        raise UserError("\n  ".join([f"{slot}={option}: it cannot be used:", *problems]))
    return section


def _failure(path: Path, problems: list[str]) -> UserError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return UserError("\n".join([f"recipe {path}: {count}", *(f"  {problem}" for problem in problems)]))


def _usable_choices(given: Overrides, composer: Composer) -> tuple[dict[str, str], list[str]]:
    reasons = {key: choice_problem(key, leaf.value, composer) for key, leaf in given.choices.items()}
    problems = [
        f"{given.choices[key].place}: {key}={given.choices[key].value}: {reason}"
        for key, reason in reasons.items()
        if reason
    ]
    return {key: leaf.value for key, leaf in given.choices.items() if not reasons[key]}, problems


def _leaves_of(layers: list[Layer]) -> tuple[list[tuple[str, dict[str, Leaf]]], list[str]]:
    """(origin, leaves) of each inherited recipe and option file, and what is wrong with their form."""
    written, problems = [], []
    for layer in layers:
        if layer.path is None:
            continue
        if layer.group in schema.OPTIONS and layer.option in schema.OPTIONS[layer.group]:
            problems.append(f"{layer.path}: has the name of a built-in option of {layer.group}; rename it")
        source = read_source(layer.path)
        prefix = f"{layer.package}." if layer.package else ""
        origin = f"option {layer.group}={layer.option}" if layer.group else f"file {layer.path.name}"
        written.append((origin, {prefix + name: leaf for name, leaf in source.leaves.items()}))
        problems += source.problems
    return written, problems


def _overruled_presets(given: Overrides, written: list[tuple[str, dict[str, Leaf]]]) -> list[str]:
    """The keys of a preset chosen on the command line that a file laid over it sets to something else: what would run
    is not what was asked for. In a file's own `defaults` the same is meant."""
    problems = []
    for group, choice in given.choices.items():
        origins = [origin for origin, _ in written]
        if group.partition("@")[0] in schema.OPTIONS or f"option {group}={choice.value}" not in origins:
            continue
        place = origins.index(f"option {group}={choice.value}")
        for name, asked in written[place][1].items():
            over = [leaves[name] for _, leaves in written[place + 1 : -1] if name in leaves]
            if over and name not in given.leaves and not _same(over[-1].value, asked.value):
                problems.append(
                    f"{choice.place}: {group}={choice.value}: sets {name} to {asked.value}, but {over[-1].place} sets "
                    f"it to {over[-1].value}; delete it there, or add {name}={asked.value} to the command line"
                )
    return problems


def _same(one: Any, other: Any) -> bool:
    """Whether two leaves, texts as they are in a file, spell one value: 3e-4 and 0.0003."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return str(one).lower() == str(other).lower()


def _classes(slots: dict[str, Layer]) -> dict[str, type]:
    return {slot: schema.OPTIONS[layer.group][layer.option] for slot, layer in slots.items()}


def _merged(layers: list[dict[str, Leaf]]) -> dict[str, Any]:
    """The last value of each key, in the order of writing: of a section's null and a key inside, the later counts."""
    values: dict[str, Any] = {}
    for leaves in layers:
        for name, leaf in leaves.items():
            values.pop(name, None)
            values[name] = leaf.value
    return values


def _resolve(config: DictConfig, keys: list[str], path: Path) -> None:
    """Replace interpolations by what they stand for. Raises UserError where one leads nowhere or to a wrong type."""
    problems = []
    for name in keys:
        try:
            OmegaConf.select(config, name)
        except OmegaConfBaseException as error:
            reason = str(error).strip().splitlines()[0]
            problems.append(f"{path.name}: {name} = {flatten(plain_tree(config))[name]}: {reason}")
    if problems:
        raise _failure(path, problems)
    OmegaConf.resolve(config)


def _model_problems(model: schema.ModelConfig) -> list[str]:
    try:
        if isinstance(model, schema.PretrainedModel):
            model_folder(model.path)
    except UserError as error:
        return [str(error)]
    return []


def plain_tree(config: DictConfig) -> dict[str, Any]:
    """The tree as dictionaries and YAML's own types; interpolations stay as they are written."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=False, enum_to_str=True))
