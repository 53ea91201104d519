"""Models that cannot be trained are refused with the reason, before their weights are read where possible."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dapo_cli.config.schema import PretrainedModel
from dapo_cli.config.shipped import model_folder
from dapo_cli.errors import UserError
from dapo_cli.pretrained import load_weights, open_pretrained


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of the shipped model to break."""
    return Path(shutil.copytree(model_folder("shipped:tiny-arithmetic"), tmp_path / "model"))


def load(path: Path | str, **keys):
    config = PretrainedModel(path=str(path), **keys)
    return load_weights(open_pretrained(config), config)


def test_the_shipped_model_loads():
    pretrained = open_pretrained(PretrainedModel(path="shipped:tiny-arithmetic"))
    assert pretrained.context == 160
    assert pretrained.tokenizer.decode(pretrained.tokenizer("1+2=?\nAnswer: 3")["input_ids"]) == "1+2=?\nAnswer: 3"
    model = load("shipped:tiny-arithmetic")
    assert 0.8e6 < sum(weight.numel() for weight in model.parameters()) < 1.2e6
    size = sum(file.stat().st_size for file in Path(pretrained.folder).iterdir())
    assert size <= 4 << 20


def without(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda f: without(f, "tokenizer.json", "tokenizer_config.json"), "no tokenizer"),
        (lambda f: without(f, "config.json"), "no readable config.json"),
        (lambda f: (f / "config.json").write_text("{"), "no readable config.json"),
        (lambda f: without(f, "model.safetensors"), "weights do not load"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 100), "weights do not load"),
        (lambda f: shutil.rmtree(f), "no such folder"),
        (lambda f: edit(f, intermediate_size=400), "weight"),
    ],
)
def test_a_broken_folder_is_named_with_its_fault(folder, fault, words):
    fault(folder)
    with pytest.raises(UserError, match=words) as refused:
        load(folder)
    assert f"model.path={folder}" in str(refused.value)


def test_a_tensor_that_is_not_finite_is_named(folder):
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][3, 5] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=rf"model\.path={folder}: tensor {name} has values that are not finite"):
        load(folder)


def edit(folder: Path, **changes) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_revision_needs_the_hub(folder):
    with pytest.raises(UserError, match=r"model\.revision=main"):
        load(folder, revision="main")
