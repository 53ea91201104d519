"""Held-out accuracy: avg@k with its standard error."""

import math
from collections.abc import Sequence

from dapo_cli.config.schema import EvalConfig
from dapo_cli.protocols import Metrics, RolloutEngine, Verifier
from dapo_cli.reward.judge import cases_of
from dapo_cli.types import Outcome, Prompt


def evaluate(
    engine: RolloutEngine, verifier: Verifier, prompts: Sequence[Prompt], config: EvalConfig, seed: int
) -> Metrics:
    """avg@k over the prompts, its standard error over prompts, and how the completions ended.

    The sampling noise is the same at every evaluation of a run, so that two of them differ by the weights alone.
    """
    completions = engine.generate(prompts, config.samples_per_prompt, config.sampling, key=f"{seed}/eval")
    verdicts = verifier.verify(cases_of(prompts, completions))
    k = config.samples_per_prompt
    right = [verdict.outcome is Outcome.RIGHT for verdict in verdicts]
    rates = [sum(right[start : start + k]) / k for start in range(0, len(right), k)]
    accuracy = math.fsum(rates) / len(rates)
    spread = math.fsum((rate - accuracy) ** 2 for rate in rates)
    flat = [completion for samples in completions for completion in samples]
    return {
        "eval/accuracy": accuracy,
        "eval/standard_error": math.sqrt(spread / (len(rates) - 1) / len(rates)) if len(rates) > 1 else None,
        "eval/prompts": len(prompts),
        "eval/samples_per_prompt": k,
        "eval/truncated": sum(completion.truncated for completion in flat) / len(flat),
        "eval/verifier_failed": sum(verdict.outcome is Outcome.FAILED for verdict in verdicts),
        "eval/length_mean": sum(len(completion.token_ids) for completion in flat) / len(flat),
    }
