"""Run by two ranks (`test_learners.py` launches it): every learner beside the single-process one, on the same groups.

Prints nothing; rank 0 hands its findings, a dictionary by case, to whoever launched it.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from dapo_cli.algorithm.objective import Clip
from dapo_cli.config import schema
from dapo_cli.distributed.launch import leave, report_result, reporting_failure
from dapo_cli.distributed.world import World, join_world
from dapo_cli.errors import Diverged, UserError
from dapo_cli.learner.base import BaseLearner, Objective
from dapo_cli.learner.kinds import make_learner, reads_weights
from dapo_cli.learner.optim import learning_rate
from dapo_cli.learner.state import MOMENTS, read_tensors
from dapo_cli.pretrained import without_weights
from tests.conftest import eq_9, make_group, train_on

OPTIMIZER = schema.OptimizerConfig(lr=1e-3, warmup_steps=2, max_grad_norm=0.5)
STEPS = 3
UNEVEN = [  # 1 to 40 tokens a completion; the second group has truncated ones, which leave the loss
    make_group([3, 9, 1, 40], [True, False, False, False], uid="a", seed=1),
    make_group([12, 2, 7, 7], [True, True, False, True], uid="b", truncated=(2, 3), seed=2),
]
ONE_SEQUENCE = [make_group([5, 8], [True, False], uid="c", truncated=(1,), seed=3)]
NO_SEQUENCE = [make_group([5, 8], [True, False], uid="d", truncated=(0, 1), seed=4)]
MINI_BATCHES = [UNEVEN, ONE_SEQUENCE, NO_SEQUENCE]

DAPO = Objective(Clip(0.2, 0.28), 0.9, filter_truncated=True)
GRPO = replace(DAPO, aggregation=schema.Aggregation.sequence_mean, kl_coefficient=0.5)
GSPO = replace(
    DAPO, clip=Clip(0.01, 0.01), ratio=schema.RatioLevel.sequence, aggregation=schema.Aggregation.prompt_mean
)
KINDS = ("weights", *MOMENTS)
FSDP, ZERO = schema.FsdpLearner, schema.DeepspeedLearner
CASES = {
    "fsdp": (FSDP(), True),
    "fsdp small micro-batches": (FSDP(micro_batch_tokens=50, logits_chunk_tokens=5), True),
    "fsdp each sequence alone": (FSDP(micro_batch_tokens=1), True),
    "fsdp untied": (FSDP(), False),
    "fsdp checkpointing": (FSDP(activation_checkpointing=True), True),
    "fsdp offload": (FSDP(cpu_offload=True), True),
    "fsdp adapters": (FSDP(lora_rank=4), False),
    "zero 1": (ZERO(zero_stage=1), True),
    "zero 2": (ZERO(zero_stage=2), True),
    "zero 2 small micro-batches": (ZERO(zero_stage=2, micro_batch_tokens=50), True),
    "zero 2 offload": (ZERO(zero_stage=2, offload_optimizer=True), True),
    "zero 2 adapters": (ZERO(zero_stage=2, lora_rank=4), True),
    "zero 3": (ZERO(zero_stage=3), True),
    "zero 3 each sequence alone": (ZERO(zero_stage=3, micro_batch_tokens=1), True),
    "zero 3 untied": (ZERO(zero_stage=3), False),
    "zero 3 checkpointing": (ZERO(zero_stage=3, activation_checkpointing=True), True),
    "zero 3 offload": (ZERO(zero_stage=3, offload_optimizer=True, offload_parameters=True), False),
    "zero 3 adapters": (ZERO(zero_stage=3, lora_rank=4), True),
}
FAMILY = {
    "fsdp with a reference": (FSDP(), GRPO),
    "fsdp offload with a reference": (FSDP(cpu_offload=True, micro_batch_tokens=1), GRPO),
    "zero 2 with a reference": (ZERO(zero_stage=2), GRPO),
    "zero 3 with a reference": (ZERO(zero_stage=3), GRPO),
    "zero 3 adapters with a reference": (ZERO(zero_stage=3, lora_rank=4), GRPO),
    "fsdp ratio of sequences": (FSDP(micro_batch_tokens=50), GSPO),
    "zero 3 ratio of sequences": (ZERO(zero_stage=3, micro_batch_tokens=1), GSPO),
}
LOWER = {  # not equal, but near: bfloat16 has 8 bits
    "single": schema.SingleLearner(compute_dtype=schema.Precision.bfloat16),
    "fsdp": FSDP(compute_dtype=schema.Precision.bfloat16),
    "fsdp fp32 head": FSDP(compute_dtype=schema.Precision.bfloat16, fp32_head=True),
    "fsdp float16": FSDP(compute_dtype=schema.Precision.float16),
    "zero 1": ZERO(zero_stage=1, compute_dtype=schema.Precision.bfloat16),
    "zero 2": ZERO(zero_stage=2, compute_dtype=schema.Precision.bfloat16),
    "zero 3": ZERO(zero_stage=3, compute_dtype=schema.Precision.bfloat16, fp32_head=True),
}


def build(
    config: schema.LearnerConfig, world: World, tied: bool, seed: int = 0, objective: Objective = DAPO
) -> BaseLearner:
    model_config = LlamaConfig(
        vocab_size=33,  # odd sizes, which two ranks cannot halve
        hidden_size=36,
        intermediate_size=51,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    if reads_weights(config, world):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(model_config)
    else:
        model = without_weights(model_config)
    return make_learner(config, OPTIMIZER, objective, model, world)


def step(learner: BaseLearner, number: int) -> list[dict]:
    """pi_old of all mini-batches, then their updates: the figures of each."""
    scored = [learner.score(groups, number)[0] for groups in MINI_BATCHES]
    return [learner.update(groups, eq_9(groups), learning_rate(OPTIMIZER, number)).metrics() for groups in scored]


def figures(learner: BaseLearner, steps: range) -> dict:
    metrics = [step(learner, number) for number in steps]
    scored, entropy = learner.score(UNEVEN, steps.stop)
    logprobs = [values.tolist() for group in scored for values in group.old_logprobs]
    weights = {name: weight.float().flatten().tolist() for name, weight in learner.named_weights()}
    return {"metrics": metrics, "entropy": entropy, "logprobs": logprobs, "weights": weights}


def beside_single(world: World) -> dict:
    found = {}
    alone = World()
    for name, (config, tied) in CASES.items():
        expected = None
        if world.is_main:
            oracle = schema.SingleLearner(lora_rank=config.lora_rank)
            expected = figures(build(oracle, alone, tied), range(1, STEPS + 1))
        found[name] = [figures(build(config, world, tied), range(1, STEPS + 1)), expected]
    return found


def family(world: World) -> dict:
    found = {}
    for name, (config, objective) in FAMILY.items():
        expected = None
        if world.is_main:
            oracle = schema.SingleLearner(lora_rank=config.lora_rank)
            expected = figures(build(oracle, World(), True, objective=objective), range(1, 3))
        found[name] = [figures(build(config, world, True, objective=objective), range(1, 3)), expected]
    return found | {"references": references(world)}


def references(world: World) -> dict:
    """Before the first update, the largest difference between reference and pi_old, and the numbers of the reference
    that each rank holds."""
    found = {}
    for name in ("fsdp", "zero 1", "zero 3"):
        learner = build(LOWER[name], world, True, objective=GRPO)
        scored, _ = learner.score(UNEVEN, 1)
        pairs = [pair for group in scored for pair in zip(group.old_logprobs, group.ref_logprobs, strict=True)]
        parts = [
            part.to_local() if isinstance(part, DTensor) else getattr(part, "ds_tensor", part)
            for part in learner.reference.parameters()
        ]
        held = world.gather(sum(part.numel() for part in parts))
        found[name] = [max(float(abs(old - ref).max()) for old, ref in pairs), held]
    found["whole"] = sum(weight.numel() for _, weight in build(schema.SingleLearner(), World(), True).named_weights())
    return found


def in_lower_precision(world: World) -> dict:
    exact = build(schema.SingleLearner(), World(), True) if world.is_main else None
    expected = figures(exact, range(1, 2)) if exact else None
    found = {}
    start = {
        name: weight.flatten().tolist() for name, weight in build(schema.SingleLearner(), World(), True).named_weights()
    }
    for name, config in LOWER.items():
        single = isinstance(config, schema.SingleLearner)
        if single and not world.is_main:
            continue
        learner = build(config, World() if single else world, True)
        if config.compute_dtype is schema.Precision.float16:
            learner.loss_scale.value = 256.0  # at its first value, gradients of this model overflow
        found[name] = [figures(learner, range(1, 2)) | {"start": start}, expected]
    return found


def from_one_to_another(world: World) -> dict:
    """Two steps, save, load into a learner of another kind with other weights, one more step."""
    expected = figures(build(schema.SingleLearner(), World(), True), range(1, STEPS + 1)) if world.is_main else None
    kinds = {"single": schema.SingleLearner(), "fsdp": FSDP()} | {f"zero {n}": ZERO(zero_stage=n) for n in (1, 2, 3)}
    folder = Path(world.on_main(tempfile.mkdtemp))
    found = {}
    for name, config in kinds.items():
        own = World() if name == "single" else world
        if name == "single" and not world.is_main:
            world.barrier()
            continue
        learner = build(config, own, True)
        for number in range(1, STEPS):
            step(learner, number)
        (folder / name).mkdir(exist_ok=True)
        learner.save(folder / name)
        if name == "single":
            world.barrier()
    for source in kinds:
        for name, config in kinds.items():
            if "single" not in (source, name) and source != name:
                continue
            if name == "single" and not world.is_main:
                continue
            learner = build(config, World() if name == "single" else world, True, seed=1)
            learner.load(folder / source)
            found[f"{source} to {name}"] = [figures(learner, range(STEPS, STEPS + 1)), expected]
    return found


def read_checkpoint(folder: Path, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint of a model with these weights."""
    tensors = {
        f"{kind}.{name}": torch.full_like(weight, torch.nan) for name, weight in weights.items() for kind in KINDS
    }
    read_tensors(tensors, folder, alone=True)
    return tensors


