"""One gradient, whatever the split: the recipe's learner beside the single-process one, update by update.

Both start from the same random weights of the recipe's model class and see the same made-up groups in float32. The
single-process learner, which has tests against written-out mathematics, takes each mini-batch in one piece; the
recipe's takes it over all ranks and in micro-batches of several sizes.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from dapo_cli.algorithm.advantage import batch_advantages
from dapo_cli.algorithm.objective import Clip
from dapo_cli.config.schema import Advantage, LearnerConfig, OptimizerConfig, Precision, SingleLearner
from dapo_cli.distributed.world import World
from dapo_cli.learner.base import BaseLearner, Objective
from dapo_cli.learner.kinds import make_learner, reads_weights, weights_device
from dapo_cli.learner.optim import learning_rate
from dapo_cli.pretrained import without_weights
from dapo_cli.types import Completion, Finish, Group, Outcome, Prompt, Rollout, ScoredGroup, Verdict

FIGURES = ("logprobs", "loss", "grad_norm", "weights")
TOLERANCE = 1e-5  # relative; float32 rounds at 6e-8, and sums over tokens are added up in another order
LAYERS = 2  # of the model class; more of the same layers would show no more
GROUPS, SAMPLES = 4, 6
MAX_TOKENS = 40
OPTIMIZER = OptimizerConfig(lr=1e-3, warmup_steps=3)  # so that the rate changes from update to update
OBJECTIVE = Objective(Clip(0.2, 0.28), temperature=1.0, filter_truncated=True)


@dataclass(frozen=True)
class Row:
    """One update. Differences are relative to the single-process learner's; log-probs in nats."""

    learner: str
    ranks: int
    sequences: int
    micro_batch_tokens: int
    logprobs: float
    loss: float
    grad_norm: float
    weights: float

    @property
    def equal(self) -> bool:
        return all(getattr(self, figure) <= TOLERANCE for figure in FIGURES)

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"equal": self.equal}


def selftest(config: LearnerConfig, model_config: Any, world: World) -> list[Row]:
    """A row for each way of splitting: each sequence alone, two sizes of packed micro-batches, and a mini-batch of one
    sequence, which leaves all ranks but one without work. Collective: every rank must call.

    Raises UserError for a model class that learners cannot train.
    """
    config = replace(config, compute_dtype=Precision.float32)
    small = shortened(model_config)
    learner = make_learner(config, OPTIMIZER, OBJECTIVE, _model(small, config, world), world)
    oracle = None
    if world.is_main:
        one, alone = World(device=world.device), SingleLearner(lora_rank=config.lora_rank, lora_alpha=config.lora_alpha)
        oracle = make_learner(alone, OPTIMIZER, OBJECTIVE, _model(small, alone, one), one)
    vocabulary = min(model_config.get_text_config().vocab_size, 32_000)
    rng = np.random.default_rng(0)
    groups = [_group(rng, vocabulary, f"{place}") for place in range(GROUPS)]
    rows = []
    cases = [(1, groups), (150, groups), (4096, groups), (4096, _one_sequence(groups))]
    for step, (budget, batch) in enumerate(cases, start=1):
        learner.config = replace(config, micro_batch_tokens=budget)
        rows.append(_compare(learner, oracle, batch, step, world))
    return rows


def shortened(model_config: Any) -> Any:
    """The configuration with LAYERS layers and all else as it is."""
    config = type(model_config).from_dict(model_config.to_dict())
    text = config.get_text_config()
    text.num_hidden_layers = min(LAYERS, text.num_hidden_layers)
    if getattr(text, "layer_types", None) is not None:
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    return config


def _model(model_config: Any, config: LearnerConfig, world: World) -> Any:
    import transformers

    if not reads_weights(config, world):
        return without_weights(model_config)
    auto_model: Any = transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    return auto_model.from_config(model_config, dtype=torch.float32).to(weights_device(config, world)).eval()


def _group(rng: np.random.Generator, vocabulary: int, uid: str) -> Group:
    """Half right; the last completion is truncated, so that it leaves the loss."""
    prompt = Prompt(uid, uid, tuple(rng.integers(0, vocabulary, 7).tolist()), "0", "selftest")
    rollouts = []
    for index in range(SAMPLES):
        length = int(rng.integers(1, MAX_TOKENS + 1))
        token_ids = tuple(rng.integers(0, vocabulary, length).tolist())
        finish = Finish.LENGTH if index == SAMPLES - 1 else Finish.STOP
        right = index % 2 == 0
        verdict = Verdict(Outcome.RIGHT if right else Outcome.WRONG, None, "selftest")
        completion = Completion(uid, index, token_ids, (0.0,) * length, finish, "")
        rollouts.append(Rollout(completion, verdict, 1.0 if right else -1.0, 0.0))
    return Group(prompt, tuple(rollouts))


def _one_sequence(groups: list[Group]) -> list[Group]:
    first = groups[0]
    return [Group(first.prompt, (first.rollouts[0], first.rollouts[-1]))]


def _compare(learner: BaseLearner, oracle: BaseLearner | None, groups: list[Group], step: int, world: World) -> Row:
    """pi_old and one update on both sides."""
    scored, _ = learner.score(groups, step)
    scored = _moved_away(scored, step)
    advantages = batch_advantages(groups, Advantage.group_std)
    lr = learning_rate(learner.optimizer_config, step)
    stats = learner.update(scored, advantages, lr)
    after = {name: weight.cpu() for name, weight in learner.named_weights()}

    def differences() -> Row:
        assert oracle is not None
        expected, _ = oracle.score(groups, step)
        expected = _moved_away(expected, step)
        pairs = [
            (ours, theirs)
            for one, other in zip(scored, expected, strict=True)
            for ours, theirs in zip(one.old_logprobs, other.old_logprobs, strict=True)
        ]
        exact = oracle.update(expected, advantages, lr)
        weights = [
            ((after[name] - weight.cpu()).norm() / weight.cpu().norm().clamp(min=1e-12)).item()
            for name, weight in oracle.named_weights()
        ]
        return Row(
            learner=type(learner).__name__,
            ranks=world.size,
            sequences=exact_sequences(groups),
            micro_batch_tokens=learner.config.micro_batch_tokens,
            # numpy's maximum, unlike Python's, is NaN where any is.
            logprobs=float(np.max([np.abs(ours - theirs).max() for ours, theirs in pairs])),
            loss=relative(stats.loss, exact.loss),
            grad_norm=relative(stats.grad_norm, exact.grad_norm),
            weights=float(np.max(weights)),
        )

    return world.on_main(differences)


def exact_sequences(groups: list[Group]) -> int:
    """Completions that enter the loss."""
    return sum(not rollout.completion.truncated for group in groups for rollout in group.rollouts)


def relative(value: float, exact: float) -> float:
    return abs(value - exact) / max(abs(exact), 1e-12)


def _moved_away(scored: list[ScoredGroup], step: int) -> list[ScoredGroup]:
    """pi_old with noise, the same on every rank, so that ratios leave 1 and some are clipped."""
    rng = np.random.default_rng(step)
    return [
        replace(
            group,
            old_logprobs=tuple(
                values + rng.normal(0, 0.3, len(values)).astype(np.float32) for values in group.old_logprobs
            ),
        )
        for group in scored
    ]
