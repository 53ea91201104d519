"""What every learner does alike: pi_old and updates of mini-batches that all ranks hold and share the work of."""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.algorithm.correction import correction_weights, log_weights
from dapo_cli.algorithm.logprobs import chunked_logprobs, fused_loss
from dapo_cli.algorithm.objective import Clip, UpdateStats, token_losses, token_mean_loss
from dapo_cli.config.schema import CorrectionConfig, LearnerConfig, OptimizerConfig, Precision
from dapo_cli.distributed.world import World
from dapo_cli.errors import Diverged
from dapo_cli.learner.flops import UPDATE, UPDATE_OF_ADAPTERS, ModelFlops
from dapo_cli.learner.micro_batches import MicroBatch, micro_batches
from dapo_cli.learner.optim import LossScale, learning_rate
from dapo_cli.learner.policy import decoder_layers, prepare
from dapo_cli.types import Group, ScoredGroup, TokenSequence

Out = TypeVar("Out")


@dataclass(frozen=True)
class Objective:
    """What the recipe says about the loss; `temperature` is the sampling temperature, under which log-probs are
    taken."""

    clip: Clip
    temperature: float
    filter_truncated: bool
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)


class BaseLearner(ABC):
    """Every rank is given the same groups and ends with the same figures; each runs its share of the sequences.

    `policy` is the module that is called with a micro-batch and a head (a `Policy`, or what an engine wraps it in).
    """

    policy: Any
    mean_over_ranks = False  # whether gradients are averaged over ranks, which `_loss_factor` undoes

    def __init__(
        self, world: World, model: Any, objective: Objective, optimizer: OptimizerConfig, config: LearnerConfig
    ) -> None:
        self.world = world
        self.model = model
        self.objective = objective
        self.optimizer_config = optimizer
        self.config = config
        self.flops: ModelFlops | None
        self._prepare()
        self.loss_scale = LossScale.of_float16() if config.compute_dtype is Precision.float16 else LossScale()
        self._model_flops: defaultdict[str, float] = defaultdict(float)

    def _prepare(self) -> None:
        """Make the model ready for packed micro-batches, and learn what a pass of it costs."""
        prepare(self.model, self.config, self.world)
        self.flops = ModelFlops.of(self.model, decoder_layers(self.model))

    def take_model_flops(self) -> dict[str, float]:
        """Model FLOPs of this rank in `score` and `update` since the last call; see `flops`. Empty where unknown."""
        taken, self._model_flops = dict(self._model_flops), defaultdict(float)
        return taken

    def score(self, groups: Sequence[Group], step: int) -> tuple[list[ScoredGroup], float | None]:
        """pi_old of each group under the current weights, and the mean entropy per completion token, in nats (None
        where there is no token). Collective: every rank must call, with the same groups."""
        sequences = [_sequence(group, i) for group in groups for i in range(len(group.rollouts))]
        logprobs, entropy = self.logprobs(sequences)
        in_order = iter(logprobs)
        return [ScoredGroup(group, tuple(next(in_order) for _ in group.rollouts), step) for group in groups], entropy

    def logprobs(
        self, sequences: Sequence[TokenSequence], temperature: float | None = None
    ) -> tuple[list[np.ndarray], float | None]:
        """Of each sequence's completion tokens, [T_i] float32, and their mean entropy, at the sampling temperature or
        another one. Collective: every rank must call, with the same sequences."""
        own: dict[int, np.ndarray] = {}
        entropy_sum, tokens = 0.0, 0
        head = self._head(chunked_logprobs, temperature)
        with torch.no_grad():
            for batch in self._own_micro_batches(sequences):
                logprobs_N, entropy_N = self.policy(batch, head)
                self._count_flops("score", batch, 1)
                if batch.is_filler:
                    continue
                for index, values in zip(batch.order, logprobs_N.cpu().split(batch.completion_lengths), strict=True):
                    own[index] = values.numpy().copy()
                entropy_sum += entropy_N.double().sum().item()
                tokens += entropy_N.numel()
        shares = self.world.gather((own, entropy_sum, tokens))
        scores = {index: values for share, _, _ in shares for index, values in share.items()}
        entropy_sum, tokens = sum(share[1] for share in shares), sum(share[2] for share in shares)
        return [scores[index] for index in range(len(sequences))], entropy_sum / tokens if tokens else None

    def update(self, groups: Sequence[ScoredGroup], step: int) -> UpdateStats:
        """One optimizer update on one mini-batch, Eq. 8, 10, 12.

        Truncated completions leave numerator and denominator where the recipe filters them. A mini-batch without a loss
        token changes nothing and counts no update. Collective: every rank must call, with the same groups.
        """
        sequences, old_logprobs, advantages = self._loss_sequences(groups)
        num_loss_tokens = sum(len(sequence.completion_ids) for sequence in sequences)
        if not num_loss_tokens:
            return UpdateStats()
        own = UpdateStats()
        factor = self.loss_scale.value * (self.world.size if self.mean_over_ranks else 1)
        for batch in self._own_micro_batches(sequences):
            old_logprobs_N, advantages_N = self._of_tokens(batch, old_logprobs, advantages)

            def share(logprobs_C: Tensor, chunk: slice, old=old_logprobs_N, advantages=advantages_N) -> Tensor:
                losses_C = token_losses(logprobs_C, old[chunk], advantages[chunk], self.objective.clip)
                # The factor comes first: a token's gradient may be below what float16 can hold.
                return token_mean_loss(losses_C, num_loss_tokens) * factor

            loss, logprobs_N = self.policy(batch, self._head(fused_loss, token_loss=share))
            self._backward(loss)
            self._count_flops("update", batch, UPDATE if self.config.lora_rank is None else UPDATE_OF_ADAPTERS)
            if not batch.is_filler:
                own.loss += loss.item() / factor
                own.add_tokens(logprobs_N, old_logprobs_N, advantages_N, self.objective.clip)
        stats = UpdateStats()
        for rank_stats in self.world.gather(own):
            stats = stats.merge(rank_stats)
        stats.grad_norm = self._optimizer_step(learning_rate(self.optimizer_config, step))
        if math.isfinite(stats.grad_norm):
            if self.config.compute_dtype is Precision.float16:
                self.loss_scale.after_update(finite=True)
            stats.updates = 1
            return stats
        if self.loss_scale.value > 1.0:  # beyond float16's range: left out, at a smaller scale next time
            self.loss_scale.after_update(finite=False)
            return UpdateStats(skipped=1)
        raise Diverged(f"the gradient of step {step} is not finite")

    @property
    def holds_plain_model(self) -> bool:
        """Whether `model` is whole on this rank and nothing but the plain float32 model, so that an engine may use
        it."""
        return False

    @abstractmethod
    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        """Whole weights by the plain model's names, adapters merged, in the compute type or float32; what an engine
        copies. Collective: every rank must read all of them."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Weights and optimizer state; see `state`. Collective: every rank must call."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """What any learner saved, on any number of ranks. Collective: every rank must call."""

    def _backward(self, loss: Tensor) -> None:
        """Add this rank's share of the mini-batch's gradient."""
        loss.backward()

    @abstractmethod
    def _optimizer_step(self, lr: float) -> float:
        """Clip by the global norm, update, forget the gradient. Returns the norm before clipping; where it is not
        finite, the weights must not be used any more, or are unchanged (float16)."""

    def _own_micro_batches(self, sequences: Sequence[TokenSequence]) -> Iterator[MicroBatch]:
        world = self.world
        return micro_batches(sequences, self.config.micro_batch_tokens, world.device, world.rank, world.size)

    def _head(self, function: Callable[..., Out], temperature: float | None = None, **more: Any) -> Callable[..., Out]:
        return partial(
            function,
            temperature=temperature or self.objective.temperature,
            chunk_tokens=self.config.logits_chunk_tokens,
            **more,
        )

    def _count_flops(self, phase: str, batch: MicroBatch, passes: int) -> None:
        if self.flops is not None:
            self._model_flops[phase] += passes * self.flops.forward(batch)

    def _of_tokens(
        self, batch: MicroBatch, old_logprobs: Sequence[np.ndarray], advantages: Sequence[np.ndarray]
    ) -> tuple[Tensor, Tensor]:
        """pi_old and advantage of the micro-batch's completion tokens, both [N] float32. A filler's token has advantage
        0, so that its loss and gradient are 0."""
        if batch.is_filler:
            nothing = torch.zeros(1, device=self.world.device)
            return nothing, nothing
        old_logprobs_N = torch.from_numpy(np.concatenate([old_logprobs[i] for i in batch.order]))
        advantages_N = torch.from_numpy(np.concatenate([advantages[i] for i in batch.order]))
        return old_logprobs_N.to(self.world.device), advantages_N.to(self.world.device)

    def _loss_sequences(
        self, groups: Sequence[ScoredGroup]
    ) -> tuple[list[TokenSequence], list[np.ndarray], list[np.ndarray]]:
        """The completions that enter the loss, with pi_old and advantage of each of their tokens, [T_i] float32. A
        filtered completion still counts in its group's mean and deviation.

        The loss is linear in the advantage, so the weights that correct for the engine are multiplied into it.
        """
        sequences, old_logprobs, advantages = [], [], []
        for scored in groups:
            group_advantage = group_advantages(scored.group.rewards)
            log_weight = log_weights(scored)
            for i, rollout in enumerate(scored.group.rollouts):
                if self.objective.filter_truncated and rollout.completion.truncated:
                    continue
                sequences.append(_sequence(scored.group, i))
                old_logprobs.append(scored.old_logprobs[i])
                advantages.append(
                    np.float32(group_advantage[i]) * correction_weights(log_weight[i], self.objective.correction)
                )
        return sequences, old_logprobs, advantages


def _sequence(group: Group, index: int) -> TokenSequence:
    return TokenSequence(group.prompt.token_ids, group.rollouts[index].completion.token_ids)
