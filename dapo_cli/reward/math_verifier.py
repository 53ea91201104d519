"""The rule reward (Eq. 7): is the stated final answer equivalent to the reference? From cheap to dear, each step sound.

1. the same text, in one spelling (`latex`);
2. the same number, in exact rational arithmetic (`exact`);
3. the same choice letter or words (`plain`), or list, tuple, region or matrix, part by part (`parts`);
4. the same plain expression or equation (`expression`);
5. the same by math-verify's grammar (`symbolic`).

A text too long, too deep or too large to be a final answer is WRONG, and the rule says so. docs/verifier.md lists the
decisions. Model text reaches no eval, no parse_expr and no string sympify anywhere.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from dapo_cli.reward import expression, parts, plain, symbolic
from dapo_cli.reward.boxes import unwrapped
from dapo_cli.reward.exact import TooLargeError
from dapo_cli.reward.extract import MAX_ANSWER_CHARS, clean, extract
from dapo_cli.reward.latex import canonical, without_text
from dapo_cli.reward.naming import core
from dapo_cli.types import Outcome, Verdict

warm_up = symbolic.warm_up

MAX_COMPARISONS = 2_000  # of parts, in one verdict
MAX_EXPRESSIONS = 200  # of them, by the last two tiers

_PLAIN_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?", re.ASCII)  # the most frequent answer, compared at once
_YES_OR_NO = re.compile(r"(?i:yes|no)|\\text\s*\{\s*(?i:yes|no)\s*\}")
_BLANK = re.compile(r"(?<![\d,])\s+|\s+(?!\d)")
_GAUSS_BRACKETS = re.compile(r"(?<!\\sqrt)\[[^\[\]]*(?:[a-zA-Z]|/)[^\[\]]*\]")  # [n/2] may be the whole part of n/2


def verify(response: str, answer: str) -> Verdict:
    """Judge a completion's text against the reference answer.

    The verdict's rule is how the answer was found and what decided, such as "box:number" or "prose:too_large".
    """
    extraction = extract(response)
    if extraction.answer is None:
        return Verdict(Outcome.WRONG, None, extraction.rule)
    equal, rule = equivalent(extraction.answer, answer)
    return Verdict(Outcome.RIGHT if equal else Outcome.WRONG, extraction.answer, f"{extraction.rule}:{rule}")


def equivalent(given: str, reference: str) -> tuple[bool, str]:
    """Whether two stated answers are the same, and the rule that decided."""
    if _PLAIN_NUMBER.fullmatch(given) and _PLAIN_NUMBER.fullmatch(reference):
        return (True, "text") if given == reference else (Fraction(given) == Fraction(reference), "number")
    if max(len(given), len(reference)) > 2 * MAX_ANSWER_CHARS:
        return False, "too_long"
    given, reference = _bare(given), _bare(reference)
    if not given or not reference:
        return False, "empty"
    if max(len(given), len(reference)) > MAX_ANSWER_CHARS:
        return False, "too_long"
    if given == reference:
        return True, "text"
    try:
        given, reference = core(canonical(given)), core(canonical(reference))
        if max(symbolic.nesting(given), symbolic.nesting(reference)) > symbolic.MAX_NESTING:
            return False, "too_deep"  # the comparison of parts recurses, too
        return _Comparison().decide(given, reference)
    except TooLargeError:
        return False, "too_large"
    except RecursionError:
        return False, "too_deep"


def _bare(answer: str) -> str:
    r"""A reference comes with or without `$` and `\boxed{}`; neither is part of the answer."""
    return clean(unwrapped(clean(answer) or "")) or ""


class _Comparison:
    """One verdict's comparisons of canonical texts and their parts, which are counted: no list may cost too much."""

    def __init__(self) -> None:
        self.comparisons = 0
        self.expressions = 0

    def same(self, given: str, reference: str) -> bool:
        return self.decide(given, reference)[0]

    def decide(self, given: str, reference: str) -> tuple[bool, str]:
        self.comparisons += 1
        if self.comparisons > MAX_COMPARISONS or self.expressions > MAX_EXPRESSIONS:
            raise TooLargeError("too many parts")
        if _squeezed(given) == _squeezed(reference) and _squeezed(given):
            return True, "text"
        if _YES_OR_NO.fullmatch(reference):
            return _word(given) == _word(reference), "words"
        numbers = plain.numbers(given, reference)
        if numbers is not None:
            return numbers, "number"
        for name, compare in _COMPARISONS:
            equal = compare(given, reference, self.same)
            if equal is not None:
                return equal, name
        self.expressions += 1
        given, reference = without_text(given), without_text(reference)
        problem = symbolic.too_complex(given) or symbolic.too_complex(reference)
        if problem is None and bool(_GAUSS_BRACKETS.search(given)) != bool(_GAUSS_BRACKETS.search(reference)):
            problem = "unreadable"
        if problem:
            return False, problem
        given, reference = symbolic.with_fractions(given), symbolic.with_fractions(reference)
        plain_equal = expression.equal(given, reference)
        if plain_equal is not None:
            return plain_equal, "expression"
        equal = symbolic.equal(given, reference)
        return (False, "unreadable") if equal is None else (equal, "symbolic")


def _word(text: str) -> str:
    return without_text(text).strip().rstrip("!.").casefold()


def _squeezed(text: str) -> str:
    """Without blanks that mean nothing: `1 4/5` and `32, 349` are no 14/5 and no 32,349."""
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", _BLANK.sub("", text))


def _whole(compare: Callable[[str, str], bool | None]) -> Callable[[str, str, parts.Same], bool | None]:
    """A comparison that looks at no parts."""
    return lambda given, reference, _: compare(given, reference)


_COMPARISONS: list[tuple[str, Callable[[str, str, parts.Same], bool | None]]] = [
    ("choice", _whole(plain.choice)),
    ("assigned", parts.assigned),
    ("equal_chain", parts.equal_chain),
    ("base", _whole(plain.base)),
    ("matrix", parts.matrices),
    ("region", parts.regions),
    ("words", _whole(plain.words)),
    ("chain", parts.chains),
    ("units", parts.units),
    ("ratio", parts.ratios),
    ("list", parts.lists),
]
