"""What of a run can be run again: one manifest, one recipe and the steps that they made."""

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from dapo_cli.config.schema import HealthAction, HealthConfig
from dapo_cli.errors import UserError
from dapo_cli.reproduce.compare import records_by_step
from dapo_cli.tracking.manifest import Manifest, leaves
from dapo_cli.tracking.pins import recorded_commits
from dapo_cli.tracking.provenance import file_sha256
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.wording import listed

# What a rerun sets by itself: its length, the run's own threads and commits, nothing that a clock decides, and no wait
# or stop at an alarm, of which no figure knows.
RERUN_KEYS = (
    "run.steps",
    "run.threads",
    "run.budget_seconds",
    "model.revision",
    "data.revision",
    "eval.data.revision",
    *(f"health.{rule}.action" for rule in HealthConfig().rules()),
)
INTERRUPTING = (HealthAction.pause.value, HealthAction.stop.value)
# A resume with another number of steps goes on with the same run.
HARMLESS_CHANGE = "run.steps: "


@dataclass(frozen=True)
class Recorded:
    """`run` has the results; `source` the manifest, recipe and patch that made its first `steps` steps, which lie in
    until_step_000003/ where a resume changed them later."""

    run: RunFolder
    source: RunFolder
    manifest: Manifest
    steps: int

    def overrides(self, target: Path) -> list[str]:
        """What the rerun sets over the recorded recipe."""
        threads = self.manifest["hardware"].get("threads")
        commits = recorded_commits(self.manifest)
        return [
            f"run.dir={target}",
            f"run.steps={self.steps}",
            *([f"run.threads={threads}"] if threads else []),
            "run.budget_seconds=null",
            "tracking.wandb=disabled",
            "tracking.profile_steps=null",
            *(f"health.{rule}.action=note" for rule in self._interrupting()),
            *(f"{key}={commit}" for key, commit in commits.items()),
        ]

    def _interrupting(self) -> list[str]:
        rules = self.manifest["recipe"].get("health", {})
        return [name for name in HealthConfig().rules() if rules.get(name, {}).get("action") in INTERRUPTING]


def read_recorded(path: Path, steps: int | None) -> Recorded:
    """A run's first `steps` steps, None for all that it has.

    Raises UserError where the folder holds no run or fewer steps, for steps on both sides of a resume that changed
    recipe, data or code (no single recipe made these), and where a rerun of so many steps would end before a rollback
    that their figures come from.
    """
    run = RunFolder(path)
    manifest = run.read_manifest()
    done = max(records_by_step(run.metrics_file), default=0)
    wanted = done if steps is None else steps
    if not 1 <= wanted <= done:
        raise UserError(
            f"{path}: has {done} steps, so there are none to reproduce"
            if steps is None or not done
            else f"--steps {steps}: {path} has {done} steps; give 1 to {done}"
        )
    boundary, changes = _first_change(manifest)
    if boundary is None or boundary == 0:
        source = run
    elif wanted <= boundary:
        source = run.until(boundary)
        manifest = source.read_manifest()
    else:
        raise UserError(
            "\n  ".join(
                [f"{path} was changed after step {boundary}, so no single recipe made its {wanted} steps:", *changes]
            )
            + f"\n--steps {boundary} reproduces what came before."
        )
    _check_rollbacks(run.read_manifest(), len(manifest.get("rollbacks", [])), wanted, done)
    nodes = manifest["recipe"].get("launch", {}).get("nodes", 1)
    if nodes > 1:
        raise UserError(
            f"{path}: a run of {nodes} nodes, which one command cannot start: start `dapo train {source.recipe_file} "
            "run.dir=NEW` on each of them, then compare the two with `dapo diff`"
        )
    return Recorded(run, source, manifest, wanted)


def _check_rollbacks(manifest: Manifest, own: int, steps: int, done: int) -> None:
    """A rerun of n steps makes those of the `own` rollbacks of its recipe that come before one from a step behind n;
    its figures are the recorded ones where all others went back to step n or behind it. Raises UserError naming such
    an n."""
    spans = [(each["step"], each["figures"]["to_step"]) for each in manifest.get("rollbacks", [])]

    def works(n: int) -> bool:
        made = list(takewhile(lambda span: span[0] <= n, spans[:own]))
        return all(n <= to_step for _, to_step in spans[len(made) :])

    if works(steps):
        return
    others = [max(filter(works, range(1, steps)), default=None), next(filter(works, range(steps + 1, done + 1)), None)]
    told = " or ".join(f"--steps {n}" for n in others if n is not None)
    raise UserError(
        f"{steps} steps: the run was rolled back "
        + listed([f"from step {step} to {to_step}" for step, to_step in spans])
        + f", and a rerun of so many would not come to where its figures are from; give {told}"
    )


def _first_change(manifest: Manifest) -> tuple[int | None, list[str]]:
    """The step after which a resume first changed what decides numbers, and the changes; (None, []) for none."""
    for resume in manifest["resumes"]:
        changes = [line for line in resume.get("changes", []) if not line.startswith(HARMLESS_CHANGE)]
        if changes and resume["step"] > 0:
            return resume["step"], changes
    return None, []


def patch_differences(source: RunFolder, manifest: Manifest) -> list[str]:
    """Whether code.patch is what the manifest says of it."""
    recorded = manifest["code"].get("patch_sha256")
    found = file_sha256(source.patch_file) if source.patch_file.exists() else None
    if recorded == found:
        return []
    return [f"{source.patch_file}: sha256 {found or 'of no file'}, but the manifest records {recorded or 'no patch'}"]


def with_recorded_keys(now: Manifest, recorded: Manifest) -> Manifest:
    """`now` with the recorded values of the keys that a rerun sets, so that these are no differences."""
    values = dict(leaves(recorded["recipe"], ""))
    recipe = _copied(now["recipe"])
    for key in RERUN_KEYS:
        *sections, leaf = key.split(".")
        branch: Any = recipe
        for section in sections:
            branch = (branch or {}).get(section)
        if isinstance(branch, dict) and leaf in branch and key in values:
            branch[leaf] = values[key]
    return {**now, "recipe": recipe}


def _copied(tree: Any) -> Any:
    return {key: _copied(value) for key, value in tree.items()} if isinstance(tree, dict) else tree
