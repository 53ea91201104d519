"""A checkpoint as a Hugging Face folder; of a table, as the one file TABLE_FILE, which no other program runs."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from dapo_cli.checkpoint import Checkpoints, write_folder_atomically
from dapo_cli.config.schema import Recipe
from dapo_cli.learner.lora import add_adapters, merged_weights
from dapo_cli.learner.state import read_tensors, read_weights
from dapo_cli.pretrained import Pretrained, load_weights
from dapo_cli.tabular.lab import tensors_of
from dapo_cli.tabular.table import Table

TABLE_FILE = "table.safetensors"


def export(
    recipe: Recipe, pretrained: Pretrained | Table, checkpoints: Checkpoints, step: int | None, out: Path
) -> int:
    """Write the model of a checkpoint (None: the newest), in float32 and with adapters merged, and its tokenizer, to
    the folder `out`. Returns the checkpoint's step. Needs host memory for the model, on one process."""
    if isinstance(pretrained, Table):
        return _export_table(pretrained, checkpoints, step, out)
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


def _export_table(table: Table, checkpoints: Checkpoints, step: int | None, out: Path) -> int:
    """`logits` [P, V] float32 and `right` [P] int64, the column of each row's right answer."""
    logits_PV = torch.tensor(table.logits_PV)
    found = checkpoints.read_weights(step, lambda folder: read_tensors(tensors_of(logits_PV), folder, alone=True))
    tensors = {"logits": logits_PV, "right": torch.tensor(table.right_P)}
    write_folder_atomically(out, lambda folder: save_file(tensors, folder / TABLE_FILE))
    return found
