"""The learner against a slow, obvious implementation: one sequence at a time, plain autograd, full logits."""

import copy

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dapo_cli.algorithm.logprobs import fused_loss
from dapo_cli.algorithm.objective import Clip, token_mean_loss
from dapo_cli.config.schema import LearnerConfig, OptimizerConfig, Precision
from dapo_cli.distributed.world import World
from dapo_cli.errors import Diverged, UserError
from dapo_cli.learner.base import Objective
from dapo_cli.learner.flops import ModelFlops
from dapo_cli.learner.lora import add_adapters
from dapo_cli.learner.micro_batches import split_by_budget
from dapo_cli.learner.optim import LossScale, learning_rate
from dapo_cli.learner.policy import decoder_layers
from dapo_cli.learner.single import SingleLearner
from dapo_cli.learner.state import trainable
from tests.conftest import DEVICE, eq_9, make_group, train_on

OPTIMIZER = OptimizerConfig(lr=1e-2, warmup_steps=0, weight_decay=0.1, max_grad_norm=0.5)


def make_learner(
    model, *, budget=16384, chunk=1024, filter_truncated=False, temperature=1.0, optimizer=OPTIMIZER, **keys
):
    objective = Objective(Clip(0.2, 0.28), temperature, filter_truncated)
    config = LearnerConfig(micro_batch_tokens=budget, logits_chunk_tokens=chunk, **keys)
    return SingleLearner(World(device=DEVICE), model, objective, optimizer, config)


def sequence_logprobs(model, group, index, temperature=1.0):
    completion = group.rollouts[index].completion.token_ids
    token_ids = torch.tensor([[*group.prompt.token_ids, *completion]], device=model.device)
    logits = model(token_ids).logits[0, len(group.prompt.token_ids) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion, device=model.device)[:, None]).squeeze(-1)


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
                np.testing.assert_allclose(values, sequence_logprobs(model, group, index, 0.7).cpu(), atol=1e-5)
                token_ids = torch.tensor([[*group.prompt.token_ids, *group.rollouts[index].completion.token_ids]])
                p = (model(token_ids.to(DEVICE)).logits[0, len(group.prompt.token_ids) - 1 : -1] / 0.7).softmax(-1)
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
            old = torch.from_numpy(scored.old_logprobs[index]).to(DEVICE)
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
    metrics = learner.update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
    assert metrics["policy/loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["policy/loss_tokens"] == tokens
    assert metrics["policy/clip_high"] > 0 and metrics["policy/clip_low"] > 0
    for expected, weight in zip(reference.parameters(), model.parameters(), strict=True):
        # Adam's first step is lr * sign(gradient): gradients near 0 turn their rounding into a share of lr (1e-2).
        torch.testing.assert_close(weight, expected, rtol=0, atol=5e-5)


def assert_same_weights(one, other):
    """To the bit on a CPU; on a GPU, gradients of repeated indices are added up in any order."""
    tolerance = {"rtol": 0, "atol": 0} if DEVICE.type == "cpu" else {"rtol": 0, "atol": 1e-4}
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_the_first_update_is_on_policy(model):
    learner = make_learner(model)
    scored, _ = learner.score(GROUPS, step=1)
    metrics = learner.update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
    assert (metrics["policy/ratio_min"], metrics["policy/ratio_max"]) == pytest.approx((1.0, 1.0), abs=1e-5)
    assert learner.update(scored, eq_9(scored), OPTIMIZER.lr).metrics()["policy/approx_kl"] > 1e-5


def test_nothing_to_learn_from_changes_nothing(model):
    learner = make_learner(model, filter_truncated=True)
    group = make_group([4, 4], [True, False], truncated=(0, 1))
    before = copy.deepcopy(model.state_dict())
    scored, _ = learner.score([group], step=1)
    assert learner.update(scored, eq_9(scored), OPTIMIZER.lr).updates == 0
    assert learner.score([], step=1) == ([], None)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_saved_and_loaded_learner_continues_bit_for_bit(model, tmp_path):
    other = copy.deepcopy(model)
    learner = make_learner(model)
    train_on(learner, GROUPS, 1)
    learner.save(tmp_path)
    resumed = make_learner(other)
    resumed.load(tmp_path)
    for each in (learner, resumed):
        train_on(each, GROUPS, 2)
    assert_same_weights(model, other)


def test_learning_rate_warms_up_by_step():
    config = OptimizerConfig(lr=1e-6, warmup_steps=20)
    assert [learning_rate(config, step) for step in (1, 10, 20, 500)] == pytest.approx([5e-8, 5e-7, 1e-6, 1e-6])


def test_split_keeps_the_budget_and_every_sequence():
    lengths = [5, 100, 3, 8, 8, 31, 2]
    groups = split_by_budget(lengths, budget=32)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(len(group) == 1 or sum(lengths[i] for i in group) <= 32 for group in groups)
    assert len(groups) == 3  # 100; 31; 8 + 8 + 5 + 3 + 2 = 26


def test_a_gradient_that_is_not_finite_ends_the_run_before_the_weights_change(model):
    learner = make_learner(model)
    scored, _ = learner.score(GROUPS, step=1)
    before = copy.deepcopy(model.state_dict())
    scored[0].old_logprobs[1][0] = -np.inf
    with pytest.raises(Diverged, match=r"gradient is not finite.*optimizer\.lr"):
        learner.update(scored, eq_9(scored), OPTIMIZER.lr)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_update_that_overflows_float16_is_left_out_and_counted(model):
    learner = make_learner(model, compute_dtype=Precision.float16)
    learner.loss_scale.value = 2.0**40
    scored, _ = learner.score(GROUPS, step=1)
    before = copy.deepcopy(model.state_dict())
    metrics = learner.update(scored, eq_9(scored), OPTIMIZER.lr).metrics()
    assert (metrics["policy/updates"], metrics["policy/skipped_updates"]) == (0, 1)
    assert learner.loss_scale.value == 2.0**39
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    learner.loss_scale.value = 2.0**8
    assert learner.update(scored, eq_9(scored), OPTIMIZER.lr).metrics()["policy/updates"] == 1


def test_the_loss_scale_grows_after_its_patience():
    scale = LossScale(value=8.0, patience=2)
    values = []
    for finite in (True, True, True, False, True, True):
        scale.after_update(finite=finite)
        values.append(scale.value)
    assert values == [8, 16, 16, 8, 8, 16]


def test_checkpointed_layers_change_no_figure(model):
    other = copy.deepcopy(model)
    plain, checkpointed = make_learner(model), make_learner(other, activation_checkpointing=True)
    results = [train_on(learner, GROUPS, 1) for learner in (plain, checkpointed)]
    assert vars(results[0]) == pytest.approx(vars(results[1]), rel=0 if DEVICE.type == "cpu" else 1e-4)
    assert_same_weights(model, other)


def test_model_flops_are_those_that_torch_counts(model):
    flops = ModelFlops.of(model, decoder_layers(model))
    length = 23
    model.set_attn_implementation("eager")  # its products are counted
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(length, device=DEVICE)[None] % 32)
    counts = {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}
    attention = counts["aten.bmm"]
    assert attention == flops.pair * length**2  # eager attention computes future pairs, too
    assert sum(counts.values()) - attention == (flops.token + flops.head) * length


