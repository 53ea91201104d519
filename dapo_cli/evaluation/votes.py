"""Which stated answers of a problem are one answer: the classes that cons@k votes by."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dapo_cli.config.schema import MathReward, RewardConfig
from dapo_cli.evaluation.metrics import AnswerClass
from dapo_cli.reward import math_verifier
from dapo_cli.reward.modes import build_verifier
from dapo_cli.reward.pool import VerifierPool
from dapo_cli.types import Case, Outcome, Verdict

Same = Callable[[Sequence[tuple[str, str]]], list[bool]]
"""Of (answer, reference) pairs, whether the verifier holds the one for the other."""


class Vote(NamedTuple):
    """A completion's stated answer, None where it states none, and whether it is right."""

    answer: str | None
    right: bool


def answer_classes(problems: Sequence[Sequence[Vote]], same: Same) -> list[list[AnswerClass | None]]:
    """For each problem the class of each vote, None for a vote without an answer.

    Right answers are equivalent to the reference, and so one class. Of the others, equal texts are one answer, and each
    joins the first class, in the order of the samples, whose first answer the verifier takes for its reference.
    Problems advance together, one undecided answer of each at a time, so that `same` gets many pairs at once.
    """
    firsts: list[dict[str, str]] = [{} for _ in problems]  # wrong answer -> the first of its class
    waiting = [_wrong_answers(votes) for votes in problems]
    while any(waiting):
        asked = {place: answers.pop(0) for place, answers in enumerate(waiting) if answers}
        pairs = [
            (place, answer, first) for place, answer in asked.items() for first in dict.fromkeys(firsts[place].values())
        ]
        equal = same([(answer, first) for _, answer, first in pairs]) if pairs else []
        for (place, answer, first), is_same in zip(pairs, equal, strict=True):
            if is_same:
                firsts[place].setdefault(answer, first)
        for place, answer in asked.items():
            firsts[place].setdefault(answer, answer)
    return [_classes(votes, known) for votes, known in zip(problems, firsts, strict=True)]


def _wrong_answers(votes: Sequence[Vote]) -> list[str]:
    return list(dict.fromkeys(vote.answer for vote in votes if vote.answer is not None and not vote.right))


def _classes(votes: Sequence[Vote], firsts: dict[str, str]) -> list[AnswerClass | None]:
    right = next((vote.answer for vote in votes if vote.right and vote.answer is not None), "")
    return [
        None
        if vote.answer is None
        else AnswerClass(right, True)
        if vote.right
        else AnswerClass(firsts[vote.answer], False)
        for vote in votes
    ]


class _SameByVerifier:
    """The math verifier's equivalence, in its worker processes: an answer that hangs it costs its time limit, and
    counts as different from others. The workers start with the first pairs."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._pool: VerifierPool | None = None

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        if self._pool is None:
            self._pool = build_verifier(self._config, same_answer)
        verdicts = self._pool.verify([Case("", given, reference) for given, reference in pairs])
        return [verdict.outcome is Outcome.RIGHT for verdict in verdicts]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


def same_answer(prompt: str, completion: str, answer: str) -> Verdict:
    """Of two stated answers; what the workers run."""
    equal, rule = math_verifier.equivalent(completion, answer)
    return Verdict(Outcome.RIGHT if equal else Outcome.WRONG, completion, rule)


@contextmanager
def equivalence(config: RewardConfig) -> Iterator[Same]:
    """Which answers the verifier of this section holds for the same: by value for the math verifier; by the text that
    they extracted for the release's rules, which compare texts, and for users' functions."""
    if not isinstance(config, MathReward):
        yield lambda pairs: [given == reference for given, reference in pairs]
        return
    same = _SameByVerifier(config)
    try:
        yield same
    finally:
        same.close()
