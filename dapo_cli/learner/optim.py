"""What every learner's optimizer does alike."""

from dataclasses import dataclass

from dapo_cli.config.schema import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Linear warm-up over the first steps, then constant; a function of the step alone, so resuming needs no state."""
    return config.lr * min(1.0, step / config.warmup_steps) if config.warmup_steps else config.lr


@dataclass
class LossScale:
    """What a float16 loss is multiplied by, so that small gradients do not vanish: halved where a gradient overflows,
    doubled after `patience` updates without. 1, always, in types that need none."""

    value: float = 1.0
    clean_updates: int = 0
    patience: int = 1000

    @classmethod
    def of_float16(cls) -> "LossScale":
        return cls(value=2.0**16)

    def after_update(self, *, finite: bool) -> None:
        if not finite:
            self.value, self.clean_updates = max(1.0, self.value / 2), 0
        elif self.clean_updates + 1 == self.patience:
            self.value, self.clean_updates = self.value * 2, 0
        else:
            self.clean_updates += 1
