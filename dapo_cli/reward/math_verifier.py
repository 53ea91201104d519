"""The rule reward (Eq. 7): is the stated final answer equivalent to the reference? From cheap to dear, each step sound.

1. the same text, in one spelling (`latex`);
2. the same number, in exact rational arithmetic (`exact`);
3. the same choice letter or words (`plain`), or list, tuple, region or matrix, part by part (`structure`);
4. the same expression, by the parser of math-verify and sympy (`symbolic`).

A text too long, too deep or too large to be a final answer is WRONG, and the rule says so. docs/verifier.md lists the
decisions. Model text reaches no eval, no parse_expr and no string sympify anywhere.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from dapo_cli.reward import plain, structure, symbolic
from dapo_cli.reward.exact import TooLargeError
from dapo_cli.reward.extract import MAX_ANSWER_CHARS, clean, extract, unwrapped
from dapo_cli.reward.latex import canonical, without_text
from dapo_cli.reward.units import without_unit
from dapo_cli.types import Outcome, Verdict

warm_up = symbolic.warm_up

T = TypeVar("T")

MAX_PARTS = 30  # of a list; matching unordered parts costs the square of it
_ASSIGNED = re.compile(
    r"\s*(?:\\?[a-zA-Z]+(?:_\{?\w+\}?)?'*"  # x, x_1, \theta, y'
    r"|[a-zA-Z](?:\^\{?-1\}?)?\s*\([^()=]*\)"  # f(x), f^{-1}(x)
    r"|\([a-z](?:,\s*[a-z])+\)"  # (x,y)
    r"|(?:m\s*)?\\angle\s*\{?[A-Z]{1,3}\}?)\s*=(?!=)\s*"
)
_TUPLE_ASSIGNED = re.compile(r"\s*\(\s*([a-zA-Z](?:\s*,\s*[a-zA-Z])+)\s*\)\s*=\s*\((.*)\)\s*")
_EQUALS = re.compile(r"(?<![<>!\\=])=")
_BLANK = re.compile(r"(?<![\d,])\s+|\s+(?!\d)")


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
    given, reference = _bare(given), _bare(reference)
    if not given or not reference:
        return False, "empty"
    if given == reference:
        return True, "text"
    if max(len(given), len(reference)) > MAX_ANSWER_CHARS:
        return False, "too_long"
    if max(symbolic.nesting(given), symbolic.nesting(reference)) > symbolic.MAX_NESTING:
        return False, "too_deep"  # the comparison of parts recurses, too
    try:
        return _equivalent(canonical(given), canonical(reference))
    except TooLargeError:
        return False, "too_large"


def _bare(answer: str) -> str:
    r"""A reference comes with or without `$` and `\boxed{}`; neither is part of the answer."""
    return clean(unwrapped(clean(answer) or "")) or ""


def _equivalent(given: str, reference: str) -> tuple[bool, str]:
    if _squeezed(given) == _squeezed(reference) and _squeezed(given):
        return True, "text"
    numbers = plain.numbers(given, reference)
    if numbers is not None:
        return numbers, "number"
    for name, compare in _COMPARISONS:
        equal = compare(given, reference)
        if equal is not None:
            return equal, name
    given, reference = without_text(given), without_text(reference)
    problem = symbolic.too_complex(given) or symbolic.too_complex(reference)
    return (False, problem) if problem else (symbolic.equal_expressions(given, reference), "symbolic")


def _same(given: str, reference: str) -> bool:
    return _equivalent(given, reference)[0]


def _squeezed(text: str) -> str:
    """Without blanks that mean nothing: `1 4/5` and `32, 349` are no 14/5 and no 32,349."""
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", _BLANK.sub("", text))


def _units(given: str, reference: str) -> bool | None:
    """Units, currency and degrees count only where both sides have them."""
    (left, left_unit), (right, right_unit) = without_unit(given), without_unit(reference)
    if not left_unit and not right_unit:
        return None
    if left_unit and right_unit and left_unit != right_unit:
        return False
    return _same(left, right)


def _assigned(given: str, reference: str) -> bool | None:
    """`x = 5` answers `5` and the other way about; two assignments must name the same thing."""
    if _TUPLE_ASSIGNED.fullmatch(given) and len(_EQUALS.findall(reference)) > 1:
        return None
    if _TUPLE_ASSIGNED.fullmatch(reference) and len(_EQUALS.findall(given)) > 1:
        return None
    left, right = _ASSIGNED.match(given), _ASSIGNED.match(reference)
    if left is None and right is None:
        return None
    if any(len(_EQUALS.findall(text)) != 1 for text, match in ((given, left), (reference, right)) if match):
        return None
    if left and right:
        if _squeezed(left.group()) == _squeezed(right.group()):
            return _same(given[left.end() :], reference[right.end() :])
        return None
    if left and not _EQUALS.search(reference):
        return _same(given[left.end() :], reference)
    if right and not _EQUALS.search(given):
        return _same(given, reference[right.end() :])
    return None


def _regions(given: str, reference: str) -> bool | None:
    left, right = structure.region(given), structure.region(reference)
    if right is None or left is None:
        return None
    if len(left) != len(right):
        return False
    return _matched(left, right, _same_piece)


def _same_piece(left: structure.Piece, right: structure.Piece) -> bool:
    return left.closed == right.closed and _same(left.low, right.low) and _same(left.high, right.high)


def _chains(given: str, reference: str) -> bool | None:
    left, right = structure.ascending_chain(given), structure.ascending_chain(reference)
    if left is None or right is None or left[1] != right[1]:
        return None
    return all(_same(one, other) for one, other in zip(left[0], right[0], strict=True)) or None


def _ratios(given: str, reference: str) -> bool | None:
    left, right = structure.ratio(given), structure.ratio(reference)
    if left is None or right is None:
        return None
    return len(left) == len(right) and all(_same(one, other) for one, other in zip(left, right, strict=True))


def _lists(given: str, reference: str) -> bool | None:
    r"""Lists, sets, tuples and `\pm`: in order where the reference is a tuple, or where one side alone has names."""
    left, right = structure.items(_named(given)), structure.items(_named(reference))
    left_values, right_values = _values(given, left), _values(reference, right)
    if left is None and right is None and len(left_values) == len(right_values) == 1:
        return None
    if len(left_values) != len(right_values) or len(left_values) > MAX_PARTS:
        return False
    if left and right and {left.brackets, right.brackets} == {"[]", "{}"}:
        return False  # an interval or a vector is no set
    named = _names(left_values), _names(right_values)
    if all(named):
        return _matched(left_values, right_values, _same)
    plain_left = [_ASSIGNED.sub("", value, count=1) for value in left_values]
    plain_right = [_ASSIGNED.sub("", value, count=1) for value in right_values]
    if any(named) or (right is not None and right.ordered):
        in_order = zip(plain_left, plain_right, strict=True)
        return (left is None or left.brackets != "{}") and all(_same(one, other) for one, other in in_order)
    return (left is None or not left.ordered) and _matched(plain_left, plain_right, _same)


def _named(text: str) -> str:
    """`(p, q) = (3, 2)` as `p=3, q=2`."""
    match = _TUPLE_ASSIGNED.fullmatch(text)
    if match is None:
        return text
    names, values = match[1].split(","), structure.split_top(match[2])
    if len(names) != len(values):
        return text
    return ", ".join(f"{name.strip()}={value}" for name, value in zip(names, values, strict=True))


def _names(values: list[str]) -> bool:
    """Whether each value is assigned to a name of its own, so that their order does not matter but the names do."""
    matches = [_ASSIGNED.match(value) for value in values]
    return all(matches) and len({_squeezed(match.group()) for match in matches if match}) == len(values) > 1


def _values(text: str, items: structure.Items | None) -> list[str]:
    if items is None:
        return list(structure.plus_minus(_ASSIGNED.sub("", text, count=1)))
    if items.ordered:
        return list(items.values)
    values = [value for part in items.values for value in structure.plus_minus(part)]
    distinct = {_squeezed(re.sub(r",\s+", ",", value)): value for value in values}
    return list(distinct.values())  # a value listed twice is listed


def _matched(left: Sequence[T], right: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    """Whether each of `left` equals a different one of `right`; equality is transitive, so the first match will do."""
    remaining = list(right)
    for one in left:
        index = next((index for index, other in enumerate(remaining) if same(one, other)), None)
        if index is None:
            return False
        del remaining[index]
    return not remaining


def _matrices(given: str, reference: str) -> bool | None:
    left, right = structure.matrix(given), structure.matrix(reference)
    if left is None or right is None:
        return None
    if [len(row) for row in left] != [len(row) for row in right]:
        return False
    return all(_same(one, other) for rows in zip(left, right, strict=True) for one, other in zip(*rows, strict=True))


_COMPARISONS: list[tuple[str, Callable[[str, str], bool | None]]] = [
    ("choice", plain.choice),
    ("base", plain.base),
    ("matrix", _matrices),
    ("words", plain.words),
    ("assigned", _assigned),
    ("region", _regions),
    ("chain", _chains),
    ("ratio", _ratios),
    ("units", _units),
    ("list", _lists),
]
