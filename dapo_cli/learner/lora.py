"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) by peft: W + (alpha / rank) B A, of which only A and B are
trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from dapo_cli.config.schema import LearnerConfig
from dapo_cli.errors import UserError

ADAPTER = "default"  # peft's own name for an adapter without one


def add_adapters(model: Any, config: LearnerConfig) -> None:
    """Put adapters into every linear layer but the head, and freeze all else. No adapters where `lora_rank` is null.

    Raises UserError for layers that keep their weights transposed (GPT-2).
    """
    if config.lora_rank is None:
        return
    from peft import LoraConfig, inject_adapter_in_model

    lora = LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear")
    inject_adapter_in_model(lora, model)
    if any(getattr(module, "fan_in_fan_out", False) for module in model.modules()):
        raise UserError(f"learner.lora_rank: a {model.config.model_type} model's layers are transposed; set it to null")


def merged_weights(model: Any, whole: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The plain model's weights by name, adapters added in; `whole` detaches a weight and undoes its split over
    ranks."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        weight = whole(parameter)
        layer = model.get_submodule(name.partition(".base_layer.")[0]) if name.endswith(".base_layer.weight") else None
        if layer is not None:
            down, up = (whole(getattr(layer, part)[ADAPTER].weight) for part in ("lora_A", "lora_B"))
            weight = weight + layer.scaling[ADAPTER] * (up @ down)
        yield name.replace(".base_layer.", "."), weight


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """The model with the weights that it had before its adapters: these run, and count for nothing. All weights are
    used in the order of an ordinary pass, which ZeRO-3 fetches them ahead by."""
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    scaling = [layer.scaling[ADAPTER] for layer in layers]
    for layer in layers:
        layer.scaling[ADAPTER] = 0.0
    try:
        yield
    finally:
        for layer, value in zip(layers, scaling, strict=True):
            layer.scaling[ADAPTER] = value
