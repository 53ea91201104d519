"""Each preset's loss and gradient against a slow, obvious implementation, and its rules by worked numbers."""

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dapo_cli.algorithm.aggregation import aggregation_weights
from dapo_cli.algorithm.objective import (
    Clip,
    LossTokens,
    UpdateStats,
    ratio_bounds,
    sequence_log_ratios,
    token_losses,
    token_mean_loss,
    weighted_losses,
)
from dapo_cli.build import objective_of
from dapo_cli.config.load import load_recipe
from dapo_cli.config.schema import Aggregation, RatioLevel, Surrogate
from dapo_cli.learner.base import Objective
from tests.unit.family import ORACLES, Response

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 7


@cache
def objective(preset: str) -> Objective:
    return objective_of(load_recipe("quickstart", [f"algorithm={preset}"]).recipe)


def random_responses(seed: int, spread: float) -> tuple[list[Tensor], list[Response]]:
    """Logits [T, V] float64 of two to four ragged groups, and the completions sampled under other weights. `spread`
    is the deviation of log r, which decides how many ratios leave their bounds."""
    generator = torch.manual_seed(seed)
    logits, responses = [], []
    for prompt in range(int(torch.randint(2, 5, ()))):
        for _ in range(int(torch.randint(1, 5, ()))):
            length = int(torch.randint(1, 7, ()))
            logits.append(torch.randn(length, VOCABULARY, dtype=torch.float64, generator=generator).mul(2))
            logits[-1].requires_grad_()
            targets = torch.randint(VOCABULARY, (length, 1))
            new = logits[-1].log_softmax(-1).gather(-1, targets).squeeze(-1)
            old = (new.detach() + spread * torch.randn(length, dtype=torch.float64)).clamp(max=-1e-4)
            ref = new.detach() + torch.randn(length, dtype=torch.float64)
            advantage = torch.randn((), dtype=torch.float64).expand(length)
            responses.append(Response(prompt, new, old, ref, advantage))
    return logits, responses


def family_loss(objective: Objective, responses: list[Response]) -> Tensor:
    """The whole mini-batch in one piece, as a learner puts it together."""
    lengths = [len(response.old) for response in responses]
    weights = aggregation_weights(
        lengths, [response.prompt for response in responses], objective.aggregation, objective.max_tokens
    )
    logprobs = torch.cat([response.logprobs for response in responses])
    old = torch.cat([response.old for response in responses])
    log_ratios = None
    if objective.ratio is RatioLevel.sequence:
        log_ratios = sequence_log_ratios(logprobs.detach(), old, lengths)
    tokens = LossTokens(
        old,
        torch.cat([response.advantages for response in responses]),
        torch.cat([torch.full_like(response.old, weight) for response, weight in zip(responses, weights, strict=True)]),
        torch.cat([response.ref for response in responses]) if objective.has_reference else None,
        log_ratios,
    )
    losses = weighted_losses(logprobs, tokens, objective.clip, objective.kl_coefficient)
    return token_mean_loss(losses, sum(lengths))


