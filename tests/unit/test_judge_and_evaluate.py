"""Rewards from verdicts, and held-out accuracy, on hand-made completions."""

import math

import pytest

from dapo_cli.config.schema import EvalConfig, OverlongConfig
from dapo_cli.distributed.world import World
from dapo_cli.evaluation.evaluate import evaluate
from dapo_cli.reward.judge import judge
from dapo_cli.reward.overlong import SoftOverlong
from dapo_cli.types import Completion, Finish, Outcome, Prompt, Verdict


def completion(prompt_uid: str, index: int, text: str, length: int = 3, finish: Finish = Finish.STOP) -> Completion:
    return Completion(prompt_uid, index, (5,) * length, (-1.0,) * length, finish, text)


PROMPTS = [Prompt("a", "a?", (1,), "1", "test"), Prompt("b", "b?", (1,), "2", "test")]


class ExactVerifier:
    def verify(self, cases):
        outcomes = {True: Outcome.RIGHT, False: Outcome.WRONG}
        return [
            Verdict(Outcome.FAILED, None, "timeout")
            if text == "hang"
            else Verdict(outcomes[text == answer], text, "exact")
            for _, text, answer in cases
        ]


def test_reward_is_correctness_and_length_penalty():
    samples = [
        [completion("a", 0, "1"), completion("a", 1, "2", length=18), completion("a", 2, "hang")],
        [completion("b", 0, "2", length=20, finish=Finish.LENGTH), completion("b", 1, "1"), completion("b", 2, "2")],
    ]
    shaper = SoftOverlong(OverlongConfig(cache_tokens=4), max_tokens=20)
    first, second = judge(PROMPTS, samples, ExactVerifier(), shaper, failed_reward=-0.5)
    assert first.rewards == (1.0, -1.5, -0.5)
    assert second.rewards == (0.0, -1.0, 1.0)
    assert (first.num_correct, second.num_correct) == (1, 2)
    assert [rollout.completion for rollout in second.rollouts] == samples[1]


def test_evaluation_is_the_mean_over_prompts_with_its_standard_error():
    class Engine:
        ranks = 1

        def __init__(self, samples):
            self.samples = samples

        def generate(self, prompts, samples_per_prompt, sampling, key):
            assert (samples_per_prompt, key) == (self.samples, "7/eval")
            texts = {"a": ["1", "1", "1", "hang"], "b": ["2", "0", "0", "0"]}
            for place, p in reversed(list(enumerate(prompts))):  # in finishing order
                yield {place: [completion(p.uid, i, text) for i, text in enumerate(texts[p.uid][: self.samples])]}

    metrics = evaluate(World(), Engine(4), ExactVerifier(), PROMPTS, EvalConfig(samples_per_prompt=4), seed=7)
    assert metrics["eval/accuracy"] == 0.5  # rates 0.75 and 0.25
    assert metrics["eval/standard_error"] == pytest.approx(math.sqrt(0.125 / 2))
    assert metrics["eval/verifier_failed"] == 1
    assert metrics["eval/truncated"] == 0
    assert metrics["eval/pass_at_k"] == 1.0  # each problem has a right one
    once = evaluate(World(), Engine(1), ExactVerifier(), PROMPTS, EvalConfig(samples_per_prompt=1), seed=7)
    assert once["eval/accuracy"] == 1.0 and "eval/pass_at_k" not in once
