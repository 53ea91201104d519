"""What every learner does alike: pi_old and updates of mini-batches that all ranks hold and share the work of."""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dapo_cli.algorithm.aggregation import aggregation_weights
from dapo_cli.algorithm.correction import corrected_advantages
from dapo_cli.algorithm.logprobs import chunked_logprobs, fused_loss
from dapo_cli.algorithm.objective import (
    Clip,
    LossTokens,
    UpdateStats,
    sequence_log_ratios,
    token_mean_loss,
    weighted_losses,
)
from dapo_cli.config.schema import (
    Aggregation,
    CorrectionConfig,
    LearnerConfig,
    OptimizerConfig,
    Precision,
    RatioLevel,
)
from dapo_cli.distributed.world import World
from dapo_cli.errors import Diverged
from dapo_cli.learner.flops import UPDATE, UPDATE_OF_ADAPTERS, ModelFlops
from dapo_cli.learner.lora import without_adapters
from dapo_cli.learner.loss_tokens import LossSequence, loss_tokens
from dapo_cli.learner.micro_batches import MicroBatch, micro_batches
from dapo_cli.learner.optim import LossScale
from dapo_cli.types import Group, ScoredGroup, TokenSequence

Out = TypeVar("Out")


@dataclass(frozen=True)
class Objective:
    """What the recipe says about the loss; `temperature` is the sampling temperature, under which all log-probs are
    taken, the reference's too. `max_tokens` is the divisor of a constant aggregation."""

    clip: Clip
    temperature: float
    filter_truncated: bool
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    ratio: RatioLevel = RatioLevel.token
    aggregation: Aggregation = Aggregation.token_mean
    max_tokens: int = 1
    kl_coefficient: float = 0.0

    @property
    def has_reference(self) -> bool:
        return self.kl_coefficient > 0


