"""The completions of a mini-batch -> the tensors that the loss of a micro-batch takes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dapo_cli.algorithm.objective import LossTokens
from dapo_cli.learner.micro_batches import MicroBatch
from dapo_cli.types import TokenSequence


class LossSequence(NamedTuple):
    """A completion in the loss; `prompt` is its group's place in the mini-batch, arrays are [T_i] float32. Corrections
    for the engine are in the advantages; `ref_logprobs` are None without a reference model."""

    sequence: TokenSequence
    prompt: int
    old_logprobs: np.ndarray
    advantages: np.ndarray
    ref_logprobs: np.ndarray | None


def loss_tokens(
    batch: MicroBatch, sequences: Sequence[LossSequence], weights: Sequence[float], has_reference: bool
) -> LossTokens:
    """What the loss needs of the micro-batch's completion tokens, on its device; `weights` are those of `sequences`,
    the mini-batch. A filler's token has advantage and weight 0, so that its loss and gradient are 0."""
    device = batch.targets_N.device
    if batch.is_filler:
        nothing = torch.zeros(1, device=device)
        return LossTokens(nothing, nothing, nothing, nothing if has_reference else None)

    def tensor(arrays: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(device)

    own = [sequences[i] for i in batch.order]
    weights_of = [np.full(len(sequences[i].old_logprobs), weights[i], dtype=np.float32) for i in batch.order]
    return LossTokens(
        tensor([each.old_logprobs for each in own]),
        tensor([each.advantages for each in own]),
        tensor(weights_of),
        tensor([each.ref_logprobs for each in own if each.ref_logprobs is not None]) if has_reference else None,
    )
