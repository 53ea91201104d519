"""What a run may spend beside its steps: judged completions, or seconds of training."""

from dataclasses import dataclass

from dapo_cli.config.schema import RunConfig
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.training_time import training_seconds

ROLLOUTS_TOTAL = "sampler/rollouts_total"


@dataclass
class Budget:
    """Counts what the steps of a run have spent, over all its starts, but for steps that a rollback or a kill undid;
    the step in which a limit is reached is the run's last.

    `rollouts` are the completions judged so far, also those of groups that no step trains on; `seconds` are those of
    the steps without evaluations and checkpoints.
    """

    most_rollouts: int | None = None
    most_seconds: float | None = None
    rollouts: int = 0
    seconds: float = 0.0

    def spend(self, rollouts: int, seconds: float) -> None:
        self.rollouts += rollouts
        self.seconds += seconds

    @property
    def spent(self) -> str | None:
        """The key of the limit that is reached, None where none is."""
        if self.most_rollouts is not None and self.rollouts >= self.most_rollouts:
            return "run.budget_rollouts"
        if self.most_seconds is not None and self.seconds >= self.most_seconds:
            return "run.budget_seconds"
        return None


def read_budget(config: RunConfig, folder: RunFolder) -> Budget:
    """The budget of a run whose folder holds the steps that it goes on behind.

    Rollouts are exactly those of these steps. Seconds leave out the last one where a kill left its timings unwritten.
    """
    steps = read_lines(folder.metrics_file, ROLLOUTS_TOTAL)
    rollouts = steps[-1][ROLLOUTS_TOTAL] if steps else 0
    seconds = training_seconds(read_lines(folder.timings_file, "seconds/step"))
    return Budget(config.budget_rollouts, config.budget_seconds, rollouts, seconds)
