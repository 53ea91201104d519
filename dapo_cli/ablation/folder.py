"""An ablation's folder: what each file is, and how it says whether a plan is still the one that it was made for.

plan.yaml                     the plan, as it was last read
ablation.json                 what is compared: points, their overrides and changes, seeds, and the folder of each run
status.jsonl                  one line an event of a run: started, done, failed, interrupted
points/NAME/seed_0/           an ordinary run folder
points/NAME/seed_0.log        what the run's process printed, of all its starts
lock                          the process that writes here
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dapo_cli.ablation.points import Ablation, Run
from dapo_cli.config.load import load_recipe, plain_tree
from dapo_cli.errors import UserError
from dapo_cli.tracking.files import append_line, json_document, read_lines, write_atomically
from dapo_cli.tracking.manifest import FREE_KEYS, compare_leaves, shown, utc_now
from dapo_cli.tracking.run_folder import RunFolder, hold_lock, make_folder

FIXED = ("kind", "recipe", "match", "baseline")


class AblationFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan_file = path / "plan.yaml"
        self.record_file = path / "ablation.json"
        self.status_file = path / "status.jsonl"
        self.lock_file = path / "lock"

    def run_folder(self, run: Run) -> RunFolder:
        return RunFolder(self.path / run.dir)

    def log_file(self, run: Run) -> Path:
        return self.path / run.dir.with_suffix(".log")

    @contextmanager
    def lock(self, *, shared: bool) -> Iterator[None]:
        """Be the one process that runs this ablation, or one of those that run a part of it each."""
        make_folder(self.path, "dir")
        with hold_lock(self.lock_file, "dir", shared=shared):
            yield

    def write(self, ablation: Ablation) -> None:
        """Lay the folder out, or take over a plan that has grown. Raises UserError where the folder is of another
        plan, with the differences."""
        record = record_of(ablation)
        self._refuse([*plan_differences(self._known() or record, record), *self._run_differences(ablation)])
        (self.path / "points").mkdir(exist_ok=True)
        write_atomically(self.plan_file, ablation.plan.path.read_bytes())
        write_atomically(self.record_file, json_document(record))

    def check(self, ablation: Ablation, run: Run) -> None:
        """Raises UserError where the folder is not laid out for this run of this plan."""
        known = self._known()
        if known is None or str(run.dir) not in {each["dir"] for point in known["points"] for each in point["runs"]}:
            raise UserError(
                f"dir={self.path} is not laid out for {run.name}: `dapo ablate {ablation.plan.path} --slurm "
                "OUT.sbatch` does that, or the same without --slurm runs all of it"
            )
        self._refuse([*plan_differences(known, record_of(ablation)), *self._run_differences(ablation)])

    def _known(self) -> dict[str, Any] | None:
        return json.loads(self.record_file.read_bytes()) if self.record_file.exists() else None

    def _refuse(self, differences: list[str]) -> None:
        if differences:
            raise UserError(
                "\n  ".join([f"dir={self.path} holds an ablation that differs:", *differences])
                + "\nSeeds and points may be added at the end of a plan; for other changes give another dir."
            )

    def _run_differences(self, ablation: Ablation) -> Iterator[str]:
        """Where the recipe of a run that has begun is not its point's any more: the recipe's file has changed."""
        for run in ablation.runs:
            folder = self.run_folder(run)
            if not folder.started:
                continue
            now = plain_tree(load_recipe(str(ablation.recipe_file), overrides_of(run, self.path)).config)
            for key, line in compare_leaves(folder.read_manifest()["recipe"], now, ""):
                if not key.startswith(FREE_KEYS):
                    yield f"{run.name}: {line}"

    def note(self, run: Run, event: str, **more: Any) -> None:
        append_line(self.status_file, {"time": utc_now(), "run": run.name, "event": event, **more})

    def last_events(self) -> dict[str, dict[str, Any]]:
        """The last event of each run, by the run's name."""
        return {record["run"]: record for record in read_lines(self.status_file)}

    def is_done(self, run: Run) -> bool:
        """A run exports its model last of all."""
        return self.run_folder(run).export.exists()


def overrides_of(run: Run, folder: Path) -> list[str]:
    """All that the recipe of a run in an ablation's folder is loaded with."""
    return [*run.point.overrides, f"run.seed={run.seed}", f"run.dir={folder / run.dir}"]


def record_of(ablation: Ablation) -> dict[str, Any]:
    """ablation.json."""
    plan, match = ablation.plan, ablation.match
    return {
        "name": plan.name,
        "kind": plan.kind.name,
        "recipe": plan.recipe,
        "match": {"by": match.by.name, "amount": match.amount},
        "baseline": ablation.points[0].name,
        "points": [
            {
                "name": point.name,
                "label": point.label,
                "overrides": list(point.overrides),
                "changed": point.changed,
                **({} if point.reference is None else {"reference": point.reference}),
                "runs": [{"seed": seed, "dir": str(Run(point, seed).dir)} for seed in plan.seeds],
            }
            for point in ablation.points
        ],
        "seeds": list(plan.seeds),
    }


def plan_differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Why runs made for the record `old` are not all runs of `new`, a line each. Seeds and points may have been added
    behind the old ones; labels and references are for reading and may change."""
    for key in FIXED:
        if old[key] != new[key]:
            yield f"{key}: {_plain(old[key])} in the folder, {_plain(new[key])} now"
    if new["seeds"][: len(old["seeds"])] != old["seeds"]:
        yield f"seeds: {old['seeds']} in the folder, {new['seeds']} now"
    before, now = ([point["name"] for point in record["points"]] for record in (old, new))
    if now[: len(before)] != before:
        yield f"points: {', '.join(before)} in the folder, {', '.join(now)} now"
        return
    for one, other in zip(old["points"], new["points"], strict=False):
        if one["overrides"] != other["overrides"]:
            yield f"point {one['name']}: {' '.join(one['overrides'])} in the folder, {' '.join(other['overrides'])} now"


def _plain(value: Any) -> str:
    return " ".join(f"{key}={shown(part)}" for key, part in value.items()) if isinstance(value, dict) else str(value)
