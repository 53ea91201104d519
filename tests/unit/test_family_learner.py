"""The members of the family through the real learner on the shipped model, and the reference model of a KL term."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.algorithm.objective import Clip
from dapo_cli.build import objective_of
from dapo_cli.config.load import load_recipe
from dapo_cli.config.schema import (
    Aggregation,
    CorrectionConfig,
    CorrectionKind,
    LearnerConfig,
    OptimizerConfig,
    RatioLevel,
)
from dapo_cli.config.shipped import model_folder
from dapo_cli.distributed.world import World
from dapo_cli.learner.base import Objective
from dapo_cli.learner.lora import add_adapters
from dapo_cli.learner.single import SingleLearner
from dapo_cli.types import ScoredGroup, scored_group_from_dict, scored_group_to_dict
from tests.conftest import DEVICE, eq_9, make_group, train_on
from tests.unit.family import ORACLES, Response
from tests.unit.test_single_learner import assert_same_weights, sequence_logprobs

OPTIMIZER = OptimizerConfig(lr=1e-3, warmup_steps=0)
GROUPS = [
    make_group([3, 9, 1, 20], [True, False, False, False], uid="a", seed=1),
    make_group([12, 2, 7, 7], [True, True, False, True], uid="b", seed=2),
    make_group([5, 8], [True, False], uid="c", truncated=(1,), seed=3),
]
GRPO = Objective(Clip(0.2, 0.2), 1.0, False, aggregation=Aggregation.sequence_mean, kl_coefficient=0.04)


def shipped_model():
    folder = model_folder("shipped:tiny-arithmetic")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(DEVICE)


def make_learner(model, objective: Objective, *, budget: int = 16384, **keys) -> SingleLearner:
    config = LearnerConfig(micro_batch_tokens=budget, logits_chunk_tokens=5, **keys)
    return SingleLearner(World(device=DEVICE), model, objective, OPTIMIZER, config)


def moved_away(scored: list[ScoredGroup]) -> list[ScoredGroup]:
    """pi_old and the reference with noise, so that bounds are reached and the KL term counts."""
    rng = np.random.default_rng(0)

    def noisy(arrays):
        return arrays and tuple(values + rng.normal(0, 0.4, len(values)).astype(np.float32) for values in arrays)

    return [replace(s, old_logprobs=noisy(s.old_logprobs), ref_logprobs=noisy(s.ref_logprobs)) for s in scored]


def responses_of(model, scored: list[ScoredGroup]) -> list[Response]:
    """Each completion by itself, through the plain model."""
    responses = []
    for place, each in enumerate(scored):
        advantages = group_advantages(each.group.rewards)
        for index, old in enumerate(each.old_logprobs):
            ref = old if each.ref_logprobs is None else each.ref_logprobs[index]
            old_T, ref_T = (torch.from_numpy(values).double().to(DEVICE) for values in (old, ref))
            new_T = sequence_logprobs(model, each.group, index).double()
            responses.append(Response(place, new_T, old_T, ref_T, torch.full_like(old_T, advantages[index])))
    return responses


@pytest.mark.parametrize("preset", ORACLES)
def test_an_update_is_the_oracles_whatever_the_micro_batches(preset: str) -> None:
    objective = objective_of(load_recipe("quickstart", [f"algorithm={preset}"]).recipe)
    model = shipped_model()
    scored = moved_away(make_learner(copy.deepcopy(model), objective).score(GROUPS, step=1)[0])
    expected = ORACLES[preset](responses_of(model, scored))
    expected.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()
    for budget in (1, 40, 16384):
        metrics = (
            make_learner(shipped_model(), objective, budget=budget).update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
        )
        assert metrics["policy/loss"] == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
        assert metrics["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)
        assert ("policy/kl_reference" in metrics) == (preset in ("grpo", "aspo"))


@pytest.mark.parametrize("aggregation", Aggregation)
def test_filtered_completions_count_in_no_aggregation(model, aggregation: Aggregation) -> None:
    """A group whose other completion was filtered aggregates as one that never had it."""
    objective = Objective(Clip(0.2, 0.28), 1.0, True, aggregation=aggregation, max_tokens=20)
    learner = make_learner(model, objective)
    (scored,) = learner.score(GROUPS[2:], step=1)[0]
    loss = learner.update([scored], eq_9([scored]), OPTIMIZER.lr).loss
    advantage = group_advantages(scored.group.rewards)[0]
    assert loss == pytest.approx(-advantage * (5 / 20 if aggregation is Aggregation.constant else 1), rel=1e-5)


def test_the_reference_stays_the_starting_model() -> None:
    model, start = shipped_model(), shipped_model()
    learner = make_learner(model, GRPO)
    scored, _ = learner.score(GROUPS, step=1)
    for each in scored:
        for old, ref in zip(each.old_logprobs, each.ref_logprobs, strict=True):
            assert np.array_equal(old, ref)
    first = learner.update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
    assert first["policy/kl_reference"] == pytest.approx(0.0, abs=1e-9)
    again, _ = learner.score(GROUPS, step=2)
    assert learner.update(again, eq_9(again), OPTIMIZER.lr).metrics()["policy/kl_reference"] > 1e-6
    for group, before, after in zip(GROUPS, scored, again, strict=True):
        for index, (old, ref) in enumerate(zip(before.old_logprobs, after.ref_logprobs, strict=True)):
            assert np.array_equal(old, ref) or DEVICE.type == "cuda"
            with torch.no_grad():
                np.testing.assert_allclose(ref, sequence_logprobs(start, group, index).cpu(), atol=1e-5)
    assert not any(np.array_equal(after.old_logprobs[0], after.ref_logprobs[0]) for after in again)


def test_a_resume_keeps_the_starting_model_as_its_reference(tmp_path) -> None:
    model, other = shipped_model(), shipped_model()
    learner = make_learner(model, GRPO)
    train_on(learner, GROUPS, step=1)
    learner.save(tmp_path)
    resumed = make_learner(other, GRPO)
    resumed.load(tmp_path)
    scores = [each.score(GROUPS, step=2)[0] for each in (learner, resumed)]
    for ours, theirs in zip(*scores, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours.ref_logprobs, theirs.ref_logprobs, strict=True))
    for each, scored in zip((learner, resumed), scores, strict=True):
        each.update(scored, eq_9(scored), OPTIMIZER.lr)
    assert_same_weights(model, other)


def test_without_a_kl_term_there_is_no_reference(model) -> None:
    learner = make_learner(model, replace(GRPO, kl_coefficient=0.0))
    assert learner.reference is None
    assert learner.score(GROUPS, step=1)[0][0].ref_logprobs is None


def test_adapters_leave_the_reference_in_the_model(model) -> None:
    pytest.importorskip("peft", reason="the lora extra is not installed")
    start = copy.deepcopy(model)
    add_adapters(model, LearnerConfig(lora_rank=4))
    learner = make_learner(model, GRPO, lora_rank=4)
    assert learner.reference is None
    for step in (1, 2):
        scored, _ = learner.score(GROUPS, step)
        for index, ref in enumerate(scored[0].ref_logprobs):
            with torch.no_grad():
                np.testing.assert_allclose(ref, sequence_logprobs(start, GROUPS[0], index).cpu(), atol=1e-5)
        moved = np.abs(scored[0].old_logprobs[3] - scored[0].ref_logprobs[3]).max()
        assert (moved > 1e-4) == (step == 2)
        learner.update(scored, eq_9(scored), OPTIMIZER.lr)


def test_a_correction_does_not_weigh_the_kl_term(model) -> None:
    """Every token masked for the engine's sake: the surrogate is 0, and the loss is the KL term alone."""
    correction = CorrectionConfig(CorrectionKind.masked, mask_low=0.999, mask_high=1.001)
    learner = make_learner(model, replace(GRPO, aggregation=Aggregation.token_mean, correction=correction))
    scored = moved_away(learner.score(GROUPS, step=1)[0])
    metrics = learner.update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
    assert metrics["policy/kl_reference"] > 0.01
    assert metrics["policy/loss"] == pytest.approx(0.04 * metrics["policy/kl_reference"], rel=1e-4)


