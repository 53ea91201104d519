"""Held-out accuracy while a run trains: avg@k with its standard error, by the run's own engine and verifier."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from dapo_cli.config.schema import EvalConfig
from dapo_cli.distributed.world import World
from dapo_cli.evaluation.metrics import pass_at
from dapo_cli.protocols import Metrics, RolloutEngine, Verifier
from dapo_cli.reward.judge import cases_of
from dapo_cli.rollout.completions import complete
from dapo_cli.types import Outcome, Prompt


class _Judged(NamedTuple):
    """What evaluation keeps of a completion."""

    outcome: Outcome
    truncated: bool
    tokens: int


def evaluate(
    world: World,
    engine: RolloutEngine,
    verifier: Verifier,
    prompts: Sequence[Prompt],
    config: EvalConfig,
    seed: int,
) -> Metrics:
    """avg@k over the prompts, its standard error over prompts, how the completions ended, and pass@k where k > 1.

    The sampling noise is the same at every evaluation of a run, so that two of them differ by the weights alone.
    Collective: every rank must call.
    """
    k = config.samples_per_prompt

    def judged(own: list[Prompt]) -> list[list[_Judged]]:
        completions = complete(engine, own, k, config.sampling, key=f"{seed}/eval")
        outcomes = iter(verifier.verify(cases_of(own, completions)))
        return [
            [_Judged(next(outcomes).outcome, each.truncated, len(each.token_ids)) for each in samples]
            for samples in completions
        ]

    results = world.spread(prompts, judged, team=engine.ranks)
    rights = [sum(each.outcome is Outcome.RIGHT for each in samples) for samples in results]
    rates = [right / k for right in rights]
    accuracy = fmean(rates)
    spread = math.fsum((rate - accuracy) ** 2 for rate in rates)
    flat = [each for samples in results for each in samples]
    metrics: Metrics = {
        "eval/accuracy": accuracy,
        "eval/standard_error": math.sqrt(spread / (len(rates) - 1) / len(rates)) if len(rates) > 1 else None,
        "eval/prompts": len(prompts),
        "eval/samples_per_prompt": k,
        "eval/truncated": sum(each.truncated for each in flat) / len(flat),
        "eval/verifier_failed": sum(each.outcome is Outcome.FAILED for each in flat),
        "eval/length_mean": sum(each.tokens for each in flat) / len(flat),
    }
    if k > 1:
        metrics["eval/pass_at_k"] = fmean(pass_at(right, k, k) for right in rights)
    return metrics
