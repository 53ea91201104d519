"""vLLM through dapo's engine beside `LLM.generate`, and verification beside generating or behind it.

    python scripts/bench/rollout.py                        the shipped tiny model
    python scripts/bench/rollout.py --model models/smollm2

Throughput: the same vLLM object, prompts, seeds and limits; dapo's side also decodes the texts and makes completions. A
round of each side in turn, `--repeats` times; the figures are medians.

Overlap: a round is generated and judged, the judge waiting for all completions or working while others are made.
Lengths have a long tail: most completions end by themselves, some run into the limit. Judges: `math`, and a function
that takes `--judge-ms` for a verdict without using a processor, as one that waits for a sandbox does.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from dapo_cli.config.schema import (
    ArithmeticData,
    MathReward,
    Precision,
    PretrainedModel,
    PythonReward,
    SamplingConfig,
    VllmColocatedRollout,
)
from dapo_cli.data.prompts import make_prompts
from dapo_cli.data.questions import load_questions
from dapo_cli.distributed.world import World
from dapo_cli.pretrained import open_pretrained
from dapo_cli.reward.judge import judge
from dapo_cli.reward.modes import build_verifier
from dapo_cli.reward.user_function import read_user_function
from dapo_cli.rollout.completions import complete, seed_of
from dapo_cli.rollout.vllm_colocated import VllmColocatedEngine
from dapo_cli.rollout.vllm_settings import sampling_values
from dapo_cli.rounds import judge_as_they_finish
from dapo_cli.tracking.clock import PhaseClock


class NoPenalty:
    def penalty(self, completion):
        return 0.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="shipped:tiny-arithmetic")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--judge-ms", type=float, default=5.0)
    return parser.parse_args()


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def throughput(engine, prompts, sampling, args) -> None:
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input

    llm = engine._llm

    def plain() -> None:
        inputs = [tokens_input(list(prompt.token_ids)) for prompt in prompts]
        values = [sampling_values(sampling, args.samples, seed_of("k", p.uid), engine.eos_ids) for p in prompts]
        params = [SamplingParams(**each, flat_logprobs=True) for each in values]
        llm.generate(inputs, params, use_tqdm=False)

    def ours() -> list:
        return complete(engine, prompts, args.samples, sampling, "k")

    tokens = sum(len(c.token_ids) for group in ours() for c in group)
    plain()
    times = [(seconds(ours), seconds(plain)) for _ in range(args.repeats)]
    own, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"throughput: {tokens:,} tokens; dapo {tokens / own:,.0f}, LLM.generate {tokens / theirs:,.0f} tokens/s: ",
        end="",
    )
    print(f"{theirs / own:.3f}")


def overlap(engine, prompts, sampling, args, name: str, pool) -> None:
    pool.wait_until_ready()

    def judge_some(prompts, completions):
        return judge(prompts, completions, pool, NoPenalty(), -1.0)

    def behind() -> None:
        judge_some(prompts, complete(engine, prompts, args.samples, sampling, "k"))

    def beside() -> None:
        stream = engine.generate(prompts, args.samples, sampling, "k")
        judge_as_they_finish(prompts, stream, judge_some, PhaseClock())

    behind()
    times = [(seconds(beside), seconds(behind)) for _ in range(args.repeats)]
    own, other = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"overlap, {name}: beside {own:.3f} s, behind {other:.3f} s: {own / other:.2f}")


def main() -> None:
    args = parse()
    model = PretrainedModel(path=args.model)
    pretrained = open_pretrained(model)
    chat = pretrained.tokenizer.chat_template is not None
    data = ArithmeticData(prompts=args.prompts, chat_template=chat, max_prompt_tokens=256)
    questions, report = load_questions(data)
    prompts = make_prompts(questions, pretrained.tokenizer, data, report)
    sampling = SamplingConfig(max_tokens=args.tokens)
    longest = max(len(prompt.token_ids) for prompt in prompts) + args.tokens
    with tempfile.TemporaryDirectory() as folder:
        engine = VllmColocatedEngine(
            VllmColocatedRollout(kv_cache_mib=1024),
            pretrained,
            World(),
            dtype=Precision.float32,
            max_tokens=longest,
            log_file=Path(folder) / "vllm.log",
        )
        lengths = sorted(len(c.token_ids) for g in complete(engine, prompts, args.samples, sampling, "k") for c in g)
        shares = [lengths[int(share * (len(lengths) - 1))] for share in (0.1, 0.5, 0.9, 0.99, 1.0)]
        print(f"lengths at 10, 50, 90, 99, 100 %: {shares}")
        throughput(engine, prompts, sampling, args)
        with build_verifier(MathReward(), None) as pool:
            overlap(engine, prompts, sampling, args, "reward math", pool)
        source = Path(folder) / "waits.py"
        source.write_text(
            "import time\n\n\ndef verify(prompt, completion, answer):\n"
            f"    time.sleep({args.judge_ms / 1000})\n    return answer in completion\n"
        )
        reward = PythonReward(path=str(source))
        with build_verifier(reward, read_user_function(reward.path, reward.function)) as pool:
            overlap(engine, prompts, sampling, args, f"{args.judge_ms:g} ms a verdict", pool)
        engine.close()


if __name__ == "__main__":
    main()
