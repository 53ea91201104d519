"""Answers that need no taking apart: one number, one choice letter, one numeral in a base, or words.

Each comparison says whether two canonical texts are the same, or None where they are not of its kind.
"""

import re
from fractions import Fraction

from dapo_cli.reward import structure
from dapo_cli.reward.exact import exact_number, without_percent
from dapo_cli.reward.latex import without_text
from dapo_cli.reward.units import without_unit

_CHOICE = re.compile(r"\(?([A-J])\)?|\(([A-J])\)\s*\S.*", re.DOTALL)  # C, (C), (C) 42
# "C", "(C)", "c", "Option C", "C. 42", "(C) 42"; what stands behind must name no other letter and take nothing back.
_GIVEN_CHOICE = re.compile(
    r"(?:(?i:option|choice|answer)\s+)?(?:\((?P<bracketed>[A-J])\)|(?P<bare>[A-J])\)?)"
    r"(?P<behind>\s*[.):-].*|\s+-?[\d\\(].*|)|\(?(?P<small>[a-j])\)?",
    re.DOTALL,
)
_TAKEN_BACK = re.compile(
    r"(?<![a-zA-Z\\])[A-Z](?![a-zA-Z])|(?<![a-zA-Z\\])[a-j][.)]|[∨Ⓐ-ⓩ]"
    r"|\b(?i:or|not|none|neither|incorrect|wrong|false|cannot|can't|also|maybe|else|ruled|eliminated|excluded|second)\b"
    r"|\bno,|\\(?:[gl]e|ne|neg|lnot)(?![a-zA-Z])"
)
_BASE = re.compile(r"[({]?0*((?=[A-F]*\d)[\dA-F]+(?:\.[\dA-F]+)?)[)}]?\s*_\s*\{?\s*(\d+)\s*\}?")
_TOKENS = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|-?\d+(?:[.,/]\d+)*|[^\w\s,.;:()'\"$\\{}]")
_ONLY_TEXT = re.compile(r"\s*\\text\s*\{([^{}]*)\}\s*")
# Words outside of \text: several, one of them longer than two letters, or one that is no product of letters.
_WORD = r"[^\W\d_]+(?:['’-][^\W\d_]+)*"
_WORDS = re.compile(rf"(?=.*[^\W\d_]{{3}}){_WORD}(?:[\s,.]+{_WORD})+[.!]?|[^\W\d_]{{4,}}[.!]?|[A-Z][a-z]+[.!]?")


_NOTHING = re.compile(r"\s*(?:\\text\s*\{)?(?:\\emptyset|(?i:no (?:real )?solutions?|(?:the )?empty set))\s*[.}]*\s*")


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
    """One letter, with whatever stands beside it in the given answer; or several letters (`BC`), in any order."""
    several = _letters(reference)
    in_order = sorted(several) == [char for char in reference if char in several]  # "DABC" is a ranking
    if several and in_order and (letters := _letters(given)):
        return letters == several
    wanted = _CHOICE.fullmatch(without_text(reference).strip())
    if wanted is None:
        return None
    found = _GIVEN_CHOICE.fullmatch(re.sub(r"[*${}]", "", without_text(given)).strip())
    if found is None:
        return None
    letter = found["bracketed"] or found["bare"] or found["small"].upper()
    return letter == (wanted[1] or wanted[2]) and not _TAKEN_BACK.search(found["behind"] or "")


def _letters(text: str) -> set[str]:
    """Of `BC`, `B, C` or `(B) and (C)`: two or more different capital letters from A to J, nothing else."""
    bare = re.sub(r"\\[,; ]|\band\b|[\s,;()、]", "", without_text(text))
    return set(bare) if re.fullmatch(r"[A-J]{2,}", bare) and len(set(bare)) == len(bare) else set()


def base(given: str, reference: str) -> bool | None:
    r"""`204_5`: the same digits in the same base; digits without a base are taken to be in the reference's."""
    found, wanted = (_BASE.fullmatch(without_text(text).strip()) for text in (given, reference))
    if wanted is not None:
        return found.groups() == wanted.groups() if found else without_text(given).strip() == wanted[1]
    return False if found is not None else None


def words(given: str, reference: str) -> bool | None:
    r"""References in words, inside `\text{}` or not: the same words and signs in the same order, case aside."""
    if _NOTHING.fullmatch(given) and _NOTHING.fullmatch(reference):
        return True
    if not _is_prose(reference):
        return False if _is_prose(given) and structure.items(given) is None and not without_unit(given)[1] else None
    return _tokens(given) == _tokens(reference)


def _is_prose(text: str) -> bool:
    if only_text := _ONLY_TEXT.fullmatch(text):
        return re.search(r"[^\W\d_]{2,}", only_text[1]) is not None
    return _WORDS.fullmatch(without_text(text).strip()) is not None


def _tokens(text: str) -> list[str]:
    return [token.casefold() for token in _TOKENS.findall(without_text(text).strip().rstrip("!."))]
