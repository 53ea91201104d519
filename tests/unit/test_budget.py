"""What a run has spent, from its files."""

import json
from pathlib import Path

from dapo_cli.budget import Budget, read_budget
from dapo_cli.config.schema import RunConfig
from dapo_cli.tracking.run_folder import RunFolder


def lines(*records: dict) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def test_a_limit_is_spent_once_it_is_reached() -> None:
    budget = Budget(most_rollouts=100, most_seconds=None)
    budget.spend(99, 1e9)
    assert budget.spent is None
    budget.spend(1, 0.0)
    assert budget.spent == "run.budget_rollouts"
    clock = Budget(most_rollouts=None, most_seconds=2.5, rollouts=10**9, seconds=2.0)
    assert clock.spent is None
    clock.spend(0, 0.5)
    assert clock.spent == "run.budget_seconds"
    endless = Budget(rollouts=10**9, seconds=1e9)
    assert endless.spent is None


def test_a_resume_counts_every_judged_completion_and_the_seconds_of_training(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    config = RunConfig(budget_rollouts=90, budget_seconds=7.0)
    assert read_budget(config, folder) == Budget(90, 7.0, 0, 0.0)
    folder.metrics_file.write_text(
        lines(
            {"step": 1, "sampler/rollouts_total": 32},
            {"step": 2, "sampler/rollouts_total": 48},
        )
    )
    folder.timings_file.write_text(
        lines(
            {"step": 1, "seconds/step": 4.0, "seconds/evaluate": 1.0, "seconds/checkpoint": 0.5},
            {"step": 2, "seconds/step": 3.0, "seconds/checkpoint": 0.25},
        )
    )
    assert read_budget(config, folder) == Budget(90, 7.0, 48, 5.25)
