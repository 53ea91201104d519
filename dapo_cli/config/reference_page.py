"""The reference of all keys as a Markdown page, generated from `schema.py` and from the comments of shipped files."""

from pathlib import Path

from dapo_cli.config import schema
from dapo_cli.config.keys import Key, shown
from dapo_cli.config.ranges import RANGES, range_key
from dapo_cli.config.reference import reference
from dapo_cli.config.shipped import recipe_names, recipes_folder

REGENERATE = "dapo recipe keys --markdown > docs/keys.md"

HEAD = f"""\
# Every key of a recipe

Generated from `dapo_cli/config/schema.py` by `{REGENERATE}`; `dapo recipe keys SECTION` prints the same in a terminal.
[recipes.md](recipes.md) says how a recipe is written, [concepts.md](concepts.md) what the words mean. Sections are those of
the DAPO paper ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)) where a number stands alone. What no single key can say
(`algorithm.groups_per_update` divides `algorithm.groups_per_step` …) is checked too: `dapo recipe validate` names all of it.
"""

GROUPS = """\
## Option groups

The keys of these sections depend on the option that a recipe's `defaults` name (`- learner: fsdp`) or the command line does
(`learner=fsdp`). `data@eval.data` chooses the held-out data, with the options and keys of `data`.
"""

SHIPPED = """\
## Shipped files

Recipes are started by their name (`dapo train quickstart`), options and presets chosen as above; `algorithm` has presets, which
set keys of several sections.
"""


def reference_page() -> str:
    """The page: plain sections first, then the option groups, then what is shipped; ends with a newline."""
    tables = reference()
    plain = [_section(f"## {name}", keys) for name, keys in tables.items() if ":" not in name]
    groups = [_group(group, {option: tables[f"{group}: {option}"] for option in schema.OPTIONS[group]})
              for group in schema.OPTIONS]  # fmt: skip
    folders = sorted(path.name for path in recipes_folder().iterdir() if path.is_dir() and path.name != "ablations")
    shipped = [_files("Recipes", [Path(f"{name}.yaml") for name in recipe_names()])]
    shipped += [_files(f"`{name}`", sorted(Path(name).joinpath(path.name) for path in
                                           recipes_folder().joinpath(name).glob("*.yaml"))) for name in folders]  # fmt: skip
    return "\n".join([HEAD, *plain, GROUPS, *groups, SHIPPED, *shipped])


def _section(heading: str, keys: list[Key]) -> str:
    lines = [heading, "", "| key | type | default | range | meaning |", "|---|---|---|---|---|", *map(_row, keys)]
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    default = "required" if key.default == schema.MISSING else f"`{shown(key.default)}`"
    limits = RANGES.get(range_key(key.owner, key.field_name), "")
    return f"| `{key.name}` | {key.expected} | {default} | {limits} | {key.meaning.replace('|', chr(92) + '|')} |"


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


def _files(heading: str, names: list[Path]) -> str:
    rows = [f"| `{name.with_suffix('')}` | {_comment(recipes_folder() / name)} |" for name in names]
    return "\n".join([f"### {heading}", "", "| name | what it is |", "|---|---|", *rows]) + "\n"


def _comment(path: Path) -> str:
    """The first paragraph of a file's comment, without Hydra's `@package` line."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text:
            break
        if not text.startswith("@package"):
            lines.append(text)
    return " ".join(lines).replace("|", "\\|")
