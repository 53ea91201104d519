"""Model FLOPs: what a forward pass needs by the model's shape, so that time can be set against what a device could do.

Counted as Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B) do: two for each weight of a linear layer and
token, two for each feature and pair of tokens in both matrix products of attention (half of the pairs, by causality),
and the head only where it runs. Work that is done again (activation checkpointing) or on padding does not count.
"""

from dataclasses import dataclass
from typing import Any

import torch

from dapo_cli.learner.micro_batches import MicroBatch

# Of a forward pass: the backward pass needs the gradient of inputs and of weights, each as much.
UPDATE = 3
UPDATE_OF_ADAPTERS = 2


@dataclass(frozen=True)
class ModelFlops:
    """Of a forward pass, per packed token, per pair of a query with a key, and per completion token."""

    token: float
    pair: float
    head: float

    @classmethod
    def of(cls, model: Any, layers: list[torch.nn.Module]) -> "ModelFlops | None":
        """None for a mixture of experts, of whose weights each token uses some."""
        config = model.config.get_text_config()
        if getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
            return None
        linear = [module for layer in layers for module in layer.modules() if isinstance(module, torch.nn.Linear)]
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            token=2.0 * sum(module.weight.numel() for module in linear),
            pair=4.0 * len(layers) * config.num_attention_heads * size,
            head=2.0 * model.get_output_embeddings().weight.numel(),
        )

    def forward(self, batch: MicroBatch) -> float:
        if batch.is_filler:
            return 0.0
        pairs = sum(length * (length + 1) / 2 for length in batch.row_lengths)
        return self.token * len(batch.token_ids_M) + self.pair * pairs + self.head * len(batch.targets_N)
