"""The single-process learner: the oracle that every distributed learner is compared with."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapo_cli.config.schema import LearnerConfig, OptimizerConfig, Precision
from dapo_cli.distributed.world import World
from dapo_cli.learner import state
from dapo_cli.learner.base import BaseLearner, Objective
from dapo_cli.learner.lora import merged_weights
from dapo_cli.learner.policy import Policy
from dapo_cli.learner.reference import starting_copy
from dapo_cli.learner.state import trainable


class SingleLearner(BaseLearner):
    """AdamW on one device, in float32; other compute types by autocast over float32 weights."""

    autocast = True

    def __init__(
        self, world: World, model: Any, objective: Objective, optimizer: OptimizerConfig, config: LearnerConfig
    ) -> None:
        """Collective: every rank must call."""
        super().__init__(world, model, objective, optimizer, config)
        starting = starting_copy(model, config, objective.has_reference)
        self.policy = self._wrap(Policy(model, config, autocast=self.autocast))
        if starting is not None:
            self.reference = self._wrap(Policy(starting, config, autocast=self.autocast))
        self.optimizer = torch.optim.AdamW(
            [parameter for _, parameter in trainable(model)],
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

    def _wrap(self, policy: Policy) -> torch.nn.Module:
        return policy

    def _whole(self, tensor: Tensor) -> Tensor:
        """The tensor without gradient and without its split over ranks."""
        return tensor.detach()

    @property
    def holds_plain_model(self) -> bool:
        return self.config.compute_dtype is Precision.float32 and self.config.lora_rank is None

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        return merged_weights(self.model, self._whole)

    def save(self, folder: Path) -> None:
        state.write_tensors(self._tensors(), folder, alone=self.world.size == 1)
        if self.world.is_main:
            steps = {int(self.optimizer.state[parameter]["step"]) for _, parameter in trainable(self.model)}
            state.write_values(folder, max(steps), self.loss_scale)

    def load(self, folder: Path) -> None:
        state.read_tensors(self._tensors(), folder, alone=self.world.size == 1)
        steps = state.read_values(folder, self.loss_scale)
        for _, parameter in trainable(self.model):
            self.optimizer.state[parameter]["step"].fill_(steps)

    def _tensors(self) -> dict[str, Any]:
        return state.tensors_of(trainable(self.model), self.optimizer)

    def _optimizer_step(self, lr: float) -> float:
        parameters = [parameter for _, parameter in trainable(self.model)]
        if self.loss_scale.value != 1.0:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.loss_scale.value)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.optimizer_config.max_grad_norm)
        grad_norm = self._whole(norm).item()
        if math.isfinite(grad_norm):
            for parameter_group in self.optimizer.param_groups:
                parameter_group["lr"] = lr
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return grad_norm
