"""The keys of a recipe as data: name, type, default and meaning, read from `schema.py`."""

import ast
import inspect
import re
import types
import typing
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from dapo_cli.config import schema


@dataclass(frozen=True)
class Key:
    """One leaf: `name` is dotted from the root, `owner` the dataclass that holds it, `kind` its type."""

    name: str
    owner: type
    kind: Any
    default: Any

    @property
    def field_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def expected(self) -> str:
        return describe(self.kind)

    @property
    def meaning(self) -> str:
        for cls in self.owner.__mro__:
            if (cls.__name__, self.field_name) in comments():
                return comments()[cls.__name__, self.field_name]
        return ""


def describe(kind: Any) -> str:
    """A type in a reader's words.

    >>> describe(int), describe(float | None), describe(list[str])
    ('a whole number', 'a number or null', 'a list, each a text')
    """
    inner, optional = _unwrap(kind)
    if optional:
        return f"{describe(inner)} or null"
    if typing.get_origin(inner) is list:
        return f"a list, each {describe(typing.get_args(inner)[0])}"
    if issubclass(inner, Enum):
        return "one of " + ", ".join(inner.__members__)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[inner]


def shown(value: Any) -> str:
    """A value as a recipe spells it, texts without quotes.

    >>> shown(None), shown(True), shown(schema.OnCap.stop), shown(["a", None])
    ('null', 'true', 'stop', '[a, null]')
    """
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, Enum):
        return value.name
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unwrap(kind: Any) -> tuple[Any, bool]:
    """`X | None` -> (X, True); X -> (X, False)."""
    if not isinstance(kind, types.UnionType):
        return kind, False
    (inner,) = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    return inner, True


def _default(field: Any) -> Any:
    return field.default_factory() if field.default is NO_DEFAULT else field.default


@dataclass(frozen=True)
class Slot:
    """A section filled by an option of `group`; `required` slots must be filled, by the field's default where none is
    chosen."""

    group: str
    required: bool


def choice_key(group: str, slot: str) -> str:
    """What chooses a slot's option in `defaults` or on a command line: `learner`, `data@eval.data`."""
    return group if group == slot else f"{group}@{slot}"


def _group_of(section_type: type) -> str | None:
    for group, options in schema.OPTIONS.items():
        if all(issubclass(option, section_type) for option in options.values()):
            return group
    return None


@dataclass(frozen=True)
class Shape:
    """The sections, slots and leaves of a recipe whose slots hold the given options; `filled` are the slots that hold
    one."""

    sections: frozenset[str]
    filled: frozenset[str]
    slots: dict[str, Slot]
    keys: dict[str, Key]


def shape_of(filled: dict[str, type]) -> Shape:
    """The shape of a recipe; `filled` maps a slot (`data`, `eval.data`) to the option class it holds."""
    sections: set[str] = set()
    held: set[str] = set()
    slots: dict[str, Slot] = {}
    keys: dict[str, Key] = {}

    def walk(owner: type, prefix: str) -> None:
        for field in fields(owner):
            name = prefix + field.name
            inner, optional = _unwrap(field.type)
            if not is_dataclass(inner):
                keys[name] = Key(name, owner, field.type, _default(field))
                continue
            assert isinstance(inner, type)
            sections.add(name)
            group = _group_of(inner)
            if group:
                slots[name] = Slot(group, required=not optional)
                default = field.default_factory if isinstance(field.default_factory, type) else None
                if option := filled.get(name, default):
                    held.add(name)
                    walk(option, f"{name}.")
            else:
                walk(inner, f"{name}.")

    walk(schema.Recipe, "")
    return Shape(frozenset(sections), frozenset(held), slots, keys)


@cache
def options_with() -> dict[str, list[str]]:
    """Every key that some choice of options gives -> the options that give it; empty for keys outside of slots."""
    found: dict[str, list[str]] = {name: [] for name in shape_of({}).keys}
    for slot, info in shape_of({}).slots.items():
        for option, cls in schema.OPTIONS[info.group].items():
            for name in shape_of({slot: cls}).keys:
                if name.startswith(f"{slot}."):
                    found.setdefault(name, []).append(option)
    return found


@cache
def comments() -> dict[tuple[str, str], str]:
    """(class, field) -> the comment lines right above the field in `schema.py`."""
    source = inspect.getsource(schema)
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    found[node.name, item.target.id] = _comment_above(lines, item.lineno - 1)
    return found


def _comment_above(lines: list[str], index: int) -> str:
    above: list[str] = []
    while index > 0 and (match := re.match(r"\s*#\s?(.*)", lines[index - 1])):
        above.insert(0, match[1])
        index -= 1
    return " ".join(above)
