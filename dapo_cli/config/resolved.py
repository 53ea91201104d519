"""A loaded recipe written out in full, as YAML that is itself a recipe."""

from typing import Any

import yaml

from dapo_cli.config.keys import choice_key, shape_of
from dapo_cli.config.load import LoadedRecipe, plain_tree


def to_yaml(loaded: LoadedRecipe, *, with_origins: bool = False) -> str:
    """Every key with its value, no interpolation left; loading the text gives the same recipe again.

    With origins, each line ends in an aligned comment that says where its value comes from.
    """
    slots = shape_of({}).slots
    lines = [("defaults:", "")] + [
        (f"  - {choice_key(slots[slot].group, slot)}: {option}", "") for slot, option in loaded.options.items()
    ]
    lines += [("  - _self_", "")]
    lines += _lines(plain_tree(loaded.config), "", loaded.origins)
    if not with_origins:
        return "".join(f"{text}\n" for text, _ in lines)
    width = min(60, max(len(text) for text, _ in lines))
    return "".join(f"{text:<{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def _lines(tree: dict[str, Any], prefix: str, origins: dict[str, str]) -> list[tuple[str, str]]:
    lines = []
    for name, value in tree.items():
        key = prefix + name
        indent = "  " * prefix.count(".")
        if value == {}:  # an option without keys: its choice says all
            continue
        if isinstance(value, dict):
            if not prefix:
                lines.append(("", ""))
            lines.append((f"{indent}{name}:", ""))
            lines += _lines(value, f"{key}.", origins)
        else:
            lines.append((f"{indent}{name}: {_value(value)}", origins[key]))
    return lines


def _value(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")
