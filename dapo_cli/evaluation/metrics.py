"""Figures of an evaluation as pure functions of judged problems: avg@k, pass@j, cons@k, rates, lengths, intervals.

Needs numpy alone. A figure is a mean over problems, each of which has the same number k of completions; its interval
is the percentile bootstrap over problems (Efron and Tibshirani 1993, chapter 13), since problems, not completions, are
what another test set would draw anew. docs/evaluation.md has the formulas.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
CHUNK_INDICES = 2_000_000  # of resampled problems held at a time: 8 MB
MAX_PARTS = 50  # of a subset column: one with more values names problems, not kinds of problems

PART_COLUMNS = ("source", "subject", "level")


@dataclass(frozen=True)
class ProblemScore:
    """A problem's judged completions, counted. `tokens` of each completion; `consensus` is cons@k, and None, as
    `no_answer`, where the verifier tells no answers. `voted` are the top-voted answers."""

    uid: str
    question: str
    answer: str
    source: str
    subject: str | None
    level: str | None
    right: int
    failed: int
    truncated: int
    no_answer: int | None
    tokens: tuple[float, ...]
    consensus: float | None
    voted: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.tokens)

    @property
    def rate(self) -> float:
        """avg@k of this problem; a verdict that failed counts as not right."""
        return self.right / self.samples


def pass_at(right: int, samples: int, tries: int) -> float:
    """The chance that `tries` completions drawn without replacement out of `samples` hold one of the `right`:
    1 - C(n - c, j) / C(n, j), the unbiased estimator of pass@j (Chen et al. 2021, arXiv:2107.03374, equation 1).

    >>> [pass_at(1, 4, tries) for tries in (1, 2, 4)]
    [0.25, 0.5, 1.0]
    """
    total = comb(samples, tries)
    return (total - comb(samples - right, tries)) / total  # exact integers up to the one division


def tries_of(samples: int) -> list[int]:
    """The j of pass@j: powers of two below k, and k.

    >>> tries_of(32), tries_of(6), tries_of(1)
    ([1, 2, 4, 8, 16, 32], [1, 2, 4, 6], [1])
    """
    powers = [2**exponent for exponent in range(samples.bit_length()) if 2**exponent < samples]
    return [*powers, samples]


class AnswerClass(NamedTuple):
    """Equivalent answers of a problem, named by the first of them."""

    answer: str
    right: bool


def consensus(votes: Sequence[AnswerClass | None]) -> float:
    """Self-consistency (Wang et al. 2022, arXiv:2203.11171): 1 where most votes went to the right answer, 0 where to
    another one; of classes that tie for the most votes, the share that is right. A None votes for nothing, and without
    any vote the score is 0.

    >>> four, five, six = AnswerClass("4", True), AnswerClass("5", False), AnswerClass("6", False)
    >>> consensus([four, four, five, None]), consensus([four, five, six, None]), consensus([None, None])
    (1.0, 0.3333333333333333, 0.0)
    """
    top = top_voted(votes)
    return sum(found.right for found in top) / len(top) if top else 0.0


def top_voted(votes: Sequence[AnswerClass | None]) -> list[AnswerClass]:
    """The classes with the most votes, in the order of their first one."""
    counts = Counter(vote for vote in votes if vote is not None)
    most = max(counts.values(), default=0)
    return [found for found, count in counts.items() if count == most]


def bootstrap_intervals(
    columns: Mapping[str, Sequence[float]], seed: int, resamples: int = RESAMPLES
) -> dict[str, tuple[float, float] | None]:
    """(low, high) of the mean of each column, whose values belong to the same problems in the same order: the
    percentiles of its mean over problems drawn with replacement. None of fewer than two problems, which show no spread.

    All columns see the same resamples. The result is a function of the arguments.
    """
    problems = len(next(iter(columns.values())))
    if problems < 2:
        return dict.fromkeys(columns)
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    means = {name: np.empty(resamples) for name in columns}
    rng = np.random.Generator(np.random.PCG64(seed))
    rows = max(1, CHUNK_INDICES // problems)
    for start in range(0, resamples, rows):
        stop = min(start + rows, resamples)
        drawn_RP = rng.integers(0, problems, (stop - start, problems), dtype=np.int32)
        for name, values_P in arrays.items():
            means[name][start:stop] = values_P[drawn_RP].mean(axis=1)
    bounds = {name: np.quantile(found, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)) for name, found in means.items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def problem_figures(score: ProblemScore) -> dict[str, float]:
    """One problem's part of every figure that is a mean over problems."""
    k = score.samples
    found = {f"avg@{k}": score.rate}
    found |= {f"pass@{tries}": pass_at(score.right, k, tries) for tries in tries_of(k)}
    if score.consensus is not None:
        found[f"cons@{k}"] = score.consensus
    found["truncated"] = score.truncated / k
    if score.no_answer is not None:
        found["no_answer"] = score.no_answer / k
    return found | {"verifier_failed": score.failed / k, "length_mean": fmean(score.tokens)}


def figures(scores: Sequence[ProblemScore], seed: int) -> dict[str, Any]:
    """All figures of some problems: `{"value", "low", "high"}` of each mean over problems, and quantiles of the lengths
    (tokens) over all completions. `low` and `high` bound the 95 % interval; None where there is none."""
    rows = [problem_figures(score) for score in scores]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    intervals = bootstrap_intervals(columns, seed)
    found: dict[str, Any] = {}
    for name, values in columns.items():
        low, high = intervals[name] or (None, None)
        found[name] = {"value": fmean(values), "low": low, "high": high}
    lengths = [tokens for score in scores for tokens in score.tokens]
    median, p95 = np.quantile(lengths, (0.5, 0.95))
    return found | {"length_median": float(median), "length_p95": float(p95), "length_max": max(lengths)}


def parts(scores: Sequence[ProblemScore]) -> dict[str, dict[str, list[ProblemScore]]]:
    """The problems by source, subject and level, where these differ between them: column -> value -> problems. Numbers
    stand in order; problems without a value are under "none"."""
    found = {}
    for column in PART_COLUMNS:
        by_value: dict[str, list[ProblemScore]] = {}
        for score in scores:
            by_value.setdefault(getattr(score, column) or "none", []).append(score)
        if 1 < len(by_value) <= min(MAX_PARTS, len(scores) - 1):
            found[column] = dict(sorted(by_value.items(), key=lambda item: _natural(item[0])))
    return found


def _natural(value: str) -> tuple[float, str]:
    """Levels 2 and 10 in this order, words behind all numbers."""
    digits = value.lower().removeprefix("level").strip()
    return (float(digits) if digits.isdecimal() else float("inf"), value)
