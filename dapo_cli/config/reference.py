"""The reference of all keys as text, generated from `schema.py`."""

import textwrap

from dapo_cli.config import schema
from dapo_cli.config.keys import Key, shape_of, shown
from dapo_cli.config.suggest import closest_key
from dapo_cli.errors import UserError


def reference() -> dict[str, list[Key]]:
    """Heading -> keys: a heading is a section (`sampling`) or an option of a slot (`data: arithmetic`).

    `eval.data` takes the options of `data` and is not repeated.
    """
    shape = shape_of({})
    found: dict[str, list[Key]] = {}
    for name in sorted(shape.sections, key=_schema_order):
        if name in shape.slots:
            if shape.slots[name].group == name:
                for option, cls in schema.OPTIONS[name].items():
                    found[f"{name}: {option}"] = _direct(name, shape_of({name: cls}).keys)
        else:
            found[name] = _direct(name, shape.keys)
    return found


def _schema_order(section: str) -> tuple[int, str]:
    return list(schema.Recipe.__dataclass_fields__).index(section.partition(".")[0]), section


def _direct(section: str, keys: dict[str, Key]) -> list[Key]:
    return [key for key in keys.values() if key.name.rpartition(".")[0] == section]


def reference_text(start: str | None) -> str:
    """Every key, or those whose name is `start` or begins with it. Raises UserError when there are none."""
    blocks = []
    for heading, keys in reference().items():
        wanted = [key for key in keys if start is None or f"{key.name}.".startswith(f"{start.rstrip('.')}.")]
        if wanted:
            blocks.append("\n".join([heading, *(_entry(key) for key in wanted)]) + "\n")
    if not blocks:
        names = [key.name for keys in reference().values() for key in keys]
        sections = sorted(shape_of({}).sections)
        near = closest_key(str(start), [*sections, *names])
        advice = f"did you mean {near}?" if near else f"sections: {', '.join(sections)}"
        raise UserError(f"{start}: no such section or key; {advice}")
    return "\n".join(blocks)


def _entry(key: Key) -> str:
    default = "required" if key.default == schema.MISSING else f"default {shown(key.default)}"
    meaning = textwrap.fill(key.meaning, 100, initial_indent="      ", subsequent_indent="      ")
    return f"  {key.name}  ({key.expected}; {default})\n{meaning}"
