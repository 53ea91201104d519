"""Answers that need no taking apart: one number, one choice letter, one numeral in a base, or words.

Each comparison says whether two canonical texts are the same, or None where they are not of its kind.
"""

import re
from fractions import Fraction

from dapo_cli.reward import structure
from dapo_cli.reward.exact import exact_number, without_percent
from dapo_cli.reward.latex import without_text
from dapo_cli.reward.units import without_unit

_CHOICE = re.compile(r"\(?([A-J])\)?")
# "C", "(C)", "Option C", "C. 42" or "(C) 42", without a second letter behind it.
_GIVEN_CHOICE = re.compile(
    r"(?:(?i:option|choice|answer)\s+)?\(?([A-J])\)?(?!.*(?<![A-Za-z\\])[A-J](?![A-Za-z]))(?:\s*[.):].*|\s+-?[\d\\].*)?",
    re.DOTALL,
)
_BASE = re.compile(r"\(?(\d[\dA-F]*)\)?\s*_\s*\{?\s*(\d+)\s*\}?")
_WORDS = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*|-?\d+(?:[.,/]\d+)*")
_PROSE = re.compile(r"[^\W\d_]{2,}")


def numbers(given: str, reference: str) -> bool | None:
    """Exact comparison where both sides are numbers, with or without a percent sign."""
    (left, left_percent), (right, right_percent) = _number(given), _number(reference)
    if left is None or right is None:
        return None
    if left_percent == right_percent:
        return left == right
    if right_percent:  # a bare 28 answers a question about percent, as does 0.28
        return left in (right, right / 100)
    return left / 100 == right


def _number(text: str) -> tuple[Fraction | None, bool]:
    text, percent = without_percent(text)
    return exact_number(text), percent


def choice(given: str, reference: str) -> bool | None:
    wanted = _CHOICE.fullmatch(without_text(reference).strip())
    if wanted is None:
        return None
    found = _GIVEN_CHOICE.fullmatch(re.sub(r"[*$]", "", without_text(given)).strip())
    return None if found is None else found[1] == wanted[1]


def base(given: str, reference: str) -> bool | None:
    r"""`204_5`: the same digits in the same base; digits without a base are taken to be in the reference's."""
    found, wanted = (_BASE.fullmatch(without_text(text).strip()) for text in (given, reference))
    if wanted is not None:
        return found.groups() == wanted.groups() if found else without_text(given).strip() == wanted[1]
    return False if found is not None else None


def words(given: str, reference: str) -> bool | None:
    r"""References in words, inside `\text{}` or not: the same words in the same order, case aside."""
    if not _is_prose(reference):
        return False if _is_prose(given) and structure.items(given) is None and not without_unit(given)[1] else None
    return _word_list(given) == _word_list(reference)


def _is_prose(text: str) -> bool:
    bare = without_text(text)
    only_text = re.fullmatch(r"\s*\\text\s*\{([^{}]*)\}\s*", text) is not None and _PROSE.search(bare) is not None
    if "\\" in bare or any(char in bare for char in "=^_{}"):
        return False
    words = _PROSE.findall(bare)
    return only_text or (
        bool(words) and not any(char.isdigit() for char in bare) and any(len(word) > 2 for word in words)
    )


def _word_list(text: str) -> list[str]:
    return [word.casefold() for word in _WORDS.findall(without_text(text))]
