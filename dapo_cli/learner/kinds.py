"""A learner section to the learner of a model: the registry of learners."""

from importlib.util import find_spec
from typing import Any

from dapo_cli.config.schema import DeepspeedLearner as DeepspeedConfig
from dapo_cli.config.schema import FsdpLearner as FsdpConfig
from dapo_cli.config.schema import LearnerConfig, OptimizerConfig
from dapo_cli.config.schema import SingleLearner as SingleConfig
from dapo_cli.distributed.world import World
from dapo_cli.errors import UserError
from dapo_cli.learner.base import BaseLearner, Objective
from dapo_cli.learner.lora import add_adapters


def check_packages(config: LearnerConfig) -> None:
    """Raises UserError for an extra that is not installed."""
    needed = {
        "deepspeed": ("deepspeed", isinstance(config, DeepspeedConfig)),
        "peft": ("lora", config.lora_rank is not None),
        "liger_kernel": ("liger", config.liger_kernels),
    }
    for package, (extra, wanted) in needed.items():
        if wanted and find_spec(package) is None:
            raise UserError(f"the recipe's learner needs {package}: pip install 'dapo-cli[{extra}]'")


def reads_weights(config: LearnerConfig, world: World) -> bool:
    """Whether this rank's model must come with weights. Of those that FSDP splits, rank 0 reads them all, into host
    memory, and hands them out; other ranks come with a model on the meta device."""
    return world.is_main or not isinstance(config, FsdpConfig)


def weights_device(config: LearnerConfig, world: World) -> Any:
    """Where to read them to: host memory, where the device is to hold a part of them alone."""
    return world.device if isinstance(config, SingleConfig) else "cpu"


def make_learner(
    config: LearnerConfig, optimizer: OptimizerConfig, objective: Objective, model: Any, world: World
) -> BaseLearner:
    """Collective: every rank must call. Raises UserError for a model that cannot be trained, or a missing package."""
    add_adapters(model, config)
    match config:
        case SingleConfig():
            from dapo_cli.learner.single import SingleLearner

            return SingleLearner(world, model, objective, optimizer, config)
        case FsdpConfig():
            from dapo_cli.learner.fsdp import FsdpLearner

            return FsdpLearner(world, model, objective, optimizer, config)
        case DeepspeedConfig():
            from dapo_cli.learner.deepspeed import DeepspeedLearner

            return DeepspeedLearner(world, model, objective, optimizer, config)
        case _:
            raise AssertionError(f"no learner for {type(config).__name__}")
