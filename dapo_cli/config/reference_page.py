"""The reference of all keys as a Markdown page, generated from `schema.py` and from the comments of shipped files."""

from dapo_cli.config import schema
from dapo_cli.config.keys import Key, shown
from dapo_cli.config.ranges import RANGES, range_key
from dapo_cli.config.reference import reference
from dapo_cli.config.shipped import comment, recipe_names, recipes_folder

REGENERATE = "dapo recipe keys --markdown > docs/keys.md"

HEAD = f"""\
# Every key of a recipe

Generated from `dapo_cli/config/schema.py` by `{REGENERATE}`; `dapo recipe keys SECTION` prints the same in a
terminal. [recipes.md](recipes.md) says how a recipe is written, [concepts.md](concepts.md) what the words mean. A
section with a number is one of the DAPO paper ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)). Rules between
keys (`algorithm.groups_per_update` divides `algorithm.groups_per_step` …) are checked too; `dapo recipe validate` names
all that is broken.
"""

GROUPS = """\
## Option groups

The keys of these sections depend on the option that a recipe's `defaults` (`- learner: fsdp`) or the command line
(`learner=fsdp`) names. `data@eval.data` chooses the held-out data, with the options and keys of `data`.
"""

SHIPPED = """\
## Shipped files

Recipes are started by their name (`dapo train quickstart`); options and presets are chosen as above. `algorithm` has
presets, which set keys of several sections.
"""


def reference_page() -> str:
    """The page: plain sections first, then the option groups, then what is shipped; ends with a newline."""
    tables = reference()
    plain = [_section(f"## {name}", keys) for name, keys in tables.items() if ":" not in name]
    groups = [
        _group(group, {option: tables[f"{group}: {option}"] for option in options})
        for group, options in schema.OPTIONS.items()
    ]
    root = recipes_folder()
    shipped = [_files("Recipes", recipe_names())]
    for folder in sorted(path.name for path in root.iterdir() if path.is_dir() and path.name != "ablations"):
        shipped.append(
            _files(f"`{folder}`", sorted(f"{folder}/{path.stem}" for path in (root / folder).glob("*.yaml")))
        )
    return "\n".join([HEAD, *plain, GROUPS, *groups, SHIPPED, *shipped])


def _section(heading: str, keys: list[Key]) -> str:
    lines = [heading, "", "| key | type | default | range | meaning |", "|---|---|---|---|---|", *map(_row, keys)]
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    default = "required" if key.default == schema.MISSING else f"`{shown(key.default)}`"
    limits = RANGES.get(range_key(key.owner, key.field_name), "")
    return f"| `{key.name}` | {key.expected} | {default} | {limits} | {_cell(key.meaning)} |"


def _group(group: str, options: dict[str, list[Key]]) -> str:
    """What all options have once, then what each adds."""
    first, *others = [{_row(key): key for key in keys} for keys in options.values()]
    common = [row for row in first if all(row in other for other in others)]
    blocks = [f"### {group}: {', '.join(options)}\n"]
    if common:
        blocks.append(_section("Every option has:", [first[row] for row in common]))
    for option, keys in options.items():
        own = [key for key in keys if _row(key) not in common]
        blocks.append(_section(f"#### {group}: {option}", own) if own else f"`{group}: {option}` adds no key.\n")
    return "\n".join(blocks)


def _files(heading: str, names: list[str]) -> str:
    rows = [f"| `{name}` | {_cell(comment(recipes_folder() / f'{name}.yaml'))} |" for name in names]
    return "\n".join([f"### {heading}", "", "| name | what it is |", "|---|---|", *rows]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
