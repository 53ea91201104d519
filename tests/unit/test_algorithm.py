"""Worked numbers of the equations, and the log-prob pass against the naive way."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.algorithm.logprobs import chunked_logprobs, fused_loss
from dapo_cli.algorithm.objective import Clip, LossTokens, UpdateStats, token_losses, token_mean_loss

DAPO = Clip(low=0.2, high=0.28)


def test_advantage_divides_by_the_sample_deviation():
    assert group_advantages([1.0, -1.0, -1.0, -1.0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_advantage_counts_the_length_penalty():
    # mean 0.25, deviations 0.75, 0.25, -1: sample std sqrt((0.5625 + 0.0625 + 1.0) / 2) = 0.901388
    assert group_advantages([1.0, 0.5, -0.75]) == pytest.approx([0.832050, 0.277350, -1.109400], abs=1e-5)


def test_advantage_of_equal_rewards_is_zero():
    assert group_advantages([0.1, 0.1, 0.1]) == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)


def test_advantage_refuses_a_group_of_one():
    with pytest.raises(ValueError, match="at least two"):
        group_advantages([1.0])


@given(st.lists(st.floats(-3, 1), min_size=2, max_size=16))
def test_advantages_sum_to_zero_and_keep_the_order(rewards):
    advantages = group_advantages(rewards)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-6)
    assert sorted(advantages) == [advantages[i] for i in sorted(range(len(rewards)), key=rewards.__getitem__)]


def surrogate(ratio: float, advantage: float, clip: Clip) -> float:
    loss = token_losses(torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), clip)
    return -loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "clip", "expected"),
    [
        (1.5, 1.0, DAPO, 1.28),
        (1.5, -1.0, DAPO, -1.5),
        (0.5, 1.0, DAPO, 0.5),
        (0.5, -1.0, DAPO, -0.8),
        (1.25, 1.0, DAPO, 1.25),
        (1.25, 1.0, Clip(0.2, 0.2), 1.2),
        (20.0, -1.0, DAPO, -20.0),
        (20.0, -1.0, Clip(0.2, 0.28, dual=10.0), -10.0),
        (5.0, -1.0, Clip(0.2, 0.28, dual=10.0), -5.0),
        (20.0, 1.0, Clip(0.2, 0.28, dual=10.0), 1.28),
    ],
)
def test_clipped_surrogate(ratio, advantage, clip, expected):
    assert surrogate(ratio, advantage, clip) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"), [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False)]
)
def test_gradient_stops_where_the_ratio_is_clipped(ratio, advantage, moves):
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    token_losses(logprobs, torch.zeros(1), torch.tensor([advantage]), DAPO).sum().backward()
    assert logprobs.grad.item() == (pytest.approx(-ratio * advantage) if moves else 0.0)


def test_token_mean_weighs_tokens_alike():
    short, long = torch.full((2,), 1.0), torch.full((6,), 3.0)
    assert token_mean_loss(torch.cat([short, long]), 8).item() == 2.5
    # The same in two micro-batches or ranks: shares add up; a mean of means would be 2.
    assert (token_mean_loss(short, 8) + token_mean_loss(long, 8)).item() == 2.5


def loss_tokens(advantages: torch.Tensor) -> LossTokens:
    return LossTokens(torch.zeros_like(advantages), advantages, torch.ones_like(advantages))


def test_update_stats_count_each_bound_by_its_own_sign():
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    stats = UpdateStats(updates=1)
    stats.add_tokens(ratios.log(), loss_tokens(advantages), DAPO)
    metrics = stats.metrics()
    assert metrics["policy/positive"] == pytest.approx(3 / 5)
    assert metrics["policy/clip_high"] == pytest.approx(1 / 5)
    assert metrics["policy/clip_high_of_positive"] == pytest.approx(1 / 3)
    assert metrics["policy/clip_low"] == pytest.approx(1 / 5)
    assert metrics["policy/ratio_min"] == pytest.approx(0.5)
    assert metrics["policy/ratio_max"] == pytest.approx(1.5)
    k3 = (2 * (0.5 - math.log(1.5)) + 2 * (-0.5 - math.log(0.5))) / 5
    assert metrics["policy/approx_kl"] == pytest.approx(k3, rel=1e-6)


def test_update_stats_merge_weighs_by_tokens():
    first, second = UpdateStats(updates=1), UpdateStats(updates=1)
    first.add_tokens(torch.tensor([1.5]).log(), loss_tokens(torch.ones(1)), DAPO)
    second.add_tokens(torch.zeros(3), loss_tokens(torch.ones(3)), DAPO)
    assert first.merge(second).metrics()["policy/clip_high"] == 0.25


def test_update_stats_average_losses_and_norms_over_updates():
    metrics = UpdateStats(updates=1, loss=1.0, grad_norm=2.0).merge(UpdateStats(updates=1, loss=3.0, grad_norm=6.0))
    assert (metrics.metrics()["policy/loss"], metrics.metrics()["policy/grad_norm"]) == (2.0, 4.0)


def test_update_stats_without_an_update_have_no_means():
    metrics = UpdateStats().metrics()
    assert metrics["policy/updates"] == 0
    assert metrics["policy/loss"] is None


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_logprobs_equal_log_softmax(chunk_tokens, temperature):
    torch.manual_seed(1)
    hidden, weight, targets = torch.randn(23, 16), torch.randn(50, 16), torch.randint(0, 50, (23,))
    reference = torch.log_softmax(hidden.double() @ weight.double().T / temperature, dim=-1)

    logprobs, entropy = chunked_logprobs(hidden, weight, targets, temperature, chunk_tokens)

    expected = reference.gather(-1, targets[:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(reference.exp() * reference).sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_fused_loss_has_the_value_and_gradient_of_the_plain_one(chunk_tokens, temperature):
    torch.manual_seed(1)
    hidden, weight = torch.randn(23, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets, advantages = torch.randint(0, 50, (23,)), torch.randn(23)
    old = torch.log_softmax(hidden.detach() @ weight.detach().T / temperature, dim=-1)
    old = old.gather(-1, targets[:, None]).squeeze(-1) + 0.3 * torch.randn(23)  # ratios on both sides of the clip

    def token_loss(logprobs, chunk):
        return token_mean_loss(token_losses(logprobs, old[chunk], advantages[chunk], DAPO), num_loss_tokens=40)

    plain_inputs = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    plain = torch.log_softmax(plain_inputs[0] @ plain_inputs[1].T / temperature, dim=-1)
    plain_loss = 3 * token_loss(plain.gather(-1, targets[:, None]).squeeze(-1), slice(None))
    plain_loss.backward()

    loss, logprobs = fused_loss(hidden, weight, targets, temperature, chunk_tokens, token_loss)
    (3 * loss).backward()

    assert not logprobs.requires_grad
    torch.testing.assert_close(
        logprobs, chunked_logprobs(hidden, weight, targets, temperature, chunk_tokens)[0], rtol=0, atol=0
    )
    assert (3 * loss).item() == pytest.approx(plain_loss.item(), rel=1e-5)
    for fused, expected in zip((hidden, weight), plain_inputs, strict=True):
        assert (fused.grad - expected.grad).norm() < 1e-5 * expected.grad.norm()


def test_fused_loss_of_no_tokens_is_zero_and_moves_nothing():
    hidden, weight = torch.zeros(0, 4, requires_grad=True), torch.ones(9, 4, requires_grad=True)
    loss, logprobs = fused_loss(hidden, weight, torch.zeros(0, dtype=torch.long), 1.0, 8, lambda *_: torch.ones(()))
    loss.backward()
    assert loss.item() == 0 and logprobs.shape == (0,) and not weight.grad.any()


def test_chunked_logprobs_of_no_tokens():
    logprobs, entropy = chunked_logprobs(torch.zeros(0, 4), torch.zeros(9, 4), torch.zeros(0, dtype=torch.long), 1.0, 8)
    assert logprobs.shape == entropy.shape == (0,)
