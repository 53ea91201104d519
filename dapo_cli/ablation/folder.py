"""An ablation's folder: what each file is, and how it says whether a plan is still the one that it was made for.

plan.yaml                     the plan, as it was last read
ablation.json                 what is compared: points, their overrides and changes, seeds, and the folder of each run
points/NAME/seed_0/           an ordinary run folder
points/NAME/seed_0.log        what the run's process printed, of all its starts
points/NAME/seed_0.status.jsonl  one line an event of the run: started, done, failed, interrupted
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
from dapo_cli.report.study import PLAN_FILE, STATUS_SUFFIX, last_event
from dapo_cli.tracking.files import append_line, json_document, write_atomically
from dapo_cli.tracking.lock import hold_lock, make_folder
from dapo_cli.tracking.manifest import FREE_KEYS, changed, difference, shown, utc_now
from dapo_cli.tracking.run_folder import RunFolder

FIXED = ("kind", "recipe", "match", "baseline")


class AblationFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan_file = path / "plan.yaml"
        self.record_file = path / PLAN_FILE
        self.lock_file = path / "lock"

    def run_folder(self, run: Run) -> RunFolder:
        return RunFolder(self.path / run.dir)

    def log_file(self, run: Run) -> Path:
        return self.path / run.dir.with_suffix(".log")

    def status_file(self, run: Run) -> Path:
        """One a run: tasks on several nodes have no file in common, since appending is not atomic over NFS."""
        return self.path / run.dir.with_suffix(STATUS_SUFFIX)

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
            for key, pair in changed(folder.read_manifest()["recipe"], now).items():
                if not key.startswith(FREE_KEYS):
                    yield f"{run.name}: {difference(key, *pair)}"

    def note(self, run: Run, event: str, **more: Any) -> None:
        append_line(self.status_file(run), {"time": utc_now(), "event": event, **more})

    def last_event(self, run: Run) -> dict[str, Any] | None:
        return last_event(self.status_file(run))

    def is_done(self, run: Run) -> bool:
        return self.run_folder(run).finished


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
