"""An exported model computes what the learner's did."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo_cli.checkpoint import Checkpoints
from dapo_cli.config.schema import LearnerConfig, PretrainedModel, Recipe, SingleLearner
from dapo_cli.export import export
from dapo_cli.learner.lora import add_adapters
from dapo_cli.pretrained import load_weights, open_pretrained
from tests.conftest import train_on
from tests.unit.test_checkpoint import make_sampler
from tests.unit.test_single_learner import GROUPS, make_learner

MODEL = PretrainedModel(path="shipped:tiny-arithmetic")


@pytest.mark.parametrize("keys", [{}, {"lora_rank": 4, "lora_alpha": 12}], ids=["all weights", "adapters"])
def test_an_exported_checkpoint_computes_what_the_learner_did(tmp_path, keys):
    pretrained = open_pretrained(MODEL)
    model = load_weights(pretrained, MODEL, device="cpu")
    add_adapters(model, LearnerConfig(**keys))
    learner = make_learner(model, **keys)
    for step in (1, 2):
        train_on(learner, GROUPS, step)
    Checkpoints(tmp_path, keep=1).save(2, learner, make_sampler().state_dict())

    recipe = Recipe(model=MODEL, learner=SingleLearner(**keys))
    assert export(recipe, pretrained, Checkpoints(tmp_path, keep=1), None, tmp_path / "out") == 2
    exported, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    token_ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        untrained = load_weights(pretrained, MODEL, device="cpu")(token_ids).logits
        torch.testing.assert_close(exported(token_ids).logits, model(token_ids).logits, rtol=0, atol=1e-4)
        assert (exported(token_ids).logits - untrained).abs().max() > 0.1
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("1+2=?\n")["input_ids"]
    assert exported.generation_config.eos_token_id == model.generation_config.eos_token_id
