"""One training step, timed by phase, beside the same work by TRL's GRPOTrainer (`pip install -e .[bench]`).

    python scripts/bench/step.py                                     the shipped tiny model
    python scripts/bench/step.py --model models/smollm2 --chat       another model, with its chat template

Both sides do per step: `--prompts` x `--samples` completions of at most `--tokens` tokens, pi_old of all of them, and
`--updates` optimizer updates, with the same token budget a micro-batch. Every prompt is kept and rewards are random,
so that no side saves work by filtering. `--fixed` forbids the end of sequence: then all lengths are equal to the token.
Each side runs in a process of its own; figures are medians over `--steps` steps after one that warms up.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time

PHASES = ("rollout", "score", "update", "step")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="shipped:tiny-arithmetic")
    parser.add_argument(
        "--chat", action="store_true", help="use the model's chat template and the authors' instruction"
    )
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=72)
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--micro-rows", type=int, default=64, help="TRL's rows a micro-batch; dapo gets as many tokens")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing in TRL (its default)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("dapo", "trl"), help="one side, in this process; prints JSON")
    return parser.parse_args()


def prompts_of(args, tokenizer, count: int):
    from dapo_cli.config.schema import ArithmeticData, Instruction
    from dapo_cli.data.prompts import make_prompts
    from dapo_cli.data.questions import load_questions

    instruction = Instruction.authors if args.chat else Instruction.none
    data = ArithmeticData(prompts=count, chat_template=args.chat, instruction=instruction, max_prompt_tokens=512)
    questions, report = load_questions(data)
    return make_prompts(questions, tokenizer, data, report)


def run_dapo(args) -> dict:
    from dapo_cli.algorithm.advantage import batch_advantages
    from dapo_cli.algorithm.objective import Clip
    from dapo_cli.config.schema import Advantage, LearnerConfig, OptimizerConfig, PretrainedModel, SamplingConfig
    from dapo_cli.distributed.world import World
    from dapo_cli.learner.base import Objective
    from dapo_cli.learner.single import SingleLearner
    from dapo_cli.pretrained import load_weights, open_pretrained
    from dapo_cli.rollout.transformers_engine import TransformersEngine
    from dapo_cli.tracking.clock import PhaseClock
    from dapo_cli.types import Group, Outcome, Rollout, Verdict

    config = PretrainedModel(path=args.model)
    pretrained = open_pretrained(config)
    model = load_weights(pretrained, config)
    prompts = prompts_of(args, pretrained.tokenizer, args.prompts * (args.steps + 1))
    widest = max(len(prompt.token_ids) for prompt in prompts)
    engine = TransformersEngine(model, pretrained.tokenizer, args.prompts * args.samples)
    if args.fixed:
        engine.eos_ids = []
    learner = SingleLearner(
        World(device=model.device),
        model,
        Objective(Clip(0.2, 0.28), temperature=1.0, filter_truncated=False),
        OptimizerConfig(lr=1e-6, warmup_steps=0),
        LearnerConfig(micro_batch_tokens=args.micro_rows * (widest + args.tokens)),
    )
    rng, clock, seconds, tokens = random.Random(0), PhaseClock(), [], []
    base = peak_mib()
    for step in range(args.steps + 1):
        clock.reset()
        batch = prompts[step * args.prompts : (step + 1) * args.prompts]
        with clock("rollout"):
            completions = engine.generate(batch, args.samples, SamplingConfig(max_tokens=args.tokens), f"bench/{step}")
        groups = []
        for prompt, samples in zip(batch, completions, strict=True):
            rewards = [rng.choice((-1.0, 1.0)) for _ in samples]
            verdict = Verdict(Outcome.WRONG, None, "random")
            groups.append(
                Group(prompt, tuple(Rollout(c, verdict, r, 0.0) for c, r in zip(samples, rewards, strict=True)))
            )
        with clock("score"):
            scored, _ = learner.score(groups, step)
        advantages = batch_advantages(groups, Advantage.group_std)
        with clock("update"):
            size = len(scored) // args.updates
            for start in range(0, len(scored), size):
                learner.update(scored[start : start + size], advantages[start : start + size], lr=1e-6)
        seconds.append({**clock.seconds, "step": clock.total})
        tokens.append(sum(len(c.token_ids) for samples in completions for c in samples))
    return report(seconds, tokens, base)


def run_trl(args) -> dict:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from dapo_cli.config.schema import PretrainedModel
    from dapo_cli.pretrained import load_weights, open_pretrained

    config = PretrainedModel(path=args.model)
    pretrained = open_pretrained(config)
    model = load_weights(pretrained, config)
    prompts = prompts_of(args, pretrained.tokenizer, args.prompts * (args.steps + 1))
    completions = args.prompts * args.samples
    micro_batches = max(1, completions // args.micro_rows)
    rng, tokens = random.Random(0), []

    def reward(completion_ids, **_):
        tokens.append(sum(map(len, completion_ids)))
        return [rng.choice((-1.0, 1.0)) for _ in completion_ids]

    trainer_config = GRPOConfig(
        output_dir="/tmp/trl-bench",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        weight_decay=0.1,
        num_generations=args.samples,
        max_completion_length=args.tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        per_device_train_batch_size=completions // micro_batches,
        gradient_accumulation_steps=micro_batches // args.updates,
        steps_per_generation=micro_batches,
        gradient_checkpointing=args.checkpointing,
        max_steps=args.updates * (args.steps + 1),
        generation_kwargs={"min_new_tokens": args.tokens} if args.fixed else None,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    ends: list[float] = []

    class Ends(TrainerCallback):
        def on_train_begin(self, *_, **__):
            ends.append(time.perf_counter())

        def on_step_end(self, *_, **__):
            ends.append(time.perf_counter())

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=trainer_config,
        processing_class=pretrained.tokenizer,
        train_dataset=Dataset.from_list([{"prompt": prompt.text} for prompt in prompts]),
        callbacks=[Ends()],
    )
    phases = {"rollout": timed(trainer, "_generate"), "prepare": timed(trainer, "_generate_and_score_completions")}
    base = peak_mib()
    trainer.train()
    seconds = []
    for step in range(args.steps + 1):
        whole = ends[(step + 1) * args.updates] - ends[step * args.updates]
        rollout, prepare = phases["rollout"][step], phases["prepare"][step]
        seconds.append({"rollout": rollout, "score": prepare - rollout, "update": whole - prepare, "step": whole})
    return report(seconds, tokens, base)


def timed(owner, name: str) -> list[float]:
    """Wrap a method so that the seconds of each call are appended to the list returned."""
    method, calls = getattr(owner, name), []

    def wrapper(*args, **kwargs):
        start = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            calls.append(time.perf_counter() - start)

    setattr(owner, name, wrapper)
    return calls


def peak_mib() -> float:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(seconds: list[dict], tokens: list[int], base_mib: float) -> dict:
    medians = {phase: statistics.median(step[phase] for step in seconds[1:]) for phase in PHASES}
    mean_tokens = statistics.mean(tokens[1:])
    rates = {phase: mean_tokens / medians[phase] for phase in PHASES}
    return {
        "seconds": medians,
        "tokens_per_s": rates,
        "tokens": mean_tokens,
        "peak_mib": peak_mib(),
        "base_mib": base_mib,
    }


def side(name: str) -> dict:
    # Each with what its user gets: `dapo train` bounds the spinning of waiting OpenMP threads, TRL leaves the default.
    environment = os.environ | ({"GOMP_SPINCOUNT": "4000"} if name == "dapo" else {})
    output = subprocess.run(
        [sys.executable, *sys.argv, "--only", name], env=environment, check=True, capture_output=True, text=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    args = parse()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.only:
        print(json.dumps({"dapo": run_dapo, "trl": run_trl}[args.only](args)))
        return
    ours, theirs = side("dapo"), side("trl")
    work = f"{args.prompts} x {args.samples} completions of at most {args.tokens} tokens, {args.updates} updates"
    print(f"{args.model}: {work}")
    print(f"tokens a step: dapo {ours['tokens']:.0f}, TRL {theirs['tokens']:.0f}\n")
    print(f"{'phase':<10}{'dapo s':>9}{'TRL s':>9}{'dapo tok/s':>12}{'TRL tok/s':>12}{'tok/s ratio':>13}")
    for phase in PHASES:
        a, b = ours["tokens_per_s"][phase], theirs["tokens_per_s"][phase]
        seconds = f"{ours['seconds'][phase]:>9.3f}{theirs['seconds'][phase]:>9.3f}"
        print(f"{phase:<10}{seconds}{a:>12.0f}{b:>12.0f}{a / b:>13.2f}")
    print("\npeak memory, MiB (of which there before the first step):")
    for name, result in (("dapo", ours), ("TRL", theirs)):
        print(f"  {name:<5}{result['peak_mib']:>8.0f}  ({result['base_mib']:.0f})")


if __name__ == "__main__":
    main()
