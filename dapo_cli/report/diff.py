"""Two runs side by side: what they were made of where it differs, and what came out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.errors import UserError
from dapo_cli.report.health import alarms_text
from dapo_cli.report.runs import ROLLOUTS, SECONDS, STEP, Run, State, read_run
from dapo_cli.tracking.manifest import Changed, Manifest, by_section, changed, leaves, shown, without_paths
from dapo_cli.tracking.run_folder import RunFolder

PLACE_KEYS = ("run.dir",)  # of any two runs; the heading says it
CODE_KEYS = ("version", "commit", "package_sha256", "dirty", "patch_sha256")
EVALUATION = ("eval/accuracy", "eval/standard_error", "eval/prompts")
INDENT = "  "


@dataclass(frozen=True)
class RunDiff:
    """`parts` maps recipe, code, data, model, versions and hardware to their keys that differ, each with both values
    (text "not there" for a key that one of them lacks); `results` has all of theirs, differing or not, None where a
    run has no such figure."""

    runs: tuple[str, str]
    parts: dict[str, Changed]
    results: Changed

    def tree(self) -> dict[str, Any]:
        """For JSON."""
        return {"runs": self.runs, "differences": self.parts, "results": self.results}


def diff_runs(one: Path, other: Path) -> RunDiff:
    """Raises UserError for what is no run folder, and for files that cannot be read."""
    runs = [_read(path) for path in (one, other)]
    described = [_parts(run) for run in runs]
    parts = {name: changed(described[0][name], described[1][name]) for name in described[0]}
    outcomes = [_results(run) for run in runs]
    keys = dict.fromkeys([*outcomes[0], *outcomes[1]])
    results = {key: (outcomes[0].get(key), outcomes[1].get(key)) for key in keys}
    return RunDiff((str(one), str(other)), parts, results)


def diff_lines(found: RunDiff) -> list[str]:
    """The same for a terminal: a heading, the keys that differ by part, the results."""
    rows: list[tuple[str, str, str]] = [("", *found.runs)]
    for part, keys in found.parts.items():
        rows.append((f"{part}: {'' if keys else 'the same'}".strip(), "", ""))
        rows += [(INDENT + key, shown(before), shown(now)) for key, (before, now) in keys.items()]
    rows.append(("results:", "", ""))
    rows += [(INDENT + key, _figure(before), _figure(now)) for key, (before, now) in found.results.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{name:<{widths[0]}}  {before:<{widths[1]}}  {now}".rstrip() for name, before, now in rows]


def _read(path: Path) -> Run:
    run = read_run(path, str(path))
    if run.state is State.MISSING:
        raise UserError(f"{path}: no run folder (it has no manifest.json)")
    return run


def _parts(run: Run) -> dict[str, dict[str, Any]]:
    assert run.manifest is not None, "a run that started has a manifest"
    manifest = run.manifest
    recipe = {key: value for key, value in leaves(manifest["recipe"], "") if key not in PLACE_KEYS}
    return {
        "recipe": recipe,
        "code": {key: manifest["code"].get(key) for key in CODE_KEYS},
        "data": dict(leaves(without_paths(by_section(manifest["data"])), "")),
        "model": dict(leaves(without_paths(manifest["model"]), "")),
        "versions": _versions(run.path, manifest),
        "hardware": dict(leaves(manifest["hardware"], "")) | {"processes": manifest.get("processes", 1)},
    }


def _versions(path: Path, manifest: Manifest) -> dict[str, str]:
    """Of Python and all that requirements.lock lists; of an older run, of what its manifest lists."""
    lock = RunFolder(path).requirements_file
    found = {name: version for name, version in manifest["packages"].items() if version}
    if lock.exists():
        found |= dict(line.split("==", 1) for line in lock.read_text().splitlines())
    return {"python": manifest.get("python"), **found}


def _results(run: Run) -> dict[str, Any]:
    last = run.steps[-1][STEP] if run.steps else 0
    total = run.totals()[last]
    found = {
        "state": run.state.value,
        "steps": last,
        ROLLOUTS: total[ROLLOUTS],
        "seconds of training": total[SECONDS],
        "resumes": len(run.manifest["resumes"]) if run.manifest else 0,
    }
    if run.alarms is not None:
        found["health alarms"] = alarms_text(run.alarms)
    if run.evals:
        found |= {"last evaluation, step": run.evals[-1][STEP]} | {key: run.evals[-1].get(key) for key in EVALUATION}
    return found


def _figure(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