@pytest.mark.parametrize("preset", ORACLES)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([1e-4, 0.3, 1.5]))
@example(seed=8, spread=1.5)  # GSPO clips every completion
def test_loss_and_gradient_equal_the_oracle(preset: str, seed: int, spread: float) -> None:
    logits, responses = random_responses(seed, spread)
    expected = ORACLES[preset](responses)
    expected_gradients = torch.autograd.grad(expected, logits, retain_graph=True, materialize_grads=True)
    loss = family_loss(objective(preset), responses)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-9)
    for ours, theirs in zip(torch.autograd.grad(loss, logits, materialize_grads=True), expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def value_and_weight(ratio: float, advantage: float, clip: Clip, old: float = math.log(0.5)) -> tuple[float, float]:
    """Of one token: what the surrogate is worth, and what multiplies grad log pi."""
    logprob = torch.tensor([old + math.log(ratio)], dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([old], dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    loss = token_losses(logprob, *tokens, clip).sum()
    loss.backward()
    return -loss.item(), -logprob.grad.item()


ASPO = Clip(0.2, 0.2, 3.0, Surrogate.aspo)
ASPO_NUMBERS = [
    # ratio, advantage -> value, weight of grad log pi
    (0.5, 1.0, 2.0, 2.0),  # lags behind: turned over
    (1.0, 1.0, 1.0, 1.0),
    (1.1, 2.0, 2 / 1.1, 2 / 1.1),
    (1.3, 1.0, 0.0, 0.0),  # beyond 1 + high: masked
    (0.1, 1.0, 3.0, 3.0),  # dual clip: bounded, and still learned from
    (1.5, -1.0, -1.5, -1.5),  # A < 0: as in PPO
    (0.5, -1.0, -0.8, 0.0),
    (5.0, -1.0, -3.0, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "value", "weight"), ASPO_NUMBERS)
def test_aspo_by_hand(ratio: float, advantage: float, value: float, weight: float) -> None:
    assert value_and_weight(ratio, advantage, ASPO) == pytest.approx((value, weight), rel=1e-9)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(0.01, 1.0, 0.01), (3.9, 1.0, 3.9), (4.1, 1.0, 4.0), (100.0, 1.0, 4.0), (100.0, -2.0, -8.0), (0.01, -1.0, -0.01)],
)
def test_cispo_by_hand(ratio: float, advantage: float, weight: float) -> None:
    """Each token keeps a gradient: the capped ratio times A; the value is that times log pi."""
    logprob = math.log(0.5 * ratio)
    cispo = Clip(0.2, 3.0, None, Surrogate.cispo)
    assert value_and_weight(ratio, advantage, cispo) == pytest.approx((weight * logprob, weight), rel=1e-9)


@pytest.mark.parametrize(
    ("q", "low", "high"),
    [
        (1.0, 0.8, 0.5 + 0.5 * math.sqrt(1.8)),  # 1 - 0.64 = 0.36, whose root is 0.6
        (1 / 1.2, 0.5 + 0.5 * math.sqrt(0.232), 1.2),  # 1 + 0.96 = 1.96, whose root is 1.4
        (0.64, 0.5, 1.25),  # 1 + 1.25 = 2.25, whose root is 1.5; the lower bound has reached its end
        (0.05, 0.5, 0.5 + 0.5 * math.sqrt(17)),
        (0.001, 0.5, 10.0),  # 14.65 without dual clip
    ],
)
def test_dcpo_bounds_by_hand(q: float, low: float, high: float) -> None:
    clip = Clip(0.16, 0.2, 10.0, Surrogate.dynamic_clip)
    bounds = ratio_bounds(torch.tensor([q], dtype=torch.float64).log(), clip)
    assert [bound.item() for bound in bounds] == pytest.approx([low, high], rel=1e-12)


def test_dcpo_stops_at_its_bounds() -> None:
    clip = Clip(0.16, 0.2, 10.0, Surrogate.dynamic_clip)
    old = math.log(0.64)  # bounds 0.5 and 1.25
    assert value_and_weight(1.24, 1.0, clip, old) == pytest.approx((1.24, 1.24))
    assert value_and_weight(1.3, 1.0, clip, old) == pytest.approx((1.25, 0.0))
    assert value_and_weight(0.6, -1.0, clip, old) == pytest.approx((-0.6, -0.6))
    assert value_and_weight(0.4, -1.0, clip, old) == pytest.approx((-0.5, 0.0))
    assert value_and_weight(12.0, -1.0, clip, math.log(0.01)) == pytest.approx((-10.0, 0.0))


def test_gspo_by_hand() -> None:
    """log r of 0.3 and -0.1: log s is 0.1, and each token has half of s A as its gradient's weight."""
    logprobs = torch.tensor([0.3, -0.1], dtype=torch.float64, requires_grad=True)
    old, advantages = torch.zeros(2, dtype=torch.float64), torch.full((2,), -2.0, dtype=torch.float64)
    log_ratios = sequence_log_ratios(logprobs.detach(), old, [2])
    losses = token_losses(logprobs, old, advantages, Clip(3e-4, 4e-4), log_ratios)
    (losses.sum() / 2).backward()
    assert losses.tolist() == pytest.approx([2 * math.exp(0.1)] * 2)
    assert logprobs.grad.tolist() == pytest.approx([math.exp(0.1)] * 2)


LENGTHS, PROMPTS = [2, 6, 2], [0, 0, 1]  # of values 1, 3 and 5
AGGREGATED = [
    (Aggregation.token_mean, (2 * 1 + 6 * 3 + 2 * 5) / 10),
    (Aggregation.prompt_mean, ((2 * 1 + 6 * 3) / 8 + 5) / 2),
    (Aggregation.sequence_mean, (1 + 3 + 5) / 3),
    (Aggregation.sequence_sum, ((1 + 3) + 5) / 2),
    (Aggregation.constant, (2 * 1 + 6 * 3 + 2 * 5) / (3 * 20)),
]


@pytest.mark.parametrize(("aggregation", "expected"), AGGREGATED)
def test_aggregation_by_hand(aggregation: Aggregation, expected: float) -> None:
    weights = aggregation_weights(LENGTHS, PROMPTS, aggregation, max_tokens=20)
    total = sum(w * length * value for w, length, value in zip(weights, LENGTHS, (1, 3, 5), strict=True))
    assert total / sum(LENGTHS) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.integers(1, 999), min_size=1, max_size=9))