def test_a_ratio_of_sequences_is_one_number_for_a_completion(model) -> None:
    """One completion in the loss: its ratio is the exp of the mean shift of its log-probs."""
    learner = make_learner(model, Objective(Clip(0.2, 0.2), 1.0, True, ratio=RatioLevel.sequence))
    (scored,) = learner.score(GROUPS[2:], step=1)[0]
    shifts = np.float32([0.3, -0.5, 0.1, 0.0, 0.2])
    scored = replace(scored, old_logprobs=(scored.old_logprobs[0] - shifts, scored.old_logprobs[1]))
    stats = learner.update([scored], eq_9([scored]), OPTIMIZER.lr)
    assert (stats.ratio_min, stats.ratio_max) == pytest.approx([np.exp(0.02)] * 2, rel=1e-5)


def test_reference_log_probs_survive_a_checkpoint_exactly(model) -> None:
    for objective in (GRPO, replace(GRPO, kl_coefficient=0.0)):
        scored = make_learner(model, objective).score(GROUPS, step=1)[0][1]
        back = scored_group_from_dict(scored_group_to_dict(scored))
        assert (back.ref_logprobs is None) == (scored.ref_logprobs is None)
        for before, after in zip(scored.ref_logprobs or (), back.ref_logprobs or (), strict=True):
            assert before.dtype == after.dtype and before.tobytes() == after.tobytes()
