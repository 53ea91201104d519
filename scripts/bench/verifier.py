"""Verdicts per second: dapo's verifier beside math-verify with its own defaults, in one process on one core.

    python scripts/bench/verifier.py [CASES.jsonl]        a line a case: response, answer, correct

1. the cases of a file, where one is given: seconds and accuracy of both;
2. integer answers behind a worked solution, the DAPO-Math and AIME kind;
3. a round of the paper's size, 512 x 16 integer answers, through the pool with 2 workers.
"""

import json
import logging
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import math_verify

from dapo_cli.config.schema import MathReward
from dapo_cli.reward import math_verifier
from dapo_cli.reward.modes import build_verifier
from dapo_cli.types import Case, Outcome

ROUND_PROMPTS, ROUND_SAMPLES = 512, 16
INTEGER_CASES = 1000


def ours(response: str, answer: str) -> bool:
    return math_verifier.verify(response, answer).outcome is Outcome.RIGHT


def theirs(response: str, answer: str) -> bool:
    return bool(math_verify.verify(math_verify.parse(rf"\boxed{{{answer}}}"), math_verify.parse(response)))


def integer_cases(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Solutions of about 600 characters that end in an answer line; half of them are off."""
    rng = random.Random(seed)
    cases = []
    for index in range(count):
        answer = rng.randrange(1000)
        steps = [
            f"Step {step}: we get ${rng.randrange(100)} \\cdot {rng.randrange(100)} + x_{step}$, so"
            for step in range(16)
        ]
        given = answer if index % 2 else answer + rng.randrange(1, 9)
        cases.append(("\n".join(steps) + f"\n\nAnswer: {given}", str(answer)))
    return cases


def timed(judge: Callable[[str, str], bool], cases: Sequence[tuple[str, str]]) -> tuple[float, list[bool]]:
    judge(r"\boxed{\frac{1}{2}+x}", "x")  # imports and tables
    start = time.perf_counter()
    verdicts = [judge(response, answer) for response, answer in cases]
    return time.perf_counter() - start, verdicts


def compare(name: str, cases: Sequence[tuple[str, str]], labels: Sequence[bool]) -> None:
    seconds = {}
    for judge in (ours, theirs):
        seconds[judge], verdicts = timed(judge, cases)
        accuracy = sum(map(bool.__eq__, verdicts, labels)) / len(cases)
        rate = f"{1000 * seconds[judge] / len(cases):7.3f} ms each"
        print(f"{name:16} {judge.__name__:7} {seconds[judge]:8.2f} s  {rate}  accuracy {accuracy:.2%}")
    print(f"{name:16} ratio   {seconds[theirs] / seconds[ours]:8.1f}")


def paper_round() -> None:
    cases = [Case("", response, answer) for response, answer in integer_cases(ROUND_PROMPTS * ROUND_SAMPLES, seed=1)]
    with build_verifier(MathReward(workers=2)) as pool:
        pool.wait_until_ready()
        start = time.perf_counter()
        pool.verify(cases)
        seconds = time.perf_counter() - start
    print(f"{'paper round':16} pool of 2 {seconds:6.2f} s for {len(cases):,} verdicts")


def main() -> None:
    logging.disable(logging.CRITICAL)  # math-verify warns of every text that it cannot parse
    if len(sys.argv) > 1:
        rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
        rows = [row for row in rows if not row.get("debatable")]
        compare("cases", [(row["response"], row["answer"]) for row in rows], [row["correct"] for row in rows])
    integers = integer_cases(INTEGER_CASES)
    compare("integer answers", integers, [index % 2 == 1 for index in range(len(integers))])
    paper_round()


if __name__ == "__main__":
    main()
