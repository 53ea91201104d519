"""Figures of a step from its judged groups: pure functions. None means that there was nothing to measure."""

from collections.abc import Mapping, Sequence
from math import fsum

import numpy as np

from dapo_cli.health.failures import FAILURES
from dapo_cli.protocols import Metrics
from dapo_cli.types import Group, Outcome, Rollout

NGRAM = 4  # tokens; short enough to catch a repeated line of working, long enough that ordinary prose scores near zero

# The order of a line in metrics.jsonl and timings.jsonl, by what stands before the slash.
SECTIONS = (
    "judged",
    "kept",
    "sampler",
    "ledger",
    "length",
    "policy",
    "mismatch",
    "canary",
    "repetition",
    "verifier",
    "eval",
    "seconds",
    "slowest_rank",
    "tokens_per_s",
    "tflops_per_s",
    "mfu",
    "memory",
)


def in_order(metrics: Metrics) -> Metrics:
    """The same figures by section, unknown sections last; within a section as they came."""
    rank = {section: place for place, section in enumerate(SECTIONS)}
    return dict(sorted(metrics.items(), key=lambda item: rank.get(item[0].partition("/")[0], len(rank))))


def step_metrics(judged: Sequence[Group], kept: Sequence[Group], buffer_start: int | None) -> Metrics:
    """All figures of a step that come from its groups: of all that were judged, and again of those trained on.

    `buffer_start` is L_max - L_cache of Eq. 13 in tokens, None where no such penalty is given.
    """
    return {
        **prefixed("judged", rollout_metrics(judged)),
        **prefixed("kept", rollout_metrics(kept)),
        **prefixed("length", length_metrics(judged, buffer_start)),
        **prefixed("verifier", verifier_metrics(judged)),
        "repetition/ngram_share": ngram_share(judged),
    }


def prefixed(prefix: str, metrics: Mapping[str, float | int | None]) -> Metrics:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def rollout_metrics(groups: Sequence[Group]) -> Metrics:
    """Means over all rollouts: share of right answers, reward (Eq. 7 + Eq. 13), Eq. 13 by itself, shares of completions
    that ended by themselves and that were cut at max_tokens."""
    rollouts = rollouts_of(groups)
    truncated = mean([rollout.completion.truncated for rollout in rollouts])
    return {
        "accuracy": mean([is_right(rollout) for rollout in rollouts]),
        "reward": mean([rollout.reward for rollout in rollouts]),
        "length_penalty": mean([rollout.length_penalty for rollout in rollouts]),
        "completed": None if truncated is None else 1 - truncated,
        "truncated": truncated,
    }


def length_metrics(groups: Sequence[Group], buffer_start: int | None) -> Metrics:
    """Tokens of the completions, end of sequence included; percentiles interpolate linearly. `in_buffer` is the share
    of completions longer than `buffer_start` tokens, None without one."""
    lengths = [len(rollout.completion.token_ids) for rollout in rollouts_of(groups)]
    if not lengths:
        return dict.fromkeys(("mean", "p50", "p95", "max", "in_buffer"))
    p50, p95 = np.percentile(lengths, [50, 95])
    in_buffer = None if buffer_start is None else mean([length > buffer_start for length in lengths])
    return {"mean": mean(lengths), "p50": float(p50), "p95": float(p95), "max": max(lengths), "in_buffer": in_buffer}


def verifier_metrics(groups: Sequence[Group]) -> Metrics:
    """Verdicts of each outcome, the failed ones by their cause."""
    verdicts = [rollout.verdict for rollout in rollouts_of(groups)]
    outcomes = [verdict.outcome for verdict in verdicts]
    rules = [verdict.rule.partition(":")[0] for verdict in verdicts if verdict.outcome is Outcome.FAILED]
    causes = [rule if rule in FAILURES else "other" for rule in rules]
    return {
        **{outcome.value: outcomes.count(outcome) for outcome in Outcome},
        **{f"failed_{cause}": causes.count(cause) for cause in FAILURES},
        "failed_share": mean([outcome is Outcome.FAILED for outcome in outcomes]),
    }


def ngram_share(groups: Sequence[Group]) -> float | None:
    """Repeated n-gram share, averaged over the completions."""
    return mean([repeated_ngram_share(rollout.completion.token_ids) for rollout in rollouts_of(groups)])


def repeated_ngram_share(token_ids: Sequence[int], n: int = NGRAM) -> float:
    """Share of the n-grams of one completion that occurred before in it, 0 to 1; 0 where it is too short to have any.

    >>> repeated_ngram_share([7, 8, 7, 8, 7], n=2)  # 78 87 78 87: the last two
    0.5
    """
    ngrams = len(token_ids) - n + 1
    if ngrams < 1:
        return 0.0
    different = len(set(zip(*(token_ids[start:] for start in range(n)), strict=False)))
    return (ngrams - different) / ngrams


def rollouts_of(groups: Sequence[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def is_right(rollout: Rollout) -> bool:
    return rollout.verdict.outcome is Outcome.RIGHT


def mean(values: Sequence[float]) -> float | None:
    return fsum(values) / len(values) if values else None


def num_tokens(groups: Sequence[Group]) -> int:
    return sum(len(rollout.completion.token_ids) for rollout in rollouts_of(groups))


def per_second(count: float, seconds: float) -> float | None:
    return count / seconds if seconds else None
