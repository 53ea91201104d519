"""Small real parts for the tests: a random Llama over characters and hand-made groups."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

os.environ.setdefault("GOMP_SPINCOUNT", "4000")  # as `dapo train`: spinning threads starve other processes

import numpy as np
import pytest
import torch
from hypothesis import settings
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from dapo_cli.algorithm.advantage import batch_advantages
from dapo_cli.algorithm.objective import UpdateStats
from dapo_cli.config.schema import Advantage, PythonReward, RewardConfig
from dapo_cli.config.shipped import model_folder
from dapo_cli.learner.base import BaseLearner
from dapo_cli.learner.optim import learning_rate
from dapo_cli.reward.modes import build_verifier
from dapo_cli.reward.pool import VerifierPool
from dapo_cli.types import Completion, Finish, Group, Outcome, Prompt, Rollout, ScoredGroup, Verdict

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

DEVICE = torch.device(os.environ.get("DAPO_TEST_DEVICE", "cpu"))  # of the tests that a GPU may run, too


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(model_folder("shipped:tiny-arithmetic"))


@pytest.fixture(scope="session")
def build_verifier_once() -> Iterator[Callable[[RewardConfig], AbstractContextManager[VerifierPool]]]:
    """In the place of `build_verifier`: workers start once. Those of a user's function are started anew each time."""
    pools: dict[str, VerifierPool] = {}

    def build(config: RewardConfig) -> AbstractContextManager[VerifierPool]:
        if isinstance(config, PythonReward):
            return build_verifier(config)
        if repr(config) not in pools:
            pools[repr(config)] = build_verifier(config)
        return nullcontext(pools[repr(config)])

    yield build
    for pool in pools.values():
        pool.close()


@pytest.fixture
def model(tokenizer):
    """A two-layer Llama with random weights, large enough to differ between tokens; grouped-query attention."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval().to(DEVICE)


def make_prompt(tokenizer, text: str, answer: str = "0") -> Prompt:
    return Prompt(uid=text, text=text, token_ids=tuple(tokenizer(text)["input_ids"]), answer=answer, source="test")


def make_group(
    token_lengths: list[int], correct: list[bool], *, uid: str = "p", truncated: tuple[int, ...] = (), seed: int = 0
) -> Group:
    """A group of random tokens with the verdicts asked for."""
    rng = np.random.default_rng(seed)
    prompt = Prompt(uid, uid, tuple(rng.integers(3, 26, 5).tolist()), "0", "test")
    rollouts = []
    for index, (length, right) in enumerate(zip(token_lengths, correct, strict=True)):
        finish = Finish.LENGTH if index in truncated else Finish.STOP
        completion = Completion(
            uid, index, tuple(rng.integers(3, 26, length).tolist()), tuple([-1.0] * length), finish, "text"
        )
        verdict = Verdict(Outcome.RIGHT if right else Outcome.WRONG, "0", "test")
        rollouts.append(Rollout(completion, verdict, 1.0 if right else -1.0, 0.0))
    return Group(prompt, tuple(rollouts))


def eq_9(scored: list[ScoredGroup]) -> list[list[float]]:
    """The default advantages of a mini-batch."""
    return batch_advantages([each.group for each in scored], Advantage.group_std)


def train_on(learner: BaseLearner, groups: list[Group], step: int) -> UpdateStats:
    """pi_old, then one update."""
    scored, _ = learner.score(groups, step)
    return learner.update(scored, eq_9(scored), learning_rate(learner.optimizer_config, step))


def make_scored(group: Group, born_step: int = 1, logprob: float = -3.0) -> ScoredGroup:
    arrays = tuple(np.full(len(rollout.completion.token_ids), logprob, dtype=np.float32) for rollout in group.rollouts)
    return ScoredGroup(group, arrays, born_step)
