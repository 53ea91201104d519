"""What a model's configuration says of its size, without a weight being read."""

from dataclasses import dataclass
from typing import Any

from dapo_cli.config.schema import LearnerConfig
from dapo_cli.errors import UserError


@dataclass(frozen=True)
class ModelShape:
    """Counts of weights: all of them, of one decoder layer, of the root (embedding, last norm, head), and of adapters
    of rank 1. `kv_size` is key-value heads x head size."""

    parameters: int
    layer: int
    root: int
    per_rank: int
    layers: int
    hidden: int
    intermediate: int
    kv_size: int
    vocabulary: int
    flops_token: float
    flops_pair: float
    flops_head: float

    def adapters(self, config: LearnerConfig) -> int:
        """Weights of LoRA's adapters; 0 without."""
        return self.per_rank * (config.lora_rank or 0)


def shape_of_model(config: Any) -> ModelShape:
    """Of a `transformers` configuration, by the modules that it makes, which are not filled.

    Raises UserError for a mixture of experts, of whose layers each token uses some, and for an architecture that names
    no repeated layers.
    """
    import torch

    from dapo_cli.learner.flops import ModelFlops
    from dapo_cli.learner.policy import repeated_layers
    from dapo_cli.pretrained import without_weights

    model = without_weights(config)
    layers = repeated_layers(model)
    flops = ModelFlops.of(model, layers)
    if flops is None:
        raise UserError("a mixture of experts: its memory and FLOPs are not estimated")
    text = config.get_text_config()
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    parameters = sum(weight.numel() for weight in model.parameters())
    in_layers = sum(weight.numel() for layer in layers for weight in layer.parameters())
    linear = [module for layer in layers for module in layer.modules() if isinstance(module, torch.nn.Linear)]
    return ModelShape(
        parameters=parameters,
        layer=in_layers // len(layers),
        root=parameters - in_layers,
        per_rank=sum(module.in_features + module.out_features for module in linear),
        layers=len(layers),
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        kv_size=(getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * head_size,
        vocabulary=text.vocab_size,
        flops_token=flops.token,
        flops_pair=flops.pair,
        flops_head=flops.head,
    )
