"""What is evaluated: a model, the checkpoints of a run, or a model that a server has."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from dapo_cli.checkpoint import Checkpoints
from dapo_cli.config.load import load_recipe
from dapo_cli.config.schema import PretrainedModel, Recipe
from dapo_cli.config.shipped import MODEL_PREFIX
from dapo_cli.errors import UserError
from dapo_cli.evaluation.options import Options
from dapo_cli.learner.lora import add_adapters, merged_weights
from dapo_cli.learner.state import read_weights
from dapo_cli.pretrained import Pretrained, load_weights, open_pretrained
from dapo_cli.tracking.provenance import file_sha256
from dapo_cli.tracking.run_folder import RunFolder


@dataclass(frozen=True)
class Subject:
    """`pretrained` is None for a server's model, `run` and `recipe` for anything but a run; `steps` are the checkpoints
    to evaluate, (None,) for a model without any."""

    name: str
    config: PretrainedModel
    pretrained: Pretrained | None
    run: RunFolder | None
    recipe: Recipe | None
    steps: tuple[int | None, ...]
    served_as: str | None = None

    @property
    def checkpoints(self) -> Checkpoints:
        assert self.run is not None and self.recipe is not None
        return Checkpoints(self.run.checkpoints, self.recipe.checkpoint.keep)

    def record(self, step: int | None) -> dict[str, Any]:
        """The weights' entry for a manifest; a change of "path" alone is no change."""
        if self.pretrained is None:
            return {"served_as": self.served_as}
        if self.run is None or step is None:
            return self.pretrained.record
        state = self.checkpoints.path(step) / "state.json"  # it holds the hashes of all other files
        return {**self.pretrained.record, "step": step, "checkpoint_sha256": file_sha256(state)}

    def weights(self, step: int) -> Iterator[tuple[str, Tensor]]:
        """Those of a checkpoint, by the plain model's names, adapters merged. Raises UserError for a damaged one."""
        self.checkpoints.read_weights(step, lambda folder: read_weights(self._reader, folder))
        return merged_weights(self._reader, Tensor.detach)

    @cached_property
    def _reader(self) -> Any:
        """The model as its learner saw it, on the host, into which checkpoints are read."""
        assert self.pretrained is not None and self.recipe is not None
        model = load_weights(self.pretrained, self.config, device="cpu")
        add_adapters(model, self.recipe.learner)
        return model


def open_subject(options: Options) -> Subject:
    """Read all but weights. Raises UserError for what is no model, and for checkpoints that are not there."""
    if options.remote:
        name = options.served_model or options.model
        return Subject(short_name(name), PretrainedModel(path=name), None, None, None, (None,), name)
    folder = RunFolder(options.model)
    if folder.manifest_file.exists() and folder.recipe_file.exists():
        return _run(folder, options)
    if options.step is not None or options.all_checkpoints:
        raise UserError(f"{options.model}: no run folder (it has no manifest.json), so it has no checkpoints to choose")
    config = PretrainedModel(path=options.model)
    return Subject(short_name(options.model), config, open_pretrained(config), None, None, (None,))


def _run(folder: RunFolder, options: Options) -> Subject:
    recipe = load_recipe(str(folder.recipe_file)).recipe
    if not isinstance(recipe.model, PretrainedModel):
        raise UserError(f"{folder.path}: a run on a table has no model to generate with; its evals.jsonl is exact")
    kept = Checkpoints(folder.checkpoints, recipe.checkpoint.keep).steps()
    if not kept:
        raise UserError(f"{folder.path}: the run has no checkpoint yet; `dapo eval {recipe.model.path}` is its start")
    if options.step is not None and options.step not in kept:
        raise UserError(
            f"--step {options.step}: {folder.path} has no such checkpoint; there are {', '.join(map(str, kept))} "
            "(checkpoint.keep says how many a run keeps)"
        )
    steps = tuple(kept) if options.all_checkpoints else (options.step or kept[-1],)
    return Subject(
        short_name(str(folder.path.resolve())), recipe.model, open_pretrained(recipe.model), folder, recipe, steps
    )


def short_name(path: str) -> str:
    """The last part, as a name of a folder.

    >>> short_name("shipped:tiny-arithmetic"), short_name("Qwen/Qwen2.5-7B"), short_name("/models/x/")
    ('tiny-arithmetic', 'Qwen2.5-7B', 'x')
    """
    name = Path(path.removeprefix(MODEL_PREFIX)).expanduser().name
    return name or hashlib.sha256(path.encode()).hexdigest()[:8]