class BaseLearner(ABC):
    """Every rank is given the same groups and ends with the same figures; each runs its share of the sequences.

    `policy` is the module that is called with a micro-batch and a head (a `Policy`, or what an engine wraps it in);
    `reference` another one with the weights that the model came with, or None: where the recipe has no reference, or
    where adapters leave them in `policy` itself.
    """

    policy: Any
    reference: Any = None
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
        from dapo_cli.learner.policy import decoder_layers, prepare  # transformers takes seconds to import

        prepare(self.model, self.config, self.world)
        self.flops = ModelFlops.of(self.model, decoder_layers(self.model))

    def take_model_flops(self) -> dict[str, float]:
        """Model FLOPs of this rank in `score` and `update` since the last call; see `flops`. Empty where unknown."""
        taken, self._model_flops = dict(self._model_flops), defaultdict(float)
        return taken

    def score(self, groups: Sequence[Group], step: int) -> tuple[list[ScoredGroup], float | None]:
        """pi_old of each group under the current weights, the reference's log-probs where the recipe has one, and the
        mean entropy per completion token, in nats (None where there is no token). Collective: every rank must call,
        with the same groups."""
        sequences = [_sequence(group, i) for group in groups for i in range(len(group.rollouts))]
        logprobs, entropy = self._logprobs_by(self.policy, sequences)
        old = _by_group(groups, logprobs)
        ref: Sequence[tuple[np.ndarray, ...] | None] = [None] * len(groups)
        if self.objective.has_reference:
            ref = _by_group(groups, self._ref_logprobs(sequences))
        return [ScoredGroup(group, old[i], step, ref[i]) for i, group in enumerate(groups)], entropy

    def logprobs(
        self, sequences: Sequence[TokenSequence], temperature: float | None = None
    ) -> tuple[list[np.ndarray], float | None]:
        """Of each sequence's completion tokens, [T_i] float32, and their mean entropy, at the sampling temperature or
        another one; its FLOPs are not those of training. Collective: every rank must call, with the same sequences."""
        return self._logprobs_by(self.policy, sequences, temperature, counted=False)

    def _ref_logprobs(self, sequences: Sequence[TokenSequence]) -> list[np.ndarray]:
        if self.reference is not None:
            return self._logprobs_by(self.reference, sequences)[0]
        with without_adapters(self.model):
            return self._logprobs_by(self.policy, sequences)[0]

    def _logprobs_by(
        self, policy: Any, sequences: Sequence[TokenSequence], temperature: float | None = None, counted: bool = True
    ) -> tuple[list[np.ndarray], float | None]:
        own: dict[int, np.ndarray] = {}
        entropy_sum, tokens = 0.0, 0
        head = self._head(chunked_logprobs, temperature)
        with torch.no_grad():
            for batch in self._own_micro_batches(sequences):
                logprobs_N, entropy_N = policy(batch, head)
                if counted:
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

    def update(self, groups: Sequence[ScoredGroup], advantages: Sequence[Sequence[float]], lr: float) -> UpdateStats:
        """One optimizer update on one mini-batch at the learning rate `lr`, Eq. 8, 10, 12, or as the recipe's objective
        has it.

        `advantages[g][i]` is that of rollout i of group g. Truncated completions leave numerator and
        denominator where the recipe filters them. A mini-batch without a loss token changes nothing and counts no
        update. Collective: every rank must call, with the same groups.
        """
        sequences = self._loss_sequences(groups, advantages)
        lengths = [len(each.old_logprobs) for each in sequences]
        num_loss_tokens = sum(lengths)
        if not num_loss_tokens:
            return self._no_update()
        weights = aggregation_weights(
            lengths, [each.prompt for each in sequences], self.objective.aggregation, self.objective.max_tokens
        )
        own = UpdateStats()
        factor = self.loss_scale.value * (self.world.size if self.mean_over_ranks else 1)
        for batch in self._own_micro_batches([each.sequence for each in sequences]):
            tokens = loss_tokens(batch, sequences, weights, self.objective.has_reference)
            loss, logprobs_N = self.policy(batch, self._loss_head(batch, tokens, num_loss_tokens, factor))
            self._backward(loss)
            self._count_flops("update", batch, UPDATE if self.config.lora_rank is None else UPDATE_OF_ADAPTERS)
            if not batch.is_filler:
                own.loss += loss.item() / factor
                own.add_tokens(logprobs_N, self._with_ratios(batch, tokens, logprobs_N), self.objective.clip)
        stats = UpdateStats()
        for rank_stats in self.world.gather(own):
            stats = stats.merge(rank_stats)
        stats.grad_norm = self._optimizer_step(lr)
        if math.isfinite(stats.grad_norm):
            if self.config.compute_dtype is Precision.float16:
                self.loss_scale.after_update(finite=True)
            stats.updates = 1
            return stats
        if self.loss_scale.value > 1.0:  # beyond float16's range: left out, at a smaller scale next time
            self.loss_scale.after_update(finite=False)
            return self._no_update(skipped=1)
        raise Diverged("the gradient is not finite")

    def _no_update(self, skipped: int = 0) -> UpdateStats:
        return UpdateStats(skipped=skipped, has_reference=self.objective.has_reference)

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

    def _loss_head(
        self, batch: MicroBatch, tokens: LossTokens, num_loss_tokens: int, factor: float
    ) -> Callable[..., Any]:
        """The head that turns a micro-batch into its share of the mini-batch loss, times `factor`."""

        def head(hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
            known = tokens
            if self.objective.ratio is RatioLevel.sequence:
                # A completion's ratio needs the log-probs of all its tokens before the loss of the first.
                logprobs_N, _ = self._head(chunked_logprobs)(hidden_NH, weight_VH, targets_N)
                known = self._with_ratios(batch, tokens, logprobs_N)

            def share(logprobs_C: Tensor, chunk: slice) -> Tensor:
                losses_C = weighted_losses(logprobs_C, known[chunk], self.objective.clip, self.objective.kl_coefficient)
                # The factor comes first: a token's gradient may be below what float16 can hold.
                return token_mean_loss(losses_C, num_loss_tokens) * factor

            return self._head(fused_loss, token_loss=share)(hidden_NH, weight_VH, targets_N)

        return head

    def _with_ratios(self, batch: MicroBatch, tokens: LossTokens, logprobs_N: Tensor) -> LossTokens:
        """The tokens with their completions' ratios, where the recipe's are those of sequences."""
        if self.objective.ratio is RatioLevel.token:
            return tokens
        log_ratios_N = sequence_log_ratios(logprobs_N, tokens.old_logprobs_N, batch.completion_lengths)
        return replace(tokens, log_ratios_N=log_ratios_N)

    def _count_flops(self, phase: str, batch: MicroBatch, passes: int) -> None:
        if self.flops is not None:
            self._model_flops[phase] += passes * self.flops.forward(batch)

    def _loss_sequences(
        self, groups: Sequence[ScoredGroup], advantages: Sequence[Sequence[float]]
    ) -> list[LossSequence]:
        """The completions that enter the loss. A filtered completion has still counted in the advantages of its group.

        The surrogates are linear in the advantage, so the weights that correct for the engine are multiplied into it.
        """
        sequences = []
        for place, (scored, group_advantage) in enumerate(zip(groups, advantages, strict=True)):
            corrected = corrected_advantages(scored, group_advantage, self.objective.correction)
            for i, rollout in enumerate(scored.group.rollouts):
                if self.objective.filter_truncated and rollout.completion.truncated:
                    continue
                ref = None if scored.ref_logprobs is None else scored.ref_logprobs[i]
                sequences.append(
                    LossSequence(_sequence(scored.group, i), place, scored.old_logprobs[i], corrected[i], ref)
                )
        return sequences


def _by_group(groups: Sequence[Group], arrays: Sequence[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
    """One array of each rollout, as `score` lays them out, to a tuple for each group."""
    in_order = iter(arrays)
    return [tuple(next(in_order) for _ in group.rollouts) for group in groups]


def _sequence(group: Group, index: int) -> TokenSequence:
    return TokenSequence(group.prompt.token_ids, group.rollouts[index].completion.token_ids)
