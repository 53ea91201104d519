"""The manifest: what a run is, written before step 1, and what a resume compares itself with."""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from dapo_cli.tracking.files import jsonable
from dapo_cli.tracking.provenance import Code, hardware, package_versions, requirements

Manifest = dict[str, Any]
Changed = dict[str, tuple[Any, Any]]
"""Key -> its value before, its value now; ABSENT where there is none."""
ABSENT = "not there"

# Recipe keys that decide where results go, how often state is saved and what is refused, but no number: they may change
# at a resume.
FREE_KEYS = ("run.dir", "run.require_clean", "checkpoint.", "tracking.", "launch.")

SHOWN_HASH_CHARACTERS = 12


def build_manifest(
    *,
    recipe: dict[str, Any],
    origins: dict[str, str],
    code: Code,
    data: Sequence[dict[str, Any]],
    model: dict[str, Any],
    seeds: dict[str, int],
    processes: int = 1,
) -> Manifest:
    """All that says which run this is. The environment variables stay out: they hold keys and passwords.

    `recipe` and `origins` are of the loader, `data` holds one fingerprint a data set (path and sha256, or hub id and
    commit; prompts; sha256 over their uids), `model` is of `model_folder_record` or `hub_model_record`.
    """
    manifest = {
        "started": utc_now(),
        "command": sys.argv,
        "code": code.record,
        "recipe": recipe,
        "origins": origins,
        "seeds": seeds,
        "data": data,
        "model": model,
        "packages": package_versions(),
        "requirements_sha256": hashlib.sha256(requirements()).hexdigest(),
        "python": sys.version.split()[0],
        "hardware": hardware(),
        "processes": processes,
        "resumes": [],
        "rollbacks": [],
    }
    return jsonable(manifest)


def differences(old: Manifest, new: Manifest) -> list[str]:
    """What differs in the parts that decide a run's numbers, a line each; empty if a resume continues the same run.

    Recipe (but FREE_KEYS), data and model (wherever their files lie), the package's sources, package versions.
    """
    pairs = {key: pair for key, pair in changed(old["recipe"], new["recipe"]).items() if not key.startswith(FREE_KEYS)}
    pairs |= changed(without_paths(old["model"]), without_paths(new["model"]), "model")
    return [
        *(difference(key, *pair) for key, pair in pairs.items()),
        *_data_differences(by_section(old["data"]), by_section(new["data"])),
        *_code_differences(old["code"], new["code"]),
        *_package_differences(old["packages"], new["packages"]),
    ]


def resumed(recorded: Manifest, current: Manifest, step: int, changes: Sequence[str]) -> Manifest:
    """The manifest of a run that goes on after `step`: what holds from here on, its start, and one more resume."""
    resume = {
        "time": current["started"],
        "step": step,
        "command": current["command"],
        "processes": current["processes"],
        "changes": list(changes),
    }
    now = current if changes else recorded
    kept = {"started": recorded["started"], "rollbacks": recorded.get("rollbacks", [])}
    return {**now, **kept, "resumes": [*recorded["resumes"], resume]}


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def changed(old: Any, new: Any, name: str = "") -> Changed:
    """Every leaf that differs between two trees of dicts and lists, in their order.

    >>> changed({"optimizer": {"lr": 1e-4}}, {"optimizer": {"lr": 3e-4}, "paths": ["a", "b"]})
    {'optimizer.lr': (0.0001, 0.0003), 'paths': ('not there', ['a', 'b'])}
    """
    before, now = dict(leaves(jsonable(old), name)), dict(leaves(jsonable(new), name))
    pairs = {key: (before.get(key, ABSENT), now.get(key, ABSENT)) for key in dict.fromkeys([*before, *now])}
    return {key: pair for key, pair in pairs.items() if json.dumps(pair[0]) != json.dumps(pair[1])}


def difference(key: str, before: Any, now: Any) -> str:
    return f"{key}: {shown(before)} in the run folder, {shown(now)} now"


def shown(value: Any) -> str:
    """A value as a recipe spells it; hashes by their first characters.

    >>> shown(None), shown(True), shown("none"), shown("ab" * 32)
    ('null', 'true', 'none', 'abababababab…')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and len(value) in (40, 64) and set(value) <= set("0123456789abcdef"):
        return value[:SHOWN_HASH_CHARACTERS] + "…"
    return f"[{', '.join(map(shown, value))}]" if isinstance(value, list) else str(value)


def leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Leaves with their dotted names. An empty dict or list is a leaf: it differs from one that is not there. So is a
    list of plain values, which is one key's value."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    if not inner or (isinstance(tree, list) and not any(isinstance(value, (dict, list)) for value in tree)):
        yield name, tree
        return
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield from leaves(value, f"{name}.{key}" if name else str(key))


def without_paths(tree: Any) -> Any:
    """The same contents in another folder are the same data."""
    if isinstance(tree, dict):
        return {key: without_paths(value) for key, value in tree.items() if key != "path"}
    if isinstance(tree, (list, tuple)):
        return [without_paths(value) for value in tree]
    return tree


def by_section(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The records of a manifest's data by the section that each serves: "eval.data". An evaluation's has none."""
    names = [record.get("section", f"data.{place}" if place else "data") for place, record in enumerate(records)]
    return {
        name: {key: value for key, value in record.items() if key != "section"}
        for name, record in zip(names, records, strict=True)
    }


def _data_differences(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> list[str]:
    """Files that changed by their names, and then nothing of the counts and hashes that follow from them."""
    files = {name: _file_differences(name, _files(old[name]), _files(new[name])) for name in old if name in new}
    rest = ({name: part for name, part in side.items() if not files.get(name)} for side in (old, new))
    pairs = changed(*map(without_paths, rest))
    return [*(line for lines in files.values() for line in lines), *(difference(key, *pairs[key]) for key in pairs)]


def _files(record: dict[str, Any]) -> list[tuple[str, str]]:
    """(path, sha256) of a record's files, (hub id, commit) of a data set on the hub; the record itself may be one."""
    return [(each["path"], each["sha256"]) for each in record.get("fingerprints", [record]) if "sha256" in each]


def _file_differences(name: str, before: list[tuple[str, str]], now: list[tuple[str, str]]) -> list[str]:
    """Of as many files by their places, since the folder may have moved; else by their paths."""
    if len(before) == len(now):
        pairs = ((path, old, new) for (_, old), (path, new) in zip(before, now, strict=True) if old != new)
        kinds = {40: "commit", 64: "sha256"}
        return [
            f"{name}: {path} has changed ({kinds.get(len(new), 'hash')} {shown(old)}, now {shown(new)})"
            for path, old, new in pairs
        ]
    return [difference(f"{name}: {path}", *pair) for path, pair in changed(dict(before), dict(now)).items() if path]


def _code_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    if old["package_sha256"] == new["package_sha256"]:
        return []
    return [difference("code of dapo_cli", _code_name(old), _code_name(new))]


def _code_name(code: dict[str, Any]) -> str:
    """For example `3f2a91c04b7d… (commit 9be0c1d2a3f4…, uncommitted changes)`."""
    origin = f"commit {shown(code['commit'])}" if code["commit"] else f"version {code['version']}"
    dirty = ", uncommitted changes" if code["dirty"] else ""
    return f"{shown(code['package_sha256'])} ({origin}{dirty})"


def _package_differences(old: dict[str, str | None], new: dict[str, str | None]) -> list[str]:
    """Only of packages that both sides have: one that is missing is an extra that the run did not use there."""
    both = [name for name in old if name in new and old[name] and new[name]]
    return [difference(name, old[name], new[name]) for name in both if old[name] != new[name]]
