"""The decode loop against `model.generate`, full forward passes and exact distributions."""

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dapo_cli.config.schema import SamplingConfig
from dapo_cli.errors import Diverged
from dapo_cli.rollout.completions import complete
from dapo_cli.rollout.transformers_engine import TransformersEngine, cut_distribution, sample_tokens, sampling_noise
from dapo_cli.types import Finish
from tests.conftest import make_prompt

TEXTS = ["1+2=?\n", "6+9-8+4=?\n", "3=?\n", "7+7+7+7+7+7+7=?\n"]


@pytest.fixture
def prompts(tokenizer):
    return [make_prompt(tokenizer, text) for text in TEXTS]


@pytest.fixture
def engine(model, tokenizer):
    return TransformersEngine(model, tokenizer, max_batch_completions=64)


def test_greedy_equals_generate(engine, model, prompts):
    groups = complete(engine, prompts, 1, SamplingConfig(temperature=0, max_tokens=40), key="k")
    for prompt, (completion,) in zip(prompts, groups, strict=True):
        token_ids = torch.tensor([prompt.token_ids])
        expected = model.generate(input_ids=token_ids, do_sample=False, max_new_tokens=40)[0, len(prompt.token_ids) :]
        assert list(completion.token_ids) == expected.tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_a_full_forward_pass(engine, model, prompts, temperature):
    groups = complete(engine, prompts, 3, SamplingConfig(temperature=temperature, max_tokens=30), key="k")
    for prompt, completions in zip(prompts, groups, strict=True):
        for completion in completions:
            sequence = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
            with torch.no_grad():
                logits = model(sequence).logits[0, len(prompt.token_ids) - 1 : -1] / temperature
            expected = logits.log_softmax(-1).gather(-1, sequence[0, len(prompt.token_ids) :, None]).squeeze(-1)
            np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5)


def test_a_completion_does_not_depend_on_its_batch(model, tokenizer, prompts):
    sampling = SamplingConfig(max_tokens=40)
    together = complete(TransformersEngine(model, tokenizer, 64), prompts, 4, sampling, key="k")
    in_small_batches = complete(TransformersEngine(model, tokenizer, 4), prompts, 4, sampling, key="k")
    alone = [
        complete(TransformersEngine(model, tokenizer, 64), [prompt], 4, sampling, key="k")[0] for prompt in prompts
    ]
    backwards = complete(TransformersEngine(model, tokenizer, 64), prompts[::-1], 4, sampling, key="k")[::-1]
    tokens = [[c.token_ids for c in group] for group in together]
    assert len({c for group in tokens for c in group}) > 8
    for other in (in_small_batches, alone, backwards):
        assert [[c.token_ids for c in group] for group in other] == tokens
    fewer = complete(TransformersEngine(model, tokenizer, 64), prompts, 2, sampling, key="k")
    assert [[c.token_ids for c in group] for group in fewer] == [group[:2] for group in tokens]


def test_another_key_gives_other_completions(engine, prompts):
    sampling = SamplingConfig(max_tokens=40)
    first, second = (complete(engine, prompts, 2, sampling, key=key) for key in ("1/train/1/0", "1/train/2/0"))
    assert [c.token_ids for c in first[1]] != [c.token_ids for c in second[1]]


def test_finish_reason(engine, prompts):
    long = complete(engine, prompts, 8, SamplingConfig(max_tokens=60), key="k")
    stopped = next(c for group in long for c in group if c.finish is Finish.STOP)
    assert stopped.token_ids[-1] in engine.eos_ids
    assert not set(stopped.token_ids[:-1]) & set(engine.eos_ids)

    def again(max_tokens: int):
        groups = complete(engine, prompts, 8, SamplingConfig(max_tokens=max_tokens), key="k")
        return next(
            c for g in groups for c in g if (c.prompt_uid, c.sample_index) == (stopped.prompt_uid, stopped.sample_index)
        )

    # The end of sequence as the last token allowed is a natural end; one token less is a truncation.
    assert again(len(stopped.token_ids)).finish is Finish.STOP
    cut = again(len(stopped.token_ids) - 1)
    assert (cut.finish, cut.token_ids) == (Finish.LENGTH, stopped.token_ids[:-1])


def test_sampling_inverts_the_distribution():
    # 1,000 evenly spaced uniform numbers hit each token as often as its probability says.
    logits = torch.tensor([0.5, 0.25, 0.0, 0.2, 0.05]).log().repeat(1000, 1)
    noise = (torch.arange(1000) + 0.5) / 1000
    tokens, logprobs = sample_tokens(logits, noise, SamplingConfig())
    assert tokens.bincount(minlength=5).tolist() == [500, 250, 0, 200, 50]
    np.testing.assert_allclose(logprobs.exp(), torch.tensor([0.5, 0.25, 0.0, 0.2, 0.05])[tokens], rtol=1e-5)


def test_sampling_never_takes_an_impossible_last_token():
    logits = torch.randn(200, 1000, generator=torch.Generator().manual_seed(0))
    logits[:, -300:] = -torch.inf
    tokens, logprobs = sample_tokens(logits, torch.full((200,), 1 - 2**-24), SamplingConfig())
    assert tokens.max() < 700
    assert logprobs.isfinite().all()


@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, 0), (1.0, 3), (0.8, 5), (0.01, 0), (1.0, 0)])
def test_cut_equals_transformers_warpers(top_p, top_k):
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.8)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    expected = warpers(None, logits).log_softmax(-1)
    torch.testing.assert_close(cut_distribution((logits / 0.8).log_softmax(-1), top_p, top_k), expected)


def test_noise_is_uniform_and_prefix_stable():
    noise = sampling_noise("k", "uid", 3, 20_000)
    assert noise.min() >= 0 and noise.max() < 1
    assert abs(noise.mean() - 0.5) < 0.01
    np.testing.assert_array_equal(sampling_noise("k", "uid", 3, 10), noise[:10])
    assert sampling_noise("k", "uid", 4, 1) != noise[0]


def test_sync_weights_takes_over_the_values(engine, model):
    changed = [(name, torch.full_like(weight, 0.5)) for name, weight in model.named_parameters()]
    engine.sync_weights(changed)
    assert all((weight == 0.5).all() for weight in model.parameters())


def test_logits_that_are_not_finite_end_the_run(engine, model, prompts):
    model.model.norm.weight.data.fill_(torch.nan)
    for temperature in (0.0, 1.0):
        with pytest.raises(Diverged, match="logits are not finite"):
            complete(engine, prompts, 1, SamplingConfig(temperature=temperature, max_tokens=4), key="k")