def without_updates(world: World) -> dict:
    """A checkpoint of a run that has scored and found nothing to learn from: the weights as they were, no moments."""
    kinds = {"fsdp": FSDP(), "zero 2": ZERO(zero_stage=2), "zero 3": ZERO(zero_stage=3)}
    kinds |= {
        f"{name} in bfloat16": replace(config, compute_dtype=schema.Precision.bfloat16)
        for name, config in kinds.items()
    }
    exact = dict(build(schema.SingleLearner(), World(), True).named_weights())
    found = {}
    for name, config in kinds.items():
        folder = Path(world.on_main(tempfile.mkdtemp))
        learner = build(config, world, True)
        train_on(learner, NO_SEQUENCE, 1)
        learner.save(folder)
        saved = {
            f"{kind}.{name}": torch.full_like(weight, torch.nan) for name, weight in exact.items() for kind in KINDS
        }
        read_tensors(saved, folder, alone=True)
        found[name] = [
            max((saved[f"weights.{name}"] - weight).abs().max().item() for name, weight in exact.items()),
            max(tensor.abs().max().item() for key, tensor in saved.items() if not key.startswith("weights.")),
        ]
    return found


def scored_between(world: World) -> dict:
    """A step whose groups are scored but not trained on, between one that updates and the checkpoint."""
    exact = dict(build(schema.SingleLearner(), World(), True).named_weights())
    found = {}
    for name, config in {"fsdp": FSDP(), "zero 3": ZERO(zero_stage=3)}.items():
        saved = []
        for between in (False, True):
            learner = build(config, world, True)
            step(learner, 1)
            if between:
                learner.score(UNEVEN, 2)
            folder = Path(world.on_main(tempfile.mkdtemp))
            learner.save(folder)
            saved.append(read_checkpoint(folder, exact))
        found[name] = {key: torch.equal(tensor, saved[1][key]) for key, tensor in saved[0].items()}
    return found


