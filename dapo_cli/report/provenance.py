"""Where each number is from: code, recipe, data, model and packages of every run, and where the runs differ in them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dapo_cli.report.runs import Run
from dapo_cli.report.study import Changed, Point, Study, changes, decisive
from dapo_cli.tracking.manifest import Manifest, jsonable, without_paths
from dapo_cli.wording import counted

SHOWN = 10  # characters of a hash
NONE = "–"


@dataclass(frozen=True)
class Origin:
    """One run's row; texts, hashes by their first characters."""

    run: Run
    code: str
    recipe: str
    data: str
    model: str
    resumes: str
    machine: str


def origins(study: Study) -> list[Origin]:
    return [_origin(run) for run in study.runs]


def _origin(run: Run) -> Origin:
    manifest = run.manifest
    if manifest is None:
        return Origin(run, *[NONE] * 6)
    return Origin(
        run,
        code=code_name(manifest),
        recipe=_sha256(decisive(manifest["recipe"]))[:SHOWN],
        data=_data_hash(manifest)[:SHOWN],
        model=_model_hash(manifest)[:SHOWN],
        resumes=_resumes(manifest),
        machine=_machine(manifest),
    )


def code_name(manifest: Manifest) -> str:
    """For example `3f2a91c04b, dirty`: the commit, or the version where there is none."""
    code = manifest["code"]
    name = code["commit"][:SHOWN] if code.get("commit") else f"version {code.get('version')}"
    return f"{name}, uncommitted changes" if code.get("dirty") else name


def _resumes(manifest: Manifest) -> str:
    resumes = manifest["resumes"]
    if not resumes:
        return "none"
    told = [
        f"after step {each['step']}" + (f", changed: {'; '.join(each['changes'])}" if each.get("changes") else "")
        for each in resumes
    ]
    return f"{len(resumes)}: {'; '.join(told)}"


def _machine(manifest: Manifest) -> str:
    hardware = manifest["hardware"]
    gpus = hardware.get("gpus") or []
    device = (
        f"{len(gpus)} × {gpus[0]}"
        if gpus
        else f"{hardware.get('cpu')}, {counted(hardware.get('threads') or 1, 'thread')}"
    )
    processes = manifest.get("processes", 1)
    return device if processes == 1 else f"{device}; {processes} processes"


def _data_hash(manifest: Manifest) -> str:
    return _sha256(without_paths(manifest["data"]))


def _model_hash(manifest: Manifest) -> str:
    """The hub's commit, or one hash over those of the model's files."""
    return manifest["model"].get("commit") or _sha256(without_paths(manifest["model"]))


def _sha256(tree: Any) -> str:
    return hashlib.sha256(json.dumps(jsonable(tree), sort_keys=True).encode()).hexdigest()


def warnings(study: Study) -> list[str]:
    """What makes the points' runs other than the plan says, or their figures hard to compare; a sentence each."""
    runs = [run for run in study.runs if run.manifest]
    differing = {
        "code (dapo_cli's sources)": _differs(runs, lambda manifest: manifest["code"]["package_sha256"][:SHOWN]),
        "commit": _differs(runs, lambda manifest: (manifest["code"].get("commit") or "none")[:SHOWN]),
        "data": _differs(runs, lambda manifest: _data_hash(manifest)[:SHOWN]),
        "model": _differs(runs, lambda manifest: _model_hash(manifest)[:SHOWN]),
        "Python": _differs(runs, lambda manifest: str(manifest.get("python"))),
        "processor or GPU": _differs(runs, _machine),
        **{f"package {name}": _differs(runs, _version_of(name)) for name in _packages(runs)},
    }
    found = [f"Runs differ in {what}: {_shown(by_value)}." for what, by_value in differing.items() if len(by_value) > 1]
    dirty = [run.name for run in runs if run.manifest and run.manifest["code"].get("dirty")]
    if dirty:
        found.append(f"Uncommitted changes to the code (code.patch in the run folder): {_names(dirty)}.")
    resumed = {run.name: run.manifest["resumes"] for run in runs if run.manifest}
    if changed := [name for name, resumes in resumed.items() if any(each.get("changes") for each in resumes)]:
        found.append(f"Resumed with another recipe, data or code (--allow-changes): {_names(changed)}.")
    found += [f"{run.name} is {run.state.value}: {run.detail}." for run in study.runs if not run.finished]
    for point in study.points:
        found += _unplanned(point, study.baseline)
    return found


def _version_of(name: str) -> Callable[[Manifest], str | None]:
    """None, which differs from nothing, where a package is not installed: an extra that the run did not use."""
    return lambda manifest: manifest["packages"].get(name)


def _packages(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs if run.manifest for name in run.manifest["packages"]))


def _differs(runs: Iterable[Run], value_of: Callable[[Manifest], str | None]) -> dict[str, list[str]]:
    """Value -> names of the runs that have it."""
    found: dict[str, list[str]] = {}
    for run in runs:
        if run.manifest and (value := value_of(run.manifest)) is not None:
            found.setdefault(value, []).append(run.name)
    return found


def _shown(by_value: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{value} ({_names(names)})" for value, names in by_value.items())


def _names(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _unplanned(point: Point, baseline: Point) -> list[str]:
    """Differences of recipes within a point's runs, against the plan, and in how the points are evaluated."""
    found = []
    recipes = {run.name: decisive(run.recipe) for run in point.runs if run.recipe}
    odd = [name for name, recipe in recipes.items() if recipe != next(iter(recipes.values()))]
    if odd:
        found.append(f"“{point.label}”: the recipes of its runs differ in more than the seed ({_names(odd)}).")
    resolved = changes(point, baseline) or {}
    if point.planned is not None:
        hidden = [key for key in resolved if key not in point.planned] if baseline.planned == {} else []
        if hidden:
            found.append(f"“{point.label}” differs from the baseline in what the plan does not name: {_names(hidden)}.")
    if measured := [key for key in resolved if key.startswith("eval.")]:
        found.append(f"“{point.label}” is evaluated otherwise than the baseline: {_names(measured)}.")
    return found


def changed_keys(point: Point, study: Study) -> Changed | None:
    """What a point changes against the baseline, as its runs' resolved recipes say; else, before any started, as the
    plan does. None where neither is known."""
    resolved = changes(point, study.baseline)
    if resolved is None and study.baseline.planned == {}:  # the plan's own baseline
        return point.planned
    return resolved


def environment(study: Study) -> str:
    """Versions and machine of the runs, where they all share them; differences are among the warnings."""
    runs = [run for run in study.runs if run.manifest]
    shared = {name: _differs(runs, _version_of(name)) for name in _packages(runs)}
    told = [f"{name} {next(iter(found))}" for name, found in shared.items() if len(found) == 1]
    python, machine = _differs(runs, lambda manifest: str(manifest.get("python"))), _differs(runs, _machine)
    told = [f"Python {next(iter(python))}", *told] if len(python) == 1 else told
    where = f" on {next(iter(machine))}" if len(machine) == 1 else ""
    return f"Common to all runs: {', '.join(told)}{where}." if told else "No run has a manifest."
