"""What a recipe file or a command line says, leaf by leaf, before any schema is consulted."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dapo_cli.errors import UserError

COMMAND_LINE = "command line"  # the place of an override in messages
MOST_BYTES = 1 << 20  # of a file; shipped ones have some thousand
MOST_KEYS = 1000  # of a recipe; there are about 300
MOST_ALIASED = 10_000  # values that the aliases of a file stand for


@dataclass(frozen=True)
class Leaf:
    """A value and the place to name in a message about it (`my.yaml:12`, `command line`)."""

    value: Any
    place: str


@dataclass
class Source:
    """One recipe or option file: its `defaults` list, its leaves by dotted key, and what is wrong with its form."""

    path: Path
    defaults: list[Any] = field(default_factory=list)
    defaults_place: str = ""
    leaves: dict[str, Leaf] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class RecipeLoader(yaml.SafeLoader):
    """YAML in which a plain scalar is a text, or null: the schema decides what a text means.

    YAML 1.1 itself would read the revision 0123456 as 42798, the enum name `off` as false and 1e-6 as a text.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own attribute)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def get_single_node(self) -> yaml.Node | None:
        """Raises a YAMLError for aliases that stand for more than MOST_ALIASED values, or for themselves: some lines of
        them can stand for more than any memory holds."""
        node = super().get_single_node()
        sizes: dict[int, int] = {}
        if node is not None and _expanded(node, sizes) - len(sizes) > MOST_ALIASED:
            problem = f"its aliases stand for more than {MOST_ALIASED:,} values; write them out, or fewer"
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
        return node


def _expanded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Values in it where each alias is what it stands for; `sizes` are those known by their identity."""
    if id(node) not in sizes:
        sizes[id(node)] = 2 * MOST_BYTES  # of one inside itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for each in inner for part in (each if isinstance(each, tuple) else (each,))]
        sizes[id(node)] = 1 + sum(_expanded(part, sizes) for part in parts)
    return sizes[id(node)]


def read_yaml(path: Path, kind: str) -> tuple[RecipeLoader, yaml.Node | None]:
    """A file's content, and what makes values of it; `kind` says in messages what the file is. Raises UserError."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise UserError(f"{kind} {path}: has {size:,} bytes, and no {kind} needs more than {MOST_BYTES:,}")
            loader = RecipeLoader(file)
            return loader, loader.get_single_node()
    except OSError as error:
        raise UserError(f"{kind} {path}: cannot be read ({error})") from error
    except RecursionError:
        raise UserError(f"{kind} {path}: is nested too deeply; write `key: value` lines in sections") from None
    except yaml.YAMLError as error:
        raise UserError(yaml_complaint(error)) from error


def read_source(path: Path) -> Source:
    """Read one file. Raises UserError when it is not a YAML mapping."""
    loader, node = read_yaml(path, "recipe")
    if node is None:
        raise UserError(f"recipe {path}: is empty; `dapo recipe cp quickstart .` gives one to start from")
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"recipe {path}: must be sections of `key: value` lines, not a {node.id}")
    source = Source(path)
    _collect(loader, node, "", source)
    if len(source.leaves) > MOST_KEYS:
        raise UserError(f"recipe {path}: sets {len(source.leaves):,} keys, more than there are; give a recipe's file")
    if not isinstance(source.defaults, list):
        source.problems.append(f"{source.defaults_place}: defaults must be a list of `- GROUP: OPTION` lines")
        source.defaults = []
    return source


def _collect(loader: RecipeLoader, mapping: yaml.MappingNode, prefix: str, source: Source) -> None:
    written = Counter(str(key_node.value) for key_node, _ in mapping.value)  # before `<<` brings in more
    loader.flatten_mapping(mapping)
    for key_node, value_node in mapping.value:
        name = str(key_node.value)
        place = f"{source.path.name}:{key_node.start_mark.line + 1}"
        if written[name] > 1:
            written[name] -= 1
            source.problems.append(f"{place}: {prefix}{name} is given twice; keep one")
        if "." in name:
            source.problems.append(
                f"{place}: {prefix}{name}: a dotted key works on the command line only; "
                f"in a file, write its last part under its section"
            )
        elif prefix + name == "defaults":
            source.defaults = loader.construct_object(value_node, deep=True)
            source.defaults_place = place
        elif isinstance(value_node, yaml.MappingNode):
            _collect(loader, value_node, f"{prefix}{name}.", source)
        else:
            source.leaves[prefix + name] = Leaf(loader.construct_object(value_node, deep=True), place)


def yaml_complaint(error: yaml.YAMLError) -> str:
    """What keeps a file from being YAML, after the file's name and line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:  # characters that YAML does not allow
        return f"{getattr(error, 'name', 'recipe')}: not valid YAML: {str(error).splitlines()[0]}"
    reasons = ", ".join(reason for reason in (error.context, error.problem) if reason)
    return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: not valid YAML: {reasons}"


@dataclass
class Overrides:
    """A command line: option choices (`data@eval.data` -> `files`), leaves, and what is wrong with its form."""

    choices: dict[str, Leaf] = field(default_factory=dict)
    leaves: dict[str, Leaf] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_overrides(texts: list[str], groups: set[str]) -> Overrides:
    """Sort `key=value` texts into option choices and leaves; `groups` are the keys whose value is an option's name."""
    overrides = Overrides()
    for text in texts:
        key, equals, raw = text.partition("=")
        if text[:1] in ("+", "~"):
            plain = text.lstrip("+~")
            overrides.problems.append(
                f"{COMMAND_LINE}: {text}: `+`, `++` and `~` are not accepted, as they let misspelt keys pass; "
                f"write {plain}"
            )
        elif not equals or not key.strip():
            overrides.problems.append(f"{COMMAND_LINE}: {text}: must have the form key=value")
        else:
            _sort_override(key.strip(), raw, groups, overrides)
    return overrides


def _sort_override(key: str, raw: str, groups: set[str], overrides: Overrides) -> None:
    value = _override_value(raw)
    if "@" in key and not isinstance(value, str):
        overrides.problems.append(
            f"{COMMAND_LINE}: {key}={raw}: choose an option by name, or write {key.partition('@')[2]}=null for none"
        )
    elif "@" in key or (key in groups and isinstance(value, str)):
        overrides.choices[key] = Leaf(value, COMMAND_LINE)
    elif isinstance(value, dict):
        overrides.leaves |= {name: Leaf(leaf, COMMAND_LINE) for name, leaf in flatten(value, f"{key}.").items()}
    else:
        overrides.leaves[key] = Leaf(value, COMMAND_LINE)


def _override_value(raw: str) -> Any:
    """Lists, mappings, quoted texts and null are YAML; anything else, such as `a: b # c`, is taken as it stands."""
    if raw not in ("null", "~") and not raw.startswith(("[", "{", '"', "'")):
        return raw
    try:
        return yaml.load(raw, RecipeLoader)
    except yaml.YAMLError:
        return raw


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"run": {"steps": 3}} -> {"run.steps": 3}; an empty section vanishes."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """{"run.steps": 3} -> {"run": {"steps": 3}}; where one key is inside another, the later one wins."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, leaf = key.split(".")
        branch = tree
        for section in sections:
            if not isinstance(branch.get(section), dict):
                branch[section] = {}
            branch = branch[section]
        branch[leaf] = value
    return tree
