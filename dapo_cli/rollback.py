"""A run to its end, over the rollbacks that its alarms ask for."""

from dapo_cli.budget import Budget, read_budget
from dapo_cli.health.event import HealthEvent, RolledBack
from dapo_cli.health.monitor import Health
from dapo_cli.interrupt import StopRequest
from dapo_cli.protocols import Tracker
from dapo_cli.tracking.files import jsonable, read_lines
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.train import Parts, train


def train_to_the_end(
    parts: Parts, tracker: Tracker, folder: RunFolder, start_step: int, stop: StopRequest
) -> tuple[int, Budget]:
    """`train` from `start_step` on, and after each rollback from where it leads; returns the last step and what was
    spent. Raises what `train` raises. Collective: every rank must call."""
    recipe, world = parts.recipe, parts.world
    while True:
        budget, health = world.on_main(lambda: (read_budget(recipe.run, folder), read_health(parts, folder)))
        try:
            return train(parts, tracker, start_step, budget, health, stop), budget
        except RolledBack as rolled_back:
            start_step = roll_back(parts, folder, rolled_back.event)


def read_health(parts: Parts, folder: RunFolder) -> Health:
    """The monitor of a run whose folder holds the steps that it goes on behind."""
    events = read_lines(folder.health_file, "step", "rule", "event", "since")
    rollbacks = folder.read_manifest().get("rollbacks", [])
    return Health(parts.recipe.health, read_lines(folder.metrics_file, "step"), events, rollbacks)


def roll_back(parts: Parts, folder: RunFolder, event: HealthEvent) -> int:
    """Parts and folder as they were after the step that the rollback leads to, which is returned.

    The manifest is what makes it hold: a run that is killed before goes on from the good checkpoint, or one after it,
    at its old learning rate, and comes to the same alarm again; one killed later is rewound at its resume.
    Collective: every rank must call.
    """
    to_step = event.figures["to_step"]
    assert isinstance(to_step, int)

    def rewind() -> None:
        parts.checkpoints.drop_after(to_step)
        manifest = folder.read_manifest()
        manifest["rollbacks"] = [*manifest.get("rollbacks", []), jsonable(event.record)]
        folder.write_manifest(manifest)
        folder.rewind(to_step, manifest["rollbacks"])

    parts.world.on_main(rewind)
    return parts.checkpoints.restore(parts.learner, parts.sampler)
