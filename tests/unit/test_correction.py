"""Weights that correct for the engine's policy, and the figures of how far it is off: worked numbers, a slow obvious
implementation, and plain autograd."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.algorithm.correction import correction_weights, log_weights, mismatch_metrics
from dapo_cli.algorithm.objective import Clip
from dapo_cli.config.schema import CorrectionConfig, CorrectionKind, CorrectionLevel, LearnerConfig, OptimizerConfig
from dapo_cli.distributed.world import World
from dapo_cli.learner.base import Objective
from dapo_cli.learner.single import SingleLearner
from dapo_cli.types import ScoredGroup
from tests.conftest import DEVICE, eq_9, make_group
from tests.unit.test_single_learner import assert_same_weights, sequence_logprobs

NONE = CorrectionConfig(CorrectionKind.none)
TRUNCATED = CorrectionConfig(CorrectionKind.truncated, cap=1.5)
MASKED = CorrectionConfig(CorrectionKind.masked, mask_low=0.6, mask_high=1.6)
CORRECTIONS = [
    replace(config, level=level)
    for config in (TRUNCATED, MASKED)
    for level in (CorrectionLevel.token, CorrectionLevel.sequence)
]


def logs(*weights: float) -> np.ndarray:
    return np.log(np.array(weights, dtype=np.float32))


@pytest.mark.parametrize(
    ("config", "weights", "expected"),
    [
        (CorrectionConfig(), [0.01, 1, 100], [1, 1, 1]),
        (CorrectionConfig(CorrectionKind.truncated), [0.25, 1, 1.9, 2.1, 100], [0.25, 1, 1.9, 2, 2]),
        (CorrectionConfig(CorrectionKind.truncated, cap=1.0), [0.25, 1.5], [0.25, 1]),
        (CorrectionConfig(CorrectionKind.masked), [0.49, 0.51, 1, 4.9, 5.1], [0, 0.51, 1, 4.9, 0]),
        (CorrectionConfig(CorrectionKind.masked, mask_low=0.9, mask_high=1.1), [0.8, 0.95, 1.2], [0, 0.95, 0]),
        (CorrectionConfig(CorrectionKind.masked, mask_low=1.0, mask_high=1.0), [0.9, 1, 1.1], [0, 1, 0]),  # both belong
        # 0.5 * 1 * 1.5 = 0.75; 2 * 3 = 6; 0.5 * 0.5 = 0.25
        (CorrectionConfig(CorrectionKind.truncated, CorrectionLevel.sequence), [0.5, 1, 1.5], [0.75] * 3),
        (CorrectionConfig(CorrectionKind.truncated, CorrectionLevel.sequence), [2, 3], [2, 2]),
        (CorrectionConfig(CorrectionKind.masked, CorrectionLevel.sequence), [0.5, 1, 1.5], [0.75] * 3),
        (CorrectionConfig(CorrectionKind.masked, CorrectionLevel.sequence), [2, 3], [0, 0]),
        (CorrectionConfig(CorrectionKind.masked, CorrectionLevel.sequence), [0.5, 0.5], [0, 0]),
        # Each token is out of bounds, and the completion is not.
        (CorrectionConfig(CorrectionKind.masked, CorrectionLevel.sequence), [0.1, 10], [1, 1]),
    ],
)
def test_worked_weights(config, weights, expected):
    result = correction_weights(logs(*weights), config)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def slow_weight(d: float, config: CorrectionConfig) -> float:
    weight = math.exp(min(d, 700.0))
    if config.kind is CorrectionKind.none:
        return 1.0
    if config.kind is CorrectionKind.truncated:
        return min(weight, config.cap)
    return weight if config.mask_low <= weight <= config.mask_high else 0.0


def near_a_bound(d: float, config: CorrectionConfig) -> bool:
    """Where rounding decides on which side of a bound a weight lies."""
    return any(abs(d - math.log(bound)) < 1e-4 for bound in (config.mask_low, config.mask_high))


configs = st.builds(
    CorrectionConfig,
    kind=st.sampled_from(CorrectionKind),
    level=st.sampled_from(CorrectionLevel),
    cap=st.floats(1.0, 10.0),
    mask_low=st.floats(0.1, 1.0),
    mask_high=st.floats(1.0, 10.0),
)
differences = st.floats(-100, 100, width=32) | st.floats(-1, 1, width=32)


@given(st.lists(differences, min_size=1, max_size=30), configs)
def test_weights_equal_the_definition_one_token_at_a_time(values, config):
    of_sequence = config.level is CorrectionLevel.sequence
    d = [math.fsum(values)] * len(values) if of_sequence else values
    weights = correction_weights(np.array(values, dtype=np.float32), config)
    assert weights.shape == (len(values),)
    for each, weight in zip(d, weights.tolist(), strict=True):
        assert math.isfinite(weight)
        if config.kind is CorrectionKind.masked and near_a_bound(each, config):
            continue
        assert weight == pytest.approx(slow_weight(each, config), rel=1e-4, abs=1e-8)


def scored_group(engine: list[list[float]], learner: list[list[float]], uid: str = "p") -> ScoredGroup:
    """A group whose completions have these log-probs by the engine and by the learner."""
    group = make_group([len(values) for values in engine], [True] + [False] * (len(engine) - 1), uid=uid)
    rollouts = tuple(
        replace(rollout, completion=replace(rollout.completion, logprobs=tuple(values)))
        for rollout, values in zip(group.rollouts, engine, strict=True)
    )
    old = tuple(np.array(values, dtype=np.float32) for values in learner)
    return ScoredGroup(replace(group, rollouts=rollouts), old, 1)


def test_log_weights_are_the_learner_s_minus_the_engine_s():
    one, two = log_weights(scored_group([[-1.0, -2.0], [-3.0]], [[-1.5, -1.0], [-3.25]]))
    assert (one.tolist(), two.tolist()) == ([-0.5, 1.0], [-0.25])


def test_worked_metrics():
    # d = ln 0.5, 0, ln 3 and 0: weights 0.5, 1, 3 and 1, whose sum is 5.5 and sum of squares 11.25.
    batch = [
        scored_group([[-1.0, -1.0], [-1.0]], [[-1.0 + math.log(0.5), -1.0], [-1.0 + math.log(3)]]),
        scored_group([[-2.0], []], [[-2.0], []], uid="q"),
    ]
    expected = {
        "mismatch/mean_abs": (math.log(2) + math.log(3)) / 4,
        "mismatch/max_abs": math.log(3),
        "mismatch/kl": (5.5 - 4 - math.log(1.5)) / 4,
        "mismatch/ess": 5.5**2 / (4 * 11.25),
    }
    assert mismatch_metrics(batch, NONE) == pytest.approx(expected, rel=1e-5)
    truncated = {"mismatch/weight_mean": (0.5 + 1 + 1.5 + 1) / 4, "mismatch/corrected": 1 / 4}
    assert mismatch_metrics(batch, TRUNCATED) == pytest.approx(expected | truncated, rel=1e-5)
    masked = {"mismatch/weight_mean": (0 + 1 + 0 + 1) / 4, "mismatch/corrected": 2 / 4}
    assert mismatch_metrics(batch, MASKED) == pytest.approx(expected | masked, rel=1e-5)
    # By completions: 0.5 is within [0.3, 2] and stands for two tokens, 3 is not.
    by_sequence = replace(MASKED, level=CorrectionLevel.sequence, mask_low=0.3, mask_high=2.0)
    sequence = {"mismatch/weight_mean": (0.5 + 0.5 + 0 + 1) / 4, "mismatch/corrected": 1 / 4}
    assert mismatch_metrics(batch, by_sequence) == pytest.approx(expected | sequence, rel=1e-5)


def test_without_a_token_there_is_nothing_to_take_a_mean_over():
    assert mismatch_metrics([], TRUNCATED) == dict.fromkeys(
        [f"mismatch/{name}" for name in ("mean_abs", "max_abs", "kl", "ess")]
    )


lists_of_d = st.lists(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=8), min_size=2, max_size=6)


@given(lists_of_d, configs)
def test_metrics_equal_the_definition_one_token_at_a_time(values, config):
    batch = [scored_group([[0.0] * len(each) for each in values], values)]
    metrics = mismatch_metrics(batch, config)
    d = [each for completion in values for each in completion]
    w = [math.exp(each) for each in d]
    assert metrics["mismatch/mean_abs"] == pytest.approx(math.fsum(map(abs, d)) / len(d), abs=1e-9)
    assert metrics["mismatch/max_abs"] == pytest.approx(max(map(abs, d)))
    assert metrics["mismatch/kl"] == pytest.approx(math.fsum(math.exp(x) - 1 - x for x in d) / len(d), abs=1e-9)
    assert metrics["mismatch/ess"] == pytest.approx(math.fsum(w) ** 2 / len(w) / math.fsum(x * x for x in w))
    assert 0 < metrics["mismatch/ess"] <= 1 + 1e-9
    if config.kind is CorrectionKind.none:
        assert len(metrics) == 4
        return
    used = np.concatenate([correction_weights(np.array(each, dtype=np.float32), config) for each in values])
    assert metrics["mismatch/weight_mean"] == pytest.approx(used.mean(), rel=1e-5)
    reached = used == 0 if config.kind is CorrectionKind.masked else used >= np.float32(config.cap)
    assert metrics["mismatch/corrected"] == pytest.approx(reached.mean())


OPTIMIZER = OptimizerConfig(lr=1e-2, warmup_steps=0, weight_decay=0.1, max_grad_norm=0.5)


def make_learner(model, correction: CorrectionConfig | None, budget: int = 40) -> SingleLearner:
    more = {} if correction is None else {"correction": correction}
    objective = Objective(Clip(0.2, 0.28), 1.0, filter_truncated=True, **more)
    config = LearnerConfig(micro_batch_tokens=budget, logits_chunk_tokens=5)
    return SingleLearner(World(device=DEVICE), model, objective, OPTIMIZER, config)


@pytest.fixture
def scored(model) -> list[ScoredGroup]:
    """Groups whose three policies differ: the engine's, pi_old and the model's."""
    groups = [
        make_group([3, 9, 1, 20], [True, False, False, False], uid="a", truncated=(3,), seed=1),
        make_group([12, 2, 7, 7], [True, True, False, True], uid="b", seed=2),
    ]
    scored, _ = make_learner(model, None).score(groups, step=1)
    rng = np.random.default_rng(0)
    result = []
    for each in scored:
        rollouts = []
        for values, rollout in zip(each.old_logprobs, each.group.rollouts, strict=True):
            engine = values + rng.normal(0, 0.4, len(values)).astype(np.float32)
            values += rng.normal(0, 0.2, len(values)).astype(np.float32)
            rollouts.append(replace(rollout, completion=replace(rollout.completion, logprobs=tuple(engine.tolist()))))
        result.append(replace(each, group=replace(each.group, rollouts=tuple(rollouts))))
    return result


def oracle_update(model, scored_groups: list[ScoredGroup], config: CorrectionConfig) -> tuple[float, float, int]:
    """One AdamW step on sum(w * -min(rA, clip(r)A)) / tokens, written out token by token. Also how many weights
    are neither 1 nor the exponential, so that a bound is known to be reached."""
    losses, bounded = [], 0
    for scored in scored_groups:
        rewards = np.array(scored.group.rewards)
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for index, rollout in enumerate(scored.group.rollouts):
            if rollout.completion.truncated:
                continue
            old = scored.old_logprobs[index].tolist()
            d = [ours - theirs for ours, theirs in zip(old, rollout.completion.logprobs, strict=True)]
            if config.level is CorrectionLevel.sequence:
                d = [sum(d)] * len(d)
            for t, new in enumerate(sequence_logprobs(model, scored.group, index)):
                ratio, advantage, weight = torch.exp(new - old[t]), advantages[index], slow_weight(d[t], config)
                bounded += weight != math.exp(d[t])
                losses.append(weight * -torch.min(ratio * advantage, torch.clip(ratio, 0.8, 1.28) * advantage))
    optimizer = torch.optim.AdamW(model.parameters(), lr=OPTIMIZER.lr, weight_decay=OPTIMIZER.weight_decay)
    loss = torch.stack(losses).sum() / len(losses)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.max_grad_norm)
    optimizer.step()
    return loss.item(), norm.item(), bounded


@pytest.mark.parametrize("budget", [1, 16384])
@pytest.mark.parametrize("config", CORRECTIONS, ids=lambda config: f"{config.kind.value}-{config.level.value}")
def test_an_update_multiplies_each_token_s_loss_by_its_weight(model, scored, config, budget):
    reference = copy.deepcopy(model)
    loss, norm, bounded = oracle_update(reference, scored, config)
    assert bounded > 0
    metrics = make_learner(model, config, budget).update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
    assert metrics["policy/loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)
    for expected, weight in zip(reference.parameters(), model.parameters(), strict=True):
        # Adam's first step is lr * sign(gradient): gradients near 0 turn their rounding into a share of lr (1e-2).
        torch.testing.assert_close(weight, expected, rtol=0, atol=2e-4)


def test_no_correction_does_not_read_the_engine_s_log_probs(model, scored):
    """To the bit: what the engine says has no part in the update."""
    other = copy.deepcopy(model)
    agreeing = [
        replace(
            each,
            group=replace(
                each.group,
                rollouts=tuple(
                    replace(rollout, completion=replace(rollout.completion, logprobs=tuple(old.tolist())))
                    for rollout, old in zip(each.group.rollouts, each.old_logprobs, strict=True)
                ),
            ),
        )
        for each in scored
    ]
    one = make_learner(model, NONE).update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
    assert make_learner(other, None).update(agreeing, eq_9(agreeing), OPTIMIZER.lr).metrics() == one
    assert_same_weights(model, other)


def test_where_engine_and_learner_agree_truncating_changes_nothing(model, scored):
    for each in scored:
        for rollout, old in zip(each.group.rollouts, each.old_logprobs, strict=True):
            old[:] = rollout.completion.logprobs
    other = copy.deepcopy(model)
    one = make_learner(model, NONE).update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
    assert make_learner(other, TRUNCATED).update(scored, eq_9(scored), OPTIMIZER.lr).metrics() == one
    assert_same_weights(model, other)
