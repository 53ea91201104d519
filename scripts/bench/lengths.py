"""One learner update on completions of many lengths, three ways: the same model, sequences and token-mean clipped loss.

    python scripts/bench/lengths.py [--spread uniform|log] [--budget 16384] [--hidden 256] [--layers 4] [--vocab 8192]

padded  right-padded micro-batches of equally many rows, in the order that completions come, logits at all positions;
        with as many rows as keep a micro-batch of the longest completions near the token budget
sorted  the same with rows sorted by length, as many to a micro-batch as rows x longest stays within the budget
dapo    `SingleLearner.update` under the same budget

Each way has its own copy of the model, in one process, and its update ends with AdamW's step. Their gradients must
agree before anything is timed. The ways take turns, and the best of `--repeats` counts.
"""

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.algorithm.objective import Clip, token_losses, token_mean_loss
from dapo_cli.config.schema import LearnerConfig, OptimizerConfig
from dapo_cli.distributed.world import World
from dapo_cli.learner.base import Objective
from dapo_cli.learner.micro_batches import split_by_budget
from dapo_cli.learner.single import SingleLearner
from dapo_cli.types import Completion, Finish, Group, Outcome, Prompt, Rollout, ScoredGroup, Verdict

SHORTEST, LONGEST = 64, 1024  # completion tokens
PROMPT_TOKENS = 100
HEAD_SIZE = 64
CLIP = Clip(0.2, 0.28)
# The gradient's norm is taken as in training, but never reduced: scaled to one norm, gradients would hide a difference.
OPTIMIZER = OptimizerConfig(lr=1e-6, warmup_steps=0, max_grad_norm=1e9)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """One sequence with its completion's pi_old [T] float32 and advantage."""

    token_ids: Tensor
    old_logprobs: Tensor
    advantage: float


@dataclass(frozen=True)
class Way:
    """`update` makes one optimizer update of `model` and returns the gradient's norm."""

    model: LlamaForCausalLM
    optimizer: torch.optim.Optimizer
    update: Callable[[], float]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256, help=f"a multiple of {HEAD_SIZE}, the size of a head")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--spread", choices=("log", "uniform"), default="log", help="log: many short, few long")
    parser.add_argument("--budget", type=int, default=16384, help="tokens a micro-batch, padding included")
    parser.add_argument(
        "--completion-logits", action="store_true", help="padded and sorted: no logits at the prompt's positions"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_model(args: argparse.Namespace) -> LlamaForCausalLM:
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=4 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // HEAD_SIZE,
        max_position_embeddings=PROMPT_TOKENS + LONGEST,
    )
    return LlamaForCausalLM(config).eval()


def make_groups(args: argparse.Namespace) -> list[Group]:
    """Groups of random tokens, of which every second completion is right."""
    rng = np.random.default_rng(args.seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, args.vocab, count).tolist())

    def length() -> int:
        if args.spread == "uniform":
            return int(rng.integers(SHORTEST, LONGEST + 1))
        return round(float(np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST)))))

    groups = []
    for uid in map(str, range(args.prompts)):
        prompt = Prompt(uid, "", tokens(PROMPT_TOKENS), "0", "bench")
        rollouts = []
        for index in range(args.samples):
            token_ids = tokens(length())
            completion = Completion(uid, index, token_ids, (0.0,) * len(token_ids), Finish.STOP, "")
            right = index % 2 == 0
            verdict = Verdict(Outcome.RIGHT if right else Outcome.WRONG, "0", "bench")
            rollouts.append(Rollout(completion, verdict, 1.0 if right else -1.0, 0.0))
        groups.append(Group(prompt, tuple(rollouts)))
    return groups


def score(learner: SingleLearner, groups: list[Group], seed: int) -> list[ScoredGroup]:
    """pi_old as after some updates: a little off the weights' own log-probs, so that some ratios are clipped."""
    rng = np.random.default_rng(seed)
    scored, _ = learner.score(groups, step=0)
    return [
        ScoredGroup(s.group, tuple(v + rng.normal(0, 0.1, len(v)).astype(np.float32) for v in s.old_logprobs), 0)
        for s in scored
    ]


def make_rows(scored: list[ScoredGroup]) -> list[Row]:
    rows = []
    for s in scored:
        advantages = group_advantages(s.group.rewards)
        for rollout, old_logprobs, advantage in zip(s.group.rollouts, s.old_logprobs, advantages, strict=True):
            token_ids = torch.tensor(s.group.prompt.token_ids + rollout.completion.token_ids)
            rows.append(Row(token_ids, torch.from_numpy(old_logprobs), advantage))
    return rows


