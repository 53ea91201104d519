"""A recipe's model section -> a folder on disk, its tokenizer, its weights; what cannot be trained is refused here."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dapo_cli.config.schema import ModelConfig, PretrainedModel
from dapo_cli.config.shipped import model_folder
from dapo_cli.errors import UserError, first_line
from dapo_cli.tracking.provenance import MODEL_SUFFIXES, hub_model_record, model_folder_record


@dataclass(frozen=True)
class Pretrained:
    """A model, its tokenizer and configuration (both read already). `commit` is that of a hub model."""

    path: str
    folder: str
    commit: str | None
    tokenizer: Any
    config: Any

    @cached_property
    def record(self) -> dict[str, Any]:
        """The entry for the manifest. Reads all files of a folder to hash them."""
        return hub_model_record(self.path, self.commit) if self.commit else model_folder_record(self.folder)

    @cached_property
    def generation_config(self) -> Any:
        """The model's own, or what its configuration says of generating."""
        from transformers import GenerationConfig

        try:
            return GenerationConfig.from_pretrained(self.folder)
        except OSError:  # it has none
            return GenerationConfig.from_model_config(self.config)

    @property
    def context(self) -> int | None:
        return context_of(self.config)


def context_of(config: Any) -> int | None:
    """Most tokens of a sequence; None where the model has no such limit."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def of_folder(model: ModelConfig) -> PretrainedModel:
    """The section of a Hugging Face model. Raises UserError where it is a table."""
    if isinstance(model, PretrainedModel):
        return model
    raise UserError("model tabular: a table has no folder, tokenizer or architecture, which this needs; set model.path")


def open_pretrained(model: ModelConfig, *, with_weights: bool = True) -> Pretrained:
    """Find the model and read all but its weights, which a hub model is fetched without where they are not wanted.

    Raises UserError for a missing folder, an unreachable hub, a folder without configuration or tokenizer, and an
    architecture that is no causal language model.
    """
    model = of_folder(model)
    folder, commit = _find(model, with_weights)
    config = _open_config(model, folder)
    return Pretrained(model.path, folder, commit, _open_tokenizer(model, folder), config)


def open_sketch(model: ModelConfig) -> Any | None:
    """The configuration in a folder that has nothing else, neither weights nor tokenizer: enough for memory and FLOPs.
    None for any other model. Raises UserError for a configuration that cannot be read."""
    if not isinstance(model, PretrainedModel):
        return None
    folder = Path(model_folder(model.path)).expanduser()
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if present != {"config.json"}:
        return None
    return _open_config(model, str(folder))


def open_config(model: ModelConfig) -> Any:
    """The model's configuration alone. Raises UserError as `open_pretrained` does."""
    model = of_folder(model)
    return _open_config(model, _find(model)[0])


def load_weights(pretrained: Pretrained, model: ModelConfig, *, device: Any = None, dtype: Any = None) -> Any:
    """The `transformers` causal language model, in evaluation mode; in float32 and on the GPU where there is one,
    unless told otherwise.

    Raises UserError for weights that are missing, unreadable, not finite, or do not fit the configuration.
    """
    import torch
    import transformers

    model = of_folder(model)
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # transformers imports DeepSpeed where there is one, which warns
    transformers.utils.logging.disable_progress_bar()  # it would tear the live display, also at the final export
    auto_model: Any = transformers.AutoModelForCausalLM
    try:
        dtype = dtype or torch.float32
        loaded, report = auto_model.from_pretrained(pretrained.folder, dtype=dtype, output_loading_info=True)
    except Exception as error:  # safetensors, OSError, RuntimeError: each for another kind of broken file
        raise UserError(f"model.path={model.path}: its weights do not load ({first_line(error)})") from error
    if report["missing_keys"] or report["mismatched_keys"]:
        faulty = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
        raise UserError(
            f"model.path={model.path}: the weight files lack or misshape {len(faulty)} tensors, the first {faulty[0]}"
        )
    loaded = loaded.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    for name, weight in loaded.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise UserError(
                f"model.path={model.path}: tensor {name} has values that are not finite ({dtype}): "
                "fetch or save it anew"
            )
    return loaded


def without_weights(config: Any) -> Any:
    """A model of that configuration with its weights on the meta device: shapes and names alone."""
    import torch
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return auto_model.from_config(config, dtype=torch.float32).eval()


def _open_config(model: PretrainedModel, folder: str) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:  # OSError, ValueError, validation errors of huggingface_hub
        raise UserError(f"model.path={model.path}: no readable config.json there ({first_line(error)})") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"model.path={model.path}: a {config.model_type} model is no causal language model")
    return config


def _open_tokenizer(model: PretrainedModel, folder: str) -> Any:
    from transformers import AutoTokenizer

    # Without this check transformers makes up an empty tokenizer of the architecture's usual class.
    present = {path.name for path in Path(folder).iterdir()}
    if not present & {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json"}:
        raise UserError(
            f"model.path={model.path}: the folder has no tokenizer (tokenizer.json): save the model's tokenizer there "
            "with tokenizer.save_pretrained"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        raise UserError(f"model.path={model.path}: its tokenizer does not load ({first_line(error)})") from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"model.path={model.path}: its tokenizer has no eos_token, so no completion could ever end")
    return tokenizer


def _find(model: PretrainedModel, with_weights: bool = True) -> tuple[str, str | None]:
    """The folder, and of a hub model its commit."""
    folder = Path(model_folder(model.path)).expanduser()
    if folder.is_dir() and model.revision is not None:
        raise UserError(
            f"model.revision={model.revision}: {model.path} is a folder, which has no revisions; leave it out"
        )
    if folder.is_dir():
        return str(folder), None
    if folder.exists():
        raise UserError(f"model.path={model.path}: is a file; give the Hugging Face folder that holds it")
    if model.path.startswith(("/", ".", "~")) or model.path.count("/") != 1:
        raise UserError(f"model.path={model.path}: no such folder, and no hub id (OWNER/NAME) either")
    from huggingface_hub import snapshot_download

    left_out = {".bin", ".py"} | (set() if with_weights else {".safetensors"})
    try:
        patterns = [f"*{suffix}" for suffix in sorted(MODEL_SUFFIXES - left_out)]
        snapshot = snapshot_download(model.path, revision=model.revision, allow_patterns=patterns)
    except Exception as error:  # not found, gated, offline: each its own type
        raise UserError(
            f"model.path={model.path}: no such folder, and the hub does not give it ({first_line(error)})"
        ) from error
    return snapshot, Path(snapshot).name