def test_the_token_mean_weighs_by_exactly_one(lengths: list[int]) -> None:
    assert aggregation_weights(lengths, [0] * len(lengths), Aggregation.token_mean, 7) == [1.0] * len(lengths)


STATS = [
    # surrogate, (clip_high, clip_low, clip_dual) of ratios 5 and 0.1, each with advantages 1, -1 and 0
    (Clip(0.2, 0.28), (1, 1, 0)),
    (Clip(0.2, 0.28, 3.0), (1, 1, 1)),
    (Clip(0.16, 0.2, None, Surrogate.dynamic_clip), (1, 1, 0)),
    (Clip(0.2, 3.0, None, Surrogate.cispo), (2, 0, 0)),  # weights lowered, of either sign
    (Clip(0.2, 5.0, None, Surrogate.cispo), (0, 0, 0)),
    (Clip(0.2, 0.2, 3.0, Surrogate.aspo), (1, 1, 2)),  # 1 / 0.1 is above 3, too
]


@pytest.mark.parametrize(("clip", "counts"), STATS)
def test_clip_shares_count_what_the_bounds_change(clip: Clip, counts: tuple[int, int, int]) -> None:
    ratios, advantages = torch.tensor([5.0] * 3 + [0.1] * 3), torch.tensor([1.0, -1.0, 0.0] * 2)
    old = torch.full((6,), math.log(0.15))
    stats = UpdateStats(updates=1)
    stats.add_tokens(old + ratios.log(), LossTokens(old, advantages, torch.ones(6)), clip)
    assert (stats.clipped_high, stats.clipped_low, stats.clipped_dual) == counts
    # Of the two tokens with a positive advantage one is above any upper bound that counts at all.
    assert stats.metrics()["policy/clip_high_of_positive"] == min(counts[0], 1) / 2


