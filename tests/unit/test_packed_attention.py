"""Packed micro-batches against each sequence alone, for several kinds of attention; what cannot be packed is
refused."""

import numpy as np
import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dapo_cli.errors import UserError
from dapo_cli.learner.micro_batches import pack
from dapo_cli.types import TokenSequence
from tests.conftest import DEVICE, make_group
from tests.unit.test_single_learner import make_learner, sequence_logprobs

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GROUPS = [
    make_group([3, 9, 1, 20], [True, False, False, False], uid="a", seed=1),
    make_group([12, 2, 7, 7], [True, True, False, True], uid="b", seed=2),
]


def random_model(config_class, model_class, **keys):
    torch.manual_seed(0)
    return model_class(config_class(**SIZES | keys)).eval().to(DEVICE)


@pytest.mark.parametrize(
    ("config_class", "model_class", "keys"),
    [
        (LlamaConfig, LlamaForCausalLM, {}),
        (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 2, "tie_word_embeddings": True}),
        (Qwen3Config, Qwen3ForCausalLM, {"num_key_value_heads": 2, "head_dim": 8}),
        (MistralConfig, MistralForCausalLM, {"num_key_value_heads": 2, "sliding_window": 6}),
        (GemmaConfig, GemmaForCausalLM, {"num_key_value_heads": 1, "head_dim": 8}),
    ],
    ids=["llama", "llama-gqa-tied", "qwen3", "mistral-window", "gemma"],
)
@pytest.mark.parametrize("budget", [40, 16384])
def test_packed_logprobs_equal_each_sequence_alone(config_class, model_class, keys, budget):
    model = random_model(config_class, model_class, **keys)
    scored, _ = make_learner(model, budget=budget).score(GROUPS, step=1)
    plain = random_model(config_class, model_class, **keys)
    for group, result in zip(GROUPS, scored, strict=True):
        for index, values in enumerate(result.old_logprobs):
            with torch.no_grad():
                np.testing.assert_allclose(values, sequence_logprobs(plain, group, index).cpu(), atol=2e-5)


def test_a_prompt_is_laid_out_once():
    a, b = (3, 4, 5), (6, 7)
    batch = pack(
        [TokenSequence(a, (8, 9)), TokenSequence(a, (11,)), TokenSequence(b, (10,))], [0, 1, 2], torch.device("cpu")
    )
    assert batch.token_ids_M.tolist() == [3, 4, 5, 8, 9, 11, 6, 7, 10]
    assert batch.positions_M.tolist() == [0, 1, 2, 3, 4, 3, 0, 1, 2]
    # Rows of similar length stand in one block: 4 is 0.8 of 5, and 3 is not 0.75 of it.
    blocks = [batch.token_ids_M[gather_BS] for gather_BS in batch.layout.gathers_BS]
    assert [block.shape for block in blocks] == [(2, 5), (1, 3)]
    assert blocks[0].tolist() == [[3, 4, 5, 8, 9], [3, 4, 5, 11, 3]]  # padded by any token
    assert blocks[1].tolist() == [[6, 7, 10]]
    flat = torch.cat([block.flatten() for block in blocks])
    assert flat[batch.layout.scatter_M].tolist() == batch.token_ids_M.tolist()
    assert batch.targets_N.tolist() == [8, 9, 11, 10]
    assert batch.token_ids_M[batch.sources_N].tolist() == [5, 8, 5, 7]


def phi_with_biased_head():
    model = random_model(PhiConfig, PhiForCausalLM)
    torch.nn.init.normal_(model.lm_head.bias)
    return model


def mamba():
    return (
        MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4))
        .eval()
        .to(DEVICE)
    )


@pytest.mark.parametrize(("make", "words"), [(phi_with_biased_head, "a phi model"), (mamba, "a mamba model")])
def test_models_that_would_train_another_policy_are_refused(make, words):
    with pytest.raises(UserError, match=f"{words} cannot be trained here"):
        make_learner(make())