def test_learner_counts_model_flops_of_completions_and_their_shared_prompts(model):
    learner = make_learner(model)
    scored, _ = learner.score(GROUPS, step=1)
    learner.update(scored, eq_9(scored), OPTIMIZER.lr)
    lengths = [len(rollout.completion.token_ids) for group in GROUPS for rollout in group.rollouts]
    rows = [5 + length for length in lengths]
    packed = sum(lengths) + 5 * len(GROUPS)
    forward = learner.flops.token * packed + learner.flops.head * sum(lengths)
    forward += learner.flops.pair * sum(row * (row + 1) // 2 for row in rows)
    assert learner.take_model_flops() == {"score": forward, "update": 3 * forward}
    assert learner.take_model_flops() == {}


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there is a GPU")
def test_liger_kernels_are_refused_without_a_gpu(model):
    with pytest.raises(UserError, match=r"learner\.liger_kernels = true: they run on a GPU"):
        make_learner(model, liger_kernels=True)


def test_small_gradients_of_a_large_batch_survive_float16():
    """At the paper's 2.5M loss tokens of an update, a token's share is below float16's smallest number."""
    gradients = []
    for precision in (Precision.float32, Precision.float16):
        hidden, weight = torch.randn(6, 8, generator=torch.manual_seed(0)), torch.randn(9, 8)
        dtype = {Precision.float32: torch.float32, Precision.float16: torch.float16}[precision]
        hidden = hidden.to(dtype).requires_grad_()
        scale = LossScale.of_float16().value

        def share(logprobs, chunk, scale=scale):
            return token_mean_loss(-logprobs, 2_500_000) * scale

        loss, _ = fused_loss(hidden, weight.to(dtype), torch.arange(6), 1.0, 4, share)
        loss.backward()
        gradients.append(hidden.grad.float() / scale)
    assert (gradients[0] - gradients[1]).norm() < 0.01 * gradients[0].norm()


def test_the_loss_scale_and_its_clean_updates_survive_a_checkpoint(model, tmp_path):
    learner = make_learner(copy.deepcopy(model), compute_dtype=Precision.float16)
    learner.loss_scale.value, learner.loss_scale.clean_updates = 512.0, 3
    learner.save(tmp_path)
    resumed = make_learner(copy.deepcopy(model), compute_dtype=Precision.float16)
    resumed.load(tmp_path)
    assert (resumed.loss_scale.value, resumed.loss_scale.clean_updates) == (512.0, 3)
    exact = make_learner(model)
    exact.load(tmp_path)
    assert exact.loss_scale.value == 1.0  # a learner that needs none takes none
    (tmp_path / "exact").mkdir()
    exact.save(tmp_path / "exact")
    resumed.load(tmp_path / "exact")
    assert resumed.loss_scale.value == 512.0


def test_a_model_that_overflows_at_any_scale_has_diverged(model):
    learner = make_learner(model, compute_dtype=Precision.float16)
    scored, _ = learner.score(GROUPS, step=1)
    scored[0].old_logprobs[1][0] = -np.inf
    learner.loss_scale.value = 2.0
    assert learner.update(scored, eq_9(scored), OPTIMIZER.lr).skipped == 1
    with pytest.raises(Diverged):
        learner.update(scored, eq_9(scored), OPTIMIZER.lr)


def test_adapters_merge_as_peft_merges_them(model):
    add_adapters(model, LearnerConfig(lora_rank=4, lora_alpha=12))
    learner = make_learner(model, lora_rank=4, lora_alpha=12)
    assert {name.split(".lora_")[0].split(".")[-1] for name, _ in trainable(model)} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
    }  # fmt: skip
    train_on(learner, GROUPS, 1)
    merged = dict(learner.named_weights())
    layer = model.model.layers[1].mlp.down_proj
    before = layer.base_layer.weight.detach().clone()
    layer.merge()
    torch.testing.assert_close(merged["model.layers.1.mlp.down_proj.weight"], layer.base_layer.weight.detach())
    assert not torch.equal(before, layer.base_layer.weight)
    assert layer.scaling["default"] == 3.0
    assert not any("lora" in name or "base_layer" in name for name in merged)
