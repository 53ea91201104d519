"""The learner against a slow, obvious implementation: one sequence at a time, plain autograd, full logits."""

import copy

import numpy as np
import pytest
import torch

from dapo_cli.algorithm.objective import Clip
from dapo_cli.config.schema import LearnerConfig, OptimizerConfig
from dapo_cli.errors import Diverged
from dapo_cli.learner.micro_batches import split_by_budget
from dapo_cli.learner.optim import learning_rate
from dapo_cli.learner.single import Objective, SingleLearner
from tests.conftest import make_group

OPTIMIZER = OptimizerConfig(lr=1e-2, warmup_steps=0, weight_decay=0.1, max_grad_norm=0.5)


def make_learner(model, *, budget=16384, chunk=1024, filter_truncated=False, temperature=1.0, optimizer=OPTIMIZER):
    objective = Objective(Clip(0.2, 0.28), temperature, filter_truncated)
    config = LearnerConfig(micro_batch_tokens=budget, logits_chunk_tokens=chunk)
    return SingleLearner(model, None, objective, optimizer, config)


def sequence_logprobs(model, group, index, temperature=1.0):
    completion = group.rollouts[index].completion.token_ids
    token_ids = torch.tensor([[*group.prompt.token_ids, *completion]])
    logits = model(token_ids).logits[0, len(group.prompt.token_ids) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None]).squeeze(-1)


GROUPS = [
    make_group([3, 9, 1, 20], [True, False, False, False], uid="a", truncated=(3,), seed=1),
    make_group([12, 2, 7, 7], [True, True, False, True], uid="b", seed=2),
]


@pytest.mark.parametrize("budget", [1, 40, 16384])
def test_score_equals_the_model_on_each_sequence_alone(model, budget):
    scored, entropy = make_learner(model, budget=budget, chunk=5, temperature=0.7).score(GROUPS, step=3)
    entropies = []
    for group, result in zip(GROUPS, scored, strict=True):
        assert result.born_step == 3
        for index, values in enumerate(result.old_logprobs):
            with torch.no_grad():
                np.testing.assert_allclose(values, sequence_logprobs(model, group, index, 0.7), atol=1e-5)
                token_ids = torch.tensor([[*group.prompt.token_ids, *group.rollouts[index].completion.token_ids]])
                p = (model(token_ids).logits[0, len(group.prompt.token_ids) - 1 : -1] / 0.7).softmax(-1)
                entropies += (-(p * p.log()).sum(-1)).tolist()
    assert entropy == pytest.approx(np.mean(entropies), rel=1e-5)


def oracle_update(model, scored_groups, filter_truncated):
    """One AdamW step on sum(min(rA, clip(r)A)) / tokens, written out."""
    losses = []
    for scored in scored_groups:
        rewards = np.array(scored.group.rewards)
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for index, rollout in enumerate(scored.group.rollouts):
            if filter_truncated and rollout.completion.truncated:
                continue
            old = torch.from_numpy(scored.old_logprobs[index])
            for t, new in enumerate(sequence_logprobs(model, scored.group, index)):
                ratio, advantage = torch.exp(new - old[t]), advantages[index]
                losses.append(-torch.min(ratio * advantage, torch.clip(ratio, 0.8, 1.28) * advantage))
    optimizer = torch.optim.AdamW(model.parameters(), lr=OPTIMIZER.lr, weight_decay=OPTIMIZER.weight_decay)
    loss = torch.stack(losses).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.max_grad_norm)
    optimizer.step()
    return loss.item(), norm.item(), len(losses)


@pytest.mark.parametrize("filter_truncated", [False, True])
@pytest.mark.parametrize("budget", [1, 40, 16384])
def test_update_equals_the_oracle_whatever_the_micro_batches(model, budget, filter_truncated):
    reference = copy.deepcopy(model)
    learner = make_learner(model, budget=budget, chunk=5, filter_truncated=filter_truncated)
    scored, _ = learner.score(GROUPS, step=1)
    # Move pi_old away, so that ratios differ from 1 and both bounds are reached.
    rng = np.random.default_rng(0)
    for group in scored:
        for values in group.old_logprobs:
            values += rng.normal(0, 0.3, len(values)).astype(np.float32)
    loss, norm, tokens = oracle_update(reference, scored, filter_truncated)
    metrics = learner.update(scored, step=1).metrics()
    assert metrics["policy/loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["policy/loss_tokens"] == tokens
    assert metrics["policy/clip_high"] > 0 and metrics["policy/clip_low"] > 0
    for expected, weight in zip(reference.parameters(), model.parameters(), strict=True):
        # Adam's first step is lr * sign(gradient): gradients near 0 turn their rounding into a share of lr (1e-2).
        torch.testing.assert_close(weight, expected, rtol=0, atol=5e-5)


def test_the_first_update_is_on_policy(model):
    learner = make_learner(model)
    scored, _ = learner.score(GROUPS, step=1)
    metrics = learner.update(scored, step=1).metrics()
    assert (metrics["policy/ratio_min"], metrics["policy/ratio_max"]) == pytest.approx((1.0, 1.0), abs=1e-5)
    assert learner.update(scored, step=1).metrics()["policy/approx_kl"] > 1e-5


def test_nothing_to_learn_from_changes_nothing(model):
    learner = make_learner(model, filter_truncated=True)
    group = make_group([4, 4], [True, False], truncated=(0, 1))
    before = copy.deepcopy(model.state_dict())
    scored, _ = learner.score([group], step=1)
    assert learner.update(scored, step=1).updates == 0
    assert learner.score([], step=1) == ([], None)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_saved_and_loaded_learner_continues_bit_for_bit(model, tmp_path):
    other = copy.deepcopy(model)
    learner = make_learner(model)
    learner.update(learner.score(GROUPS, step=1)[0], step=1)
    learner.save(tmp_path)
    resumed = make_learner(other)
    resumed.load(tmp_path)
    for each in (learner, resumed):
        each.update(each.score(GROUPS, step=2)[0], step=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_learning_rate_warms_up_by_step():
    config = OptimizerConfig(lr=1e-6, warmup_steps=20)
    assert [learning_rate(config, step) for step in (1, 10, 20, 500)] == pytest.approx([5e-8, 5e-7, 1e-6, 1e-6])


def test_split_keeps_the_budget_and_every_sequence():
    lengths = [5, 100, 3, 8, 8, 31, 2]
    groups = split_by_budget(lengths, budget=32)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(len(group) == 1 or max(lengths[i] for i in group) * len(group) <= 32 for group in groups)


def test_a_gradient_that_is_not_finite_ends_the_run_before_the_weights_change(model):
    learner = make_learner(model)
    scored, _ = learner.score(GROUPS, step=1)
    before = copy.deepcopy(model.state_dict())
    scored[0].old_logprobs[1][0] = -np.inf
    with pytest.raises(Diverged, match=r"gradient of step 4 is not finite.*optimizer\.lr"):
        learner.update(scored, step=4)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
