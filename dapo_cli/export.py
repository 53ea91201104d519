"""A checkpoint as a Hugging Face folder."""

from pathlib import Path

import torch

from dapo_cli.checkpoint import Checkpoints, write_folder_atomically
from dapo_cli.config.schema import Recipe
from dapo_cli.learner.lora import add_adapters, merged_weights
from dapo_cli.learner.state import read_weights
from dapo_cli.pretrained import Pretrained, load_weights


def export(recipe: Recipe, pretrained: Pretrained, checkpoints: Checkpoints, step: int | None, out: Path) -> int:
    """Write the model of a checkpoint (None: the newest), in float32 and with adapters merged, and its tokenizer, to
    the folder `out`. Returns the checkpoint's step. Needs host memory for the model, on one process."""
    model = load_weights(pretrained, recipe.model, device="cpu")
    plain = model
    if recipe.learner.lora_rank is not None:
        with torch.device("meta"):
            plain = type(model)(model.config)
        plain.generation_config = model.generation_config
        add_adapters(model, recipe.learner)
    found = checkpoints.read_weights(step, lambda folder: read_weights(model, folder))
    weights = model.state_dict()
    if plain is not model:
        buffers = {name for name, _ in model.named_buffers()}
        weights = {name: tensor for name, tensor in weights.items() if name in buffers}
        weights |= dict(merged_weights(model, torch.Tensor.detach))

    def write(folder: Path) -> None:
        plain.save_pretrained(folder, state_dict=weights)
        pretrained.tokenizer.save_pretrained(folder)

    write_folder_atomically(out, write)
    return found