def padded_loss(model: LlamaForCausalLM, rows: list[Row], num_loss_tokens: int, completion_logits: bool) -> Tensor:
    """This micro-batch's share of the loss, with [B, S] tensors and a mask."""
    token_ids_BS = pad_sequence([row.token_ids for row in rows], batch_first=True)
    mask_BS = pad_sequence([torch.ones_like(row.token_ids) for row in rows], batch_first=True)
    # The position before each completion token predicts it: T counts those positions, prompt included or not.
    start = PROMPT_TOKENS - 1 if completion_logits else 0
    targets_BT = token_ids_BS[:, start + 1 :]
    logits_BTV = model(
        input_ids=token_ids_BS,
        attention_mask=mask_BS,
        position_ids=mask_BS.cumsum(-1) - 1,
        logits_to_keep=targets_BT.shape[1] + 1,
        use_cache=False,
    ).logits[:, :-1]
    logprobs_BT = torch.log_softmax(logits_BTV, dim=-1).gather(-1, targets_BT[..., None]).squeeze(-1)
    old_BT, loss_mask_BT = torch.zeros_like(logprobs_BT), torch.zeros_like(logprobs_BT)
    for place, row in enumerate(rows):
        completion = slice(PROMPT_TOKENS - 1 - start, len(row.token_ids) - 1 - start)
        old_BT[place, completion], loss_mask_BT[place, completion] = row.old_logprobs, 1.0
    # Elsewhere log-probs are of no sampled token: a ratio of 1 keeps the exponential finite where the mask drops it.
    logprobs_BT = torch.where(loss_mask_BT > 0, logprobs_BT, 0.0)
    advantages_B1 = torch.tensor([row.advantage for row in rows])[:, None]
    return token_mean_loss(token_losses(logprobs_BT, old_BT, advantages_B1, CLIP) * loss_mask_BT, num_loss_tokens)


def padded_way(model: LlamaForCausalLM, batches: list[list[Row]], completion_logits: bool) -> Way:
    model = copy.deepcopy(model)
    betas = (OPTIMIZER.beta1, OPTIMIZER.beta2)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=OPTIMIZER.lr, betas=betas, weight_decay=OPTIMIZER.weight_decay, fused=True
    )
    num_loss_tokens = sum(len(row.old_logprobs) for rows in batches for row in rows)

    def update() -> float:
        for rows in batches:
            padded_loss(model, rows, num_loss_tokens, completion_logits).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.max_grad_norm).item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    return Way(model, optimizer, update)


def make_learner(model: LlamaForCausalLM, budget: int) -> SingleLearner:
    objective = Objective(CLIP, temperature=1.0, filter_truncated=False)
    config = LearnerConfig(micro_batch_tokens=budget)
    return SingleLearner(World(), copy.deepcopy(model), objective, OPTIMIZER, config)


def make_ways(args: argparse.Namespace) -> tuple[dict[str, Way], list[int]]:
    """The ways, the first of which the others are compared with, and the lengths of the completions."""
    model = make_model(args)
    learner = make_learner(model, args.budget)
    scored = score(learner, make_groups(args), args.seed)
    advantages = [group_advantages(each.group.rewards) for each in scored]
    rows = make_rows(scored)
    count = max(1, round(args.budget / (PROMPT_TOKENS + LONGEST)))
    as_they_come = [rows[start : start + count] for start in range(0, len(rows), count)]
    by_length = [
        [rows[index] for index in places]
        for places in split_by_budget([len(row.token_ids) for row in rows], args.budget)
    ]
    lr = learner.optimizer_config.lr
    ways = {
        "padded": padded_way(model, as_they_come, args.completion_logits),
        "sorted": padded_way(model, by_length, args.completion_logits),
        "dapo": Way(
            learner.model,
            learner.optimizer,
            lambda: learner.update(scored, advantages, lr).grad_norm,
        ),
    }
    return ways, [len(row.old_logprobs) for row in rows]


def gradient_of_update(way: Way) -> Tensor:
    """The whole gradient, flat, that one update applies."""
    gradient: list[Tensor] = []

    def keep(*_) -> None:
        gradient.extend(parameter.grad.flatten() for parameter in way.model.parameters())

    handle = way.optimizer.register_step_pre_hook(keep)
    way.update()
    handle.remove()
    return torch.cat(gradient)


def check_gradients(ways: dict[str, Way]) -> None:
    """One update of each way from the same weights, which also warms up. Exits where gradients differ."""
    first, *others = ways
    expected = gradient_of_update(ways[first])
    for name in others:
        gradient = gradient_of_update(ways[name])
        difference = ((gradient - expected).norm() / expected.norm()).item()
        print(f"gradient of {name}: norm {gradient.norm():.6g}, off that of {first} by {difference:.1e} of its norm")
        if not difference < TOLERANCE:
            sys.exit(f"the ways do different work: {name} and {first} may differ by {TOLERANCE:.0e}")


def time_ways(ways: Iterable[tuple[str, Way]], repeats: int) -> dict[str, float]:
    """Seconds of each way's fastest update. They take turns, so that a busy spell of the machine falls on all."""
    seconds: dict[str, list[float]] = {name: [] for name, _ in ways}
    for _ in range(repeats):
        for name, way in ways:
            start = time.perf_counter()
            way.update()
            seconds[name].append(time.perf_counter() - start)
    return {name: min(taken) for name, taken in seconds.items()}


def main() -> None:
    args = parse()
    # OpenMP reads its settings as torch is loaded, so the script starts again with them; see `dapo train`.
    openmp = {"GOMP_SPINCOUNT": "4000", "OMP_NUM_THREADS": str(args.threads)}
    if any(os.environ.get(name) != value for name, value in openmp.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | openmp)
    ways, lengths = make_ways(args)
    check_gradients(ways)
    seconds = time_ways(ways.items(), args.repeats)
    mean, longest = statistics.mean(lengths), max(lengths)
    print(f"\n{len(lengths)} completions, {sum(lengths)} tokens: mean {mean:.0f}, max {longest}\n")
    print(f"{'way':<8}{'seconds':>9}{'tokens/s':>10}{'ratio':>7}")
    for name, taken in seconds.items():
        print(f"{name:<8}{taken:>9.2f}{sum(lengths) / taken:>10.0f}{seconds['padded'] / taken:>7.2f}")


if __name__ == "__main__":
    main()
