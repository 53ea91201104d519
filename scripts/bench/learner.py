"""Tokens/s, model FLOP/s and peak memory of a learner on a Llama of random weights, on a GPU or a CPU.

    python scripts/bench/learner.py --size 1b --learner fsdp --dtype bfloat16
    torchrun --nproc-per-node 8 scripts/bench/learner.py --size 1b --learner fsdp --dtype bfloat16

Completions of 64 to `--longest` tokens, log-uniform, after prompts of 128, `--samples` to a prompt. The first update
warms up; figures are medians over `--repeats`. Needs torch and transformers alone.
"""

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dapo_cli.algorithm.advantage import batch_advantages
from dapo_cli.algorithm.objective import Clip
from dapo_cli.config.schema import Advantage, FsdpLearner, LearnerConfig, OptimizerConfig, Precision, SingleLearner
from dapo_cli.distributed.launch import leave, started_by_launcher
from dapo_cli.distributed.world import join_world
from dapo_cli.learner.base import Objective
from dapo_cli.learner.kinds import make_learner, reads_weights, weights_device
from dapo_cli.pretrained import without_weights
from dapo_cli.tracking.timings import peak_flops, peak_memory_bytes
from dapo_cli.types import Completion, Finish, Group, Outcome, Prompt, Rollout, Verdict

PROMPT_TOKENS = 128
SIZES = {  # hidden, layers, heads, key-value heads, intermediate, vocabulary; heads of 64
    "tiny": (128, 2, 2, 1, 256, 1_000),
    "0.5b": (896, 24, 14, 2, 4864, 151_936),  # the shape of Qwen2.5-0.5B
    "1b": (2048, 16, 32, 8, 8192, 128_256),  # the shape of Llama-3.2-1B
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--learner", choices=("single", "fsdp"), default="single")
    parser.add_argument("--dtype", choices=[each.value for each in Precision], default="float32")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--fp32-head", action="store_true")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--budget", type=int, default=16_384, help="tokens of a micro-batch")
    parser.add_argument("--chunk", type=int, default=LearnerConfig().logits_chunk_tokens)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table row")
    return parser.parse_args()


def random_model(size: str, world, config: LearnerConfig):
    hidden, layers, heads, kv_heads, intermediate, vocabulary = SIZES[size]
    shape = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    if not reads_weights(config, world):
        return without_weights(shape)
    torch.manual_seed(0)
    with torch.device(weights_device(config, world)):
        return LlamaForCausalLM(shape).eval()


def random_groups(args: argparse.Namespace, vocabulary: int) -> list[Group]:
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(64), np.log(args.longest), (args.prompts, args.samples))).astype(int)
    groups = []
    for place, row in enumerate(lengths.tolist()):
        uid = str(place)
        prompt = Prompt(uid, uid, tuple(rng.integers(0, vocabulary, PROMPT_TOKENS).tolist()), "", "random")
        rollouts = []
        for index, length in enumerate(row):
            token_ids = tuple(rng.integers(0, vocabulary, length).tolist())
            completion = Completion(uid, index, token_ids, (), Finish.STOP, "")
            verdict = Verdict(Outcome.RIGHT if index % 2 else Outcome.WRONG, None, "random")
            rollouts.append(Rollout(completion, verdict, 1.0 if index % 2 else -1.0, 0.0))
        groups.append(Group(prompt, tuple(rollouts)))
    return groups


def main() -> None:
    args = parse()
    world = join_world(with_group=args.learner == "fsdp")
    kind = {"single": SingleLearner, "fsdp": FsdpLearner}[args.learner]
    config = kind(
        micro_batch_tokens=args.budget,
        logits_chunk_tokens=args.chunk,
        compute_dtype=Precision(args.dtype),
        activation_checkpointing=args.checkpointing,
        fp32_head=args.fp32_head,
    )
    objective = Objective(Clip(0.2, 0.28), temperature=1.0, filter_truncated=False)
    optimizer = OptimizerConfig(lr=1e-6, warmup_steps=0)
    learner = make_learner(config, optimizer, objective, random_model(args.size, world, config), world)
    groups = random_groups(args, SIZES[args.size][-1])
    advantages = batch_advantages(groups, Advantage.group_std)
    tokens = sum(len(rollout.completion.token_ids) for group in groups for rollout in group.rollouts)
    peak = peak_flops(world.device, config.compute_dtype)

    seconds: dict[str, list[float]] = {"score": [], "update": []}
    flops = {}
    for repeat in range(args.repeats + 1):
        (scored, _), took_score = timed(partial(learner.score, groups, repeat), world)
        _, took_update = timed(partial(learner.update, scored, advantages, optimizer.lr), world)
        flops = learner.take_model_flops()
        if repeat:
            seconds["score"].append(took_score)
            seconds["update"].append(took_update)
    flops = {phase: sum(each[phase] for each in world.gather(flops)) / world.size for phase in seconds}
    memory = max(world.gather(peak_memory_bytes()))
    if world.is_main:
        medians = {phase: statistics.median(each) for phase, each in seconds.items()}
        result = vars(args) | {
            "ranks": world.size,
            "parameters": sum(parameter.numel() for parameter in learner.policy.parameters()),
            "tokens": tokens,
            "tokens_per_s": {phase: tokens / medians[phase] for phase in medians},
            "tflops_per_s": {phase: flops[phase] / medians[phase] / 1e12 for phase in medians},
            "mfu": {phase: flops[phase] / medians[phase] / peak if peak else None for phase in medians},
            "peak_gib": memory / 2**30,
        }
        print(json.dumps(result) if args.json else row(result), flush=True)
    world.barrier()
    if started_by_launcher():
        leave(0)


def timed(work, world):
    synchronize(world)
    start = time.perf_counter()
    result = work()
    synchronize(world)
    return result, time.perf_counter() - start


def synchronize(world) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)


def row(result: dict) -> str:
    name = f"{result['size']} {result['learner']} {result['dtype']}" + " checkpointed" * result["checkpointing"]
    figures = []
    for phase in ("score", "update"):
        mfu = result["mfu"][phase]
        speed = f"{result['tflops_per_s'][phase]:.3g} TFLOP/s" + ("" if mfu is None else f", MFU {mfu:.0%}")
        figures.append(f"{phase} {result['tokens_per_s'][phase]:,.0f} tokens/s ({speed})")
    return f"{name}, {result['ranks']} ranks: {'; '.join(figures)}; peak {result['peak_gib']:.1f} GiB"


if __name__ == "__main__":
    main()
