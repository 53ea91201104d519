"""Parts of the real line, and chains of inequalities, taken apart without parsing the mathematics of their ends."""

import re
from dataclasses import dataclass

from dapo_cli.reward.latex import GREEK
from dapo_cli.reward.structure import MEMBER, items, split_top

_RELATION = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|<|>")
_UNION = re.compile(r"\\cup(?![a-zA-Z])|\\text\s*\{\s*or\s*\}|(?<![\\a-zA-Z])or(?![a-zA-Z])")
_SET_BUILDER = re.compile(r"^\\\{\s*(?P<name>\w+)\s*(?:\\in\s*\\mathbb\{?R\}?\s*)?[|:](?P<condition>.*)\\\}$")
_VARIABLE = re.compile(rf"(?:[a-zA-Z]|{GREEK})(?:_\{{?\w+\}}?|\([a-z]\))?")  # x, x_1, f(x)
_DISTANCE = re.compile(r"\|\s*(?P<name>[a-zA-Z])\s*(?:(?P<sign>[+-])\s*(?P<shift>[^|+-]+))?\|")  # |x - 3|
_REAL_LINE = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?|\\R|(?:\\text\s*\{\s*)?[aA]ll real (?:numbers|values)(?: (?:of )?[a-z])?\s*\}?"
)
_SETMINUS = re.compile(r"\\(?:setminus|backslash|smallsetminus)(?![a-zA-Z])|\\(?=\\\{)")
_CONJUNCTION = re.compile(r"\\text\s*\{\s*and\s*\}|(?<![\\a-zA-Z])and(?![a-zA-Z])|\\(?:land|wedge|cap)(?![a-zA-Z])")


@dataclass(frozen=True)
class Piece:
    """An interval; `closed` tells for each end whether it belongs."""

    low: str
    high: str
    closed: tuple[bool, bool]


@dataclass(frozen=True)
class Region:
    """A union of intervals without the points `holes`; `names` are the variables that conditions were written in."""

    pieces: tuple[Piece, ...]
    holes: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()


REAL_LINE = Piece(r"-\infty", r"\infty", (False, False))


def region(text: str) -> Region | None:
    r"""A part of the real line, as intervals, a set or inequalities in one variable; None for anything else.

    >>> region(r"2 < x \le 5").pieces == region("x \\in (2, 5]").pieces
    True
    >>> region(r"\mathbb{R}\setminus\{3\}") == region(r"(-\infty,3)\cup(3,\infty)")
    True
    """
    text = text.strip()
    builder = _SET_BUILDER.match(text)
    if builder:
        text = builder["condition"].strip()
    text = MEMBER.sub("", text).strip()
    text, _, removed = _SETMINUS.sub(r"\\setminus", text).partition(r"\setminus")
    found = [_conjunction(part.strip()) for part in _UNION.split(text.strip())]
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        return None
    holes = [hole for part in parts for hole in part.holes]
    if removed:
        points = items(removed)
        if points is None or points.brackets != "{}":
            return None
        holes += points.values
    names = frozenset(name for part in parts for name in part.names)
    if builder and names and names != {builder["name"]}:
        return None
    return None if len(names) > 1 else _joined([piece for part in parts for piece in part.pieces], holes, names)


def _joined(pieces: list[Piece], holes: list[str], names: frozenset[str]) -> Region:
    """Intervals that meet at a point which neither contains, as one with a hole there."""
    joined: list[Piece] = []
    for piece in pieces:
        for other in joined:
            left, right = (other, piece) if other.high == piece.low else (piece, other)
            if left.high == right.low and not left.closed[1] and not right.closed[0]:
                holes.append(right.low)
                joined.remove(other)
                piece = Piece(left.low, right.high, (left.closed[0], right.closed[1]))
                break
        joined.append(piece)
    return Region(tuple(joined), tuple(holes), names)