def three_ranks(world: World) -> dict:
    found = {}
    expected = figures(build(schema.SingleLearner(), World(), True), range(1, 3)) if world.is_main else None
    for name, config in {"fsdp": FSDP(), "zero 2": ZERO(zero_stage=2), "zero 3": ZERO(zero_stage=3)}.items():
        found[name] = [figures(build(config, world, True), range(1, 3)), expected]
    return found


def collectives(world: World) -> dict:
    """Order of spread work, and what the ranks see of an error on one of them."""
    found: dict = {
        "spread": world.spread(list("abcde"), lambda own: [f"{letter}{world.rank}" for letter in own]),
        "one item": world.spread(["a"], lambda own: [f"{letter}{world.rank}" for letter in own]),
        "on main": world.on_main(lambda: world.rank),
    }

    def failing(error: Exception) -> list:
        if world.rank == 1:
            raise error
        return []

    for error in (UserError("a file is missing"), Diverged("the logits are not finite"), KeyError("surprise")):
        try:
            world.spread([], lambda own, error=error: failing(error))
        except Exception as seen:
            found[type(error).__name__] = world.gather([type(seen).__name__, str(seen)])
    return found


def fails_on_rank_1(world: World) -> dict:
    if world.rank == 1:
        raise LookupError("nothing to be found")
    world.barrier()
    return {}


def diverges_everywhere(world: World) -> dict:
    raise Diverged("the test says so")


if __name__ == "__main__":
    with reporting_failure():
        world = join_world(with_group=True)
        find = globals()[sys.argv[1]]
        found = find(world)
        if world.is_main:
            report_result(found)
        world.barrier()
        leave(0)
