"""The one form in which every learner saves its state, so that any learner on any number of ranks can go on from it.

A torch.distributed.checkpoint of float32 tensors, each named after a weight of the plain model: `weights.NAME` and
AdamW's `exp_avg.NAME` and `exp_avg_sq.NAME`, written by the ranks that hold them. LEARNER_FILE keeps what is no tensor:
the number of updates, and the scale of a float16 loss.
"""

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from dapo_cli.errors import UserError
from dapo_cli.learner.optim import LossScale

LEARNER_FILE = "learner.json"
MOMENTS = ("exp_avg", "exp_avg_sq")


def trainable(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The weights that an update changes."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def adam_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Any]:
    """The parameter's state in AdamW, made as AdamW would where no update has been yet."""
    state = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    return state


def tensors_of(named: Iterable[tuple[str, Tensor]], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and moments by their names in a checkpoint, as views: loading into them loads the learner."""
    tensors = {}
    for name, parameter in named:
        tensors[f"weights.{name}"] = parameter.detach()
        state = adam_state(optimizer, parameter)
        tensors.update({f"{moment}.{name}": state[moment] for moment in MOMENTS})
    return tensors


def write_tensors(tensors: dict[str, Any], folder: Path, *, alone: bool) -> None:
    """Collective unless `alone`."""
    with _plainly():
        dcp.save(tensors, storage_writer=FileSystemWriter(folder), no_dist=alone)


def read_tensors(tensors: dict[str, Any], folder: Path, *, alone: bool) -> None:
    """Fill `tensors`, all or some of those in the folder. Collective unless `alone`.

    Raises UserError where it lacks one, or has it in another shape.
    """
    try:
        _read(tensors, folder, alone)
    except RuntimeError as error:
        raise UserError(
            f"{folder}: the checkpoint is whole, but does not fit the recipe's model and learner ({error}): go on with "
            "those that it was written with, or give a new run.dir"
        ) from error


def _read(tensors: dict[str, Any], folder: Path, alone: bool) -> None:
    with _plainly():
        dcp.load(tensors, storage_reader=FileSystemReader(folder), no_dist=alone)


def write_values(folder: Path, adam_steps: int, loss_scale: LossScale) -> None:
    (folder / LEARNER_FILE).write_text(json.dumps({"adam_steps": adam_steps, "loss_scale": asdict(loss_scale)}))


def read_values(folder: Path, loss_scale: LossScale) -> int:
    """AdamW's updates so far. A float16 learner goes on at the scale that a float16 learner left."""
    values = json.loads((folder / LEARNER_FILE).read_text())
    if loss_scale.value != 1.0 and values["loss_scale"]["value"] != 1.0:
        vars(loss_scale).update(values["loss_scale"])
    return values["adam_steps"]


def read_weights(model: torch.nn.Module, folder: Path) -> None:
    """Into a model of this process alone, what a learner of it saved."""
    read_tensors({f"weights.{name}": weight.detach() for name, weight in trainable(model)}, folder, alone=True)


@contextmanager
def _plainly() -> Iterator[None]:
    """Without torch's warning that a save without a process group is one of a single process, which is what is meant,
    and with the cause of a failure in place of its report, which is no Exception."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
            yield
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise RuntimeError(f"{type(cause).__name__}: {cause}") from error