def _conjunction(text: str) -> Region | None:
    """Conditions on one variable that hold together: at most one bound on each side, and points left out."""
    if _REAL_LINE.fullmatch(text):
        return Region((REAL_LINE,))
    if interval := _interval(text):
        return Region((interval,))
    conditions = [part.strip() for part in _CONJUNCTION.split(text)]
    if len(conditions) == 1 and r"\ne" in text:
        conditions = split_top(text)
    found = [_inequality(condition) for condition in conditions]
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        return None
    names = frozenset(name for part in parts for name in part.names)
    if len(names) > 1:
        return None
    holes = tuple(hole for part in parts for hole in part.holes)
    pieces = [part.pieces for part in parts if part.pieces != (REAL_LINE,)]
    if len(pieces) <= 1:
        return Region(pieces[0] if pieces else (REAL_LINE,), holes, names)
    below = [piece for (piece, *others) in pieces if not others and piece.low == REAL_LINE.low]
    above = [piece for (piece, *others) in pieces if not others and piece.high == REAL_LINE.high]
    if len(pieces) == len(below) + len(above) == 2 and below and above:
        return Region((Piece(above[0].low, below[0].high, (above[0].closed[0], below[0].closed[1])),), holes, names)
    return None


def _interval(text: str) -> Piece | None:
    if len(text) < 5 or text[0] not in "([" or text[-1] not in ")]":
        return None
    ends = split_top(text[1:-1])
    if len(ends) != 2 or not all(ends) or r"\pm" in text or r"\mp" in text:
        return None
    return Piece(ends[0], ends[1].removeprefix("+"), (text[0] == "[", text[-1] == "]"))


def _inequality(text: str) -> Region | None:
    """Of one variable against bounds that hold none."""
    signs = [match.group() for match in _RELATION.finditer(text)]
    terms = [term.strip() for term in _RELATION.split(text)]
    if len(signs) == 1 and len(terms) == 2:
        if _VARIABLE.fullmatch(terms[1]) and not _VARIABLE.fullmatch(terms[0]):
            terms.reverse()
            signs = [_flipped(signs[0])]
        bound, sign = terms[1], signs[0]
        if not bound or _VARIABLE.fullmatch(bound):
            return None
        closed = sign in (r"\le", r"\ge")
        if distance := _DISTANCE.fullmatch(terms[0]):
            return _around(distance, bound, sign, closed)
        if not _VARIABLE.fullmatch(terms[0]):
            return None
        names = frozenset({terms[0]})
        if sign == r"\ne":
            return Region((REAL_LINE,), (bound,), names)
        if sign in ("<", r"\le"):
            return Region((Piece(REAL_LINE.low, bound, (False, closed)),), (), names)
        return Region((Piece(bound, REAL_LINE.high, (closed, False)),), (), names)
    chain = ascending_chain(text)
    if chain is None or len(chain[1]) != 2 or r"\ne" in chain[1] or not _VARIABLE.fullmatch(chain[0][1]):
        return None
    (low, name, high), signs = chain
    piece = Piece(low, high, (signs[0] == r"\le", signs[1] == r"\le"))
    return Region((piece,), (), frozenset({name}))


def _around(distance: re.Match[str], bound: str, sign: str, closed: bool) -> Region | None:
    """`|x - 3| < 2` is the interval from 3-(2) to 3+(2); `|x - 3| > 2` what lies outside."""
    centre = {None: "", "-": "", "+": "-"}[distance["sign"]] + (distance["shift"] or "")
    low, high, names = f"{centre}-({bound})", f"{centre}+({bound})".removeprefix("+"), frozenset({distance["name"]})
    if sign in ("<", r"\le"):
        return Region((Piece(low, high, (closed, closed)),), (), names)
    outer = Piece(REAL_LINE.low, low, (False, closed)), Piece(high, REAL_LINE.high, (closed, False))
    return Region(outer, (), names) if sign in (">", r"\ge") else None


def ascending_chain(text: str) -> tuple[list[str], list[str]] | None:
    r"""Terms and signs of `a < b \le c`, turned so that all signs point up; None without signs, or with mixed ones."""
    signs = [match.group() for match in _RELATION.finditer(text)]
    terms = [term.strip() for term in _RELATION.split(text)]
    if not signs or not all(terms):
        return None
    if all(sign in (">", r"\ge") for sign in signs):
        return terms[::-1], [_flipped(sign) for sign in reversed(signs)]
    return (terms, signs) if all(sign in ("<", r"\le", r"\ne") for sign in signs) else None


def _flipped(sign: str) -> str:
    return {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}.get(sign, sign)