@pytest.mark.parametrize("clip", [clip for clip, _ in STATS])
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_counted_is_what_the_loss_stops(clip: Clip, seed: int) -> None:
    """By autograd: no gradient where a bound is counted, but for CISPO's cap and ASPO's dual clip where A > 0."""
    generator = torch.Generator().manual_seed(seed)
    advantages, log_ratios = torch.randn(2, 40, generator=generator)
    old = torch.randn(40, generator=generator).abs().neg()
    logprobs = (old + 2 * log_ratios).requires_grad_()
    token_losses(logprobs, old, advantages, clip).sum().backward()
    stopped = logprobs.grad == 0
    stats = UpdateStats(updates=1)
    stats.add_tokens(logprobs.detach(), LossTokens(old, advantages, torch.ones(40)), clip)
    if clip.surrogate is Surrogate.cispo:
        assert not stopped.any()
        return
    assert stats.clipped_high == (stopped & (advantages > 0)).sum()
    flipped = 0
    if clip.surrogate is Surrogate.aspo:
        flipped = ((logprobs < old - math.log(clip.dual)) & (advantages > 0)).sum()
    assert stats.clipped_low + stats.clipped_dual == (stopped & (advantages < 0)).sum() + flipped


def test_of_a_ratio_of_sequences_the_shares_are_theirs() -> None:
    logprobs, old = torch.tensor([1.0, -0.9]), torch.zeros(2)  # log s = 0.05 for both
    tokens = LossTokens(old, torch.ones(2), torch.ones(2), None, sequence_log_ratios(logprobs, old, [2]))
    stats = UpdateStats(updates=1)
    stats.add_tokens(logprobs, tokens, Clip(0.2, 0.2))
    metrics = stats.metrics()
    assert metrics["policy/clip_high"] == 0
    assert metrics["policy/ratio_max"] == pytest.approx(math.exp(0.05)) == metrics["policy/ratio_min"]
    assert metrics["policy/approx_kl"] == pytest.approx((math.exp(1) - 2 + math.exp(-0.9) - 0.1) / 2, rel=1e-6)


def test_kl_to_the_reference_is_counted_where_there_is_one() -> None:
    zeros, ones = torch.zeros(2), torch.ones(2)
    stats = UpdateStats(updates=1)
    stats.add_tokens(zeros, LossTokens(zeros, ones, ones, torch.tensor([1.0, -1.0])), Clip(0.2, 0.2))
    expected = (math.exp(1) - 2 + math.exp(-1)) / 2
    assert stats.metrics()["policy/kl_reference"] == pytest.approx(expected, rel=1e-6)
    assert UpdateStats().merge(stats).merge(UpdateStats()).metrics() == stats.metrics()
    assert UpdateStats(has_reference=True).metrics()["policy/kl_reference"] is None
    assert "policy/kl_reference" not in UpdateStats(updates=1, tokens=1).metrics()


ROWS = [
    [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs/algorithms.md").read_text().splitlines()
    if line.startswith("| `") and line.count("|") == 11
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_preset_is_what_its_row_in_the_docs_says(row: list[str]) -> None:
    preset, surrogate, ratio, aggregation, advantage, bounds, dual, kl, dynamic, penalty = row
    recipe, quickstart = load_recipe("quickstart", [f"algorithm={preset}"]).recipe, load_recipe("quickstart").recipe
    ours = recipe.algorithm
    assert [ours.surrogate.value, ours.ratio.value] == [surrogate, ratio]
    assert [ours.aggregation.value, ours.advantage.value] == [aggregation, advantage]
    low, high = bounds.split(",")
    assert (not low and ours.surrogate is Surrogate.cispo) or ours.clip_low == float(low)
    assert ours.clip_high == float(high)
    assert (ours.dual_clip, ours.kl_coefficient) == (float(dual) if dual else None, float(kl or 0))
    assert (recipe.sampler.dynamic, recipe.sampler.refill) == (bool(dynamic), "no refill" not in dynamic)
    assert recipe.overlong.penalty == bool(penalty)
    assert recipe.learner.fp32_head == (preset in ("cispo", "scalerl"))
    assert ours.samples_per_prompt == quickstart.algorithm.samples_per_prompt
    assert (recipe == quickstart) == (preset == "dapo")


def test_every_preset_has_a_row_and_an_oracle() -> None:
    presets = {path.stem for path in (ROOT / "recipes/algorithm").glob("*.yaml")}
    assert {row[0] for row in ROWS} == presets == set(ORACLES)
