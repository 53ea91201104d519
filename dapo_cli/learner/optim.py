"""What every learner's optimizer does alike."""

from dapo_cli.config.schema import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Linear warm-up over the first steps, then constant; a function of the step alone, so resuming needs no state."""
    return config.lr * min(1.0, step / config.warmup_steps) if config.warmup_steps else config.lr
