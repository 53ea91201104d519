"""Procedural multi-step integer arithmetic: the data source behind `data: arithmetic`."""

import hashlib
import random
from dataclasses import dataclass

HELD_OUT_SHARE = 0.1
MAX_TOTAL = 60  # keeps running totals within what a 1M-parameter model learns in minutes


@dataclass(frozen=True)
class Problem:
    """A left-to-right sum, `terms[0] + terms[1] + ...`; a negative term is a subtraction.

    >>> problem = Problem((6, 9, -8))
    >>> problem.expression, problem.totals
    ('6+9-8', [6, 15, 7])
    """

    terms: tuple[int, ...]

    @property
    def expression(self) -> str:
        return str(self.terms[0]) + "".join(f"{term:+d}" for term in self.terms[1:])

    @property
    def totals(self) -> list[int]:
        """Running totals, the first term included; the last one is the answer."""
        totals = [self.terms[0]]
        for term in self.terms[1:]:
            totals.append(totals[-1] + term)
        return totals

    @property
    def answer(self) -> int:
        return sum(self.terms)


def is_held_out(problem: Problem) -> bool:
    """Whether a problem belongs to evaluation; depends on its text alone, so that no seed mixes the two sets."""
    digest = hashlib.sha256(problem.expression.encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def random_problem(rng: random.Random, min_terms: int, max_terms: int) -> Problem:
    """One-digit terms 1..9, uniform length, every running total within 0..MAX_TOTAL."""
    terms = [rng.randint(1, 9)]
    for _ in range(rng.randint(min_terms, max_terms) - 1):
        total = sum(terms)
        terms.append(rng.choice([term for term in range(-9, 10) if term and 0 <= total + term <= MAX_TOTAL]))
    return Problem(tuple(terms))


def problems(seed: int, count: int, *, held_out: bool, min_terms: int = 2, max_terms: int = 7) -> list[Problem]:
    """`count` different problems of one side of the split.

    Raises ValueError when so few terms cannot give that many different problems.
    """
    rng = random.Random(f"arithmetic/{seed}/{held_out}")
    found: dict[Problem, None] = {}
    for _ in range(100 * count):
        if len(found) == count:
            break
        problem = random_problem(rng, min_terms, max_terms)
        if is_held_out(problem) == held_out:
            found[problem] = None
    if len(found) < count:
        raise ValueError(
            f"only {len(found)} different problems of {min_terms} to {max_terms} terms found, {count} asked for"
        )
    return list(found)
