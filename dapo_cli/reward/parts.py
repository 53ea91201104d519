r"""Answers of several parts, compared part by part: names, lists, sets, tuples, `\pm`, regions, ratios, matrices.

Each comparison says whether two canonical texts are the same by `same`, which compares their parts, or None where they
are not of its kind.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from dapo_cli.reward import real_line, structure
from dapo_cli.reward.exact import TooLargeError
from dapo_cli.reward.latex import without_text
from dapo_cli.reward.naming import is_named_tuple, named, num_equals, one_by_one, split_equals, unnamed
from dapo_cli.reward.units import without_unit

T = TypeVar("T")
Same = Callable[[str, str], bool]

MAX_PARTS = 30  # of a list; matching unordered parts costs the square of it
MAX_ENTRIES = 100  # of a matrix
_UNORDERED_NAMES = {"x", "z", r"\lambda"}  # with an index: roots, eigenvalues
_MINUTES = re.compile(r"0\d")  # 1:02 is a time of day
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_MINUS_PLUS = re.compile(r"\\mp(?![a-zA-Z])")


def assigned(given: str, reference: str, same: Same) -> bool | None:
    """`x = 5` answers `5` and the other way about; two assignments must name the same thing."""
    if is_named_tuple(given) or is_named_tuple(reference):
        return None
    left, right = named(given), named(reference)
    if left is None and right is None:
        return None
    if any(num_equals(text) != 1 for text, found in ((given, left), (reference, right)) if found):
        return None
    if left and right:
        return same(left[1], right[1]) if left[0] == right[0] else None
    if left and not num_equals(reference):
        return same(left[1], reference)
    if right and not num_equals(given) and "+" not in right[0]:  # x+y = 1 may be the equation that is asked for
        return same(given, right[1])
    return None


def equal_chain(given: str, reference: str, same: Same) -> bool | None:
    """`m+n = 47+49 = 96` answers 96: every part is equal, but for a name in front."""
    if num_equals(reference):
        return None
    parts = split_equals(unnamed(given))
    if not 2 <= len(parts) <= MAX_PARTS:
        return None
    return all(same(part, reference) for part in parts) or None


def units(given: str, reference: str, same: Same) -> bool | None:
    """Units, currency and degrees count only where both sides have them."""
    (left, left_unit), (right, right_unit) = without_unit(given), without_unit(reference)
    if not left_unit and not right_unit:
        return None
    if left_unit and right_unit and left_unit != right_unit:
        any_scale = "degree" in (left_unit, right_unit) and left_unit[:6] == right_unit[:6] == "degree"
        if not any_scale:
            return False
    return same(left, right)


def regions(given: str, reference: str, same: Same) -> bool | None:
    left, right = real_line.region(given), real_line.region(reference)
    if right is None or left is None:
        return None
    if left.names and right.names and left.names != right.names:
        return False
    if (len(left.pieces), len(left.holes)) != (len(right.pieces), len(right.holes)):
        return False

    def same_piece(one: real_line.Piece, other: real_line.Piece) -> bool:
        return one.closed == other.closed and same(one.low, other.low) and same(one.high, other.high)

    return _matched(left.pieces, right.pieces, same_piece) and _matched(left.holes, right.holes, same)


def chains(given: str, reference: str, same: Same) -> bool | None:
    left, right = real_line.ascending_chain(given), real_line.ascending_chain(reference)
    if left is None or right is None or left[1] != right[1]:
        return None
    return _in_order(left[0], right[0], same) or None


def ratios(given: str, reference: str, same: Same) -> bool | None:
    left, right = structure.ratio(without_text(given)), structure.ratio(without_text(reference))
    if left and right and any(_MINUTES.fullmatch(term) for term in (*left[1:], *right[1:])):
        return [term.lstrip("0") for term in left[:1]] + left[1:] == [term.lstrip("0") for term in right[:1]] + right[
            1:
        ]
    return None if left is None or right is None else _in_order(left, right, same)


def matrices(given: str, reference: str, same: Same) -> bool | None:
    left, right = structure.matrix(given), structure.matrix(reference)
    if left is None or right is None:
        return None
    if [len(row) for row in left] != [len(row) for row in right]:
        return False
    entries = [[entry for row in rows for entry in row] for rows in (left, right)]
    if len(entries[0]) > MAX_ENTRIES:
        raise TooLargeError(f"a matrix of {len(entries[0])} entries")
    return all(same(one, other) for one, other in zip(*entries, strict=True))


def lists(given: str, reference: str, same: Same) -> bool | None:
    r"""Lists, sets, tuples and `\pm`: in order where the reference is a tuple, or where one side alone has names."""
    signs = [_PLUS_MINUS.findall(text) for text in (given, reference)]
    if all(signs) and max(map(len, signs)) > 1 and (r"\mp" in signs[0]) != (r"\mp" in signs[1]):
        return False  # \pm and \mp vary together, two \pm do not
    given, reference = _tuples_of_signs(given), _tuples_of_signs(reference)
    left, right = structure.items(one_by_one(given)), structure.items(one_by_one(reference))
    left_values, right_values = _values(given, left), _values(reference, right)
    if left is None and right is None and len(left_values) == len(right_values) == 1:
        return None
    if max(len(left_values), len(right_values)) > MAX_PARTS:
        raise TooLargeError("a list")
    lone_set = next((side for side in (left, right) if side and side.a_set and len(side.values) == 1), None)
    if lone_set and (left is None or right is None) and re.search(r"[a-zA-Z]", lone_set.values[0]):
        return False  # {n/2} may be the fractional part of n/2
    if right is None and len(right_values) == 1 and not (left and (left.ordered or left.a_set)):
        left_values = list(map(unnamed, left_values))  # "1/2, 0.5" is one value
        return all(same(value, right_values[0]) and same(value, left_values[0]) for value in left_values)
    if len(left_values) != len(right_values):  # a value listed twice is listed
        left_values, right_values = _distinct(left_values, left), _distinct(right_values, right)
        if len(left_values) != len(right_values):
            return False
    brackets = {side.brackets for side in (left, right) if side}
    if brackets == {"[]", "{}"}:
        return False  # an interval or a vector is no set
    if _named_otherwise(left_values, right_values):
        return False
    left_names, right_names = _names(left_values), _names(right_values)
    if left_names and right_names:
        return _matched(left_values, right_values, same)
    ordered = right is not None and right.ordered
    if ordered and (left_names or right_names):
        left_values, right_values = _by_name(left_values, left_names), _by_name(right_values, right_names)
    left_values, right_values = list(map(unnamed, left_values)), list(map(unnamed, right_values))
    if left_names or right_names or ordered or brackets == {"[]"}:
        return not (left and left.a_set) and _in_order(left_values, right_values, same)
    return not (left and left.ordered) and _matched(left_values, right_values, same)


def _tuples_of_signs(text: str) -> str:
    r"""`(\pm1, 2)` as a list of two tuples."""
    found = structure.items(text)
    return ", ".join(structure.plus_minus(text)) if found and found.ordered else text


def _values(text: str, items: structure.Items | None) -> list[str]:
    if items is None:
        return list(structure.plus_minus(unnamed(text)))
    if _MINUS_PLUS.search(text):
        return list(structure.plus_minus(text))
    if items.ordered:
        return list(items.values)
    values = [value for part in items.values for value in structure.plus_minus(part)]
    return _distinct(values, items) if items.a_set else values


def _distinct(values: list[str], items: structure.Items | None) -> list[str]:
    if items is None or items.ordered:
        return values
    return list({re.sub(r"\s+", "", value): value for value in values}.values())


def _names(values: list[str]) -> list[str]:
    """The names of values that each have one of its own, so that they and not the order count; else none."""
    names = [found[0] for value in values if (found := named(value))]
    letters = {name.split("_")[0] for name in names}
    roots = len(letters) == 1 and letters <= _UNORDERED_NAMES
    return names if len(set(names)) == len(values) > 1 and not roots else []


def _named_otherwise(left: list[str], right: list[str]) -> bool:
    """Whether both sides name all their values, or the first alone, and not by the same names."""
    names = [[found[0] if (found := named(value)) else "" for value in values] for values in (left, right)]
    if not all(side and side[0] for side in names):
        return False
    letters = [{name.split("_")[0] for name in side if name} for side in names]
    return letters[0] != letters[1]


def _by_name(values: list[str], names: list[str]) -> list[str]:
    """In the order in which a tuple of them is usually written: (x, y), (r, \\theta)."""
    if not names:
        return values
    order = sorted(range(len(names)), key=lambda index: names[index].lstrip("\\"))
    return [values[index] for index in order]


def _in_order(left: Sequence[str], right: Sequence[str], same: Same) -> bool:
    if max(len(left), len(right)) > MAX_PARTS:
        raise TooLargeError("a list")
    return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))


def _matched(left: Sequence[T], right: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    """Whether each of `left` equals a different one of `right`; equality is transitive, so the first match will do."""
    if max(len(left), len(right)) > MAX_PARTS:
        raise TooLargeError("a list")
    remaining = list(right)
    for one in left:
        index = next((index for index, other in enumerate(remaining) if same(one, other)), None)
        if index is None:
            return False
        del remaining[index]
    return not remaining
