"""Answers taken apart without parsing their mathematics: lists, tuples, regions of the line, matrices, plus-minus."""

import re
from dataclasses import dataclass

from dapo_cli.reward.latex import GREEK

_OPENING = {"(": ")", "[": "]", "{": "}"}
_BRACKETS = ((r"\{", r"\}", "{}"), (r"\langle", r"\rangle", "<>"), ("(", ")", "()"), ("[", "]", "[]"))
_AND = re.compile(
    r",?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z]))\s*|\s*;\s*", re.IGNORECASE
)
_OR = re.compile(r"(?<![\\a-zA-Z])or(?![a-zA-Z])")
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # where "and" separates, such a comma does not
_MATRIX = re.compile(
    r"(?P<factor>-?[^()\[\]&+-]*?)(?:[(\[]\s*)?\\begin\{(?P<kind>[pbB]?(?:small)?matrix|array|cases)\}(?:\{[clr|]*\})?(?P<body>.*?)\\end\{(?P=kind)\}(?:\s*[)\]])?",
    re.DOTALL,
)
_IF = re.compile(r"^\\text\s*\{\s*(?:if|when|for)\s*\}|^(?:if|when|for)\b")
_RELATION = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|<|>")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])\s*")
MAX_SIGNS = 4
_TO = re.compile(r"\s*(?:\\text\s*\{\s*to\s*\}|(?<![\\a-zA-Z])to(?![a-zA-Z]))\s*")
_UNION = re.compile(r"\\cup(?![a-zA-Z])|\\text\s*\{\s*or\s*\}|(?<![\\a-zA-Z])or(?![a-zA-Z])")
_MEMBER = re.compile(r"^\s*\\?[a-zA-Z]\w*\s*\\in(?![a-zA-Z])")
_SET_BUILDER = re.compile(r"^\\\{\s*(?P<name>\w+)\s*(?:\\in\s*\\mathbb\{?R\}?\s*)?[|:](?P<condition>.*)\\\}$")
_VARIABLE = re.compile(rf"(?:[a-zA-Z]|{GREEK})(?:_\{{?\w+\}}?|\([a-z]\))?")  # x, x_1, f(x)
_DISTANCE = re.compile(r"\|\s*(?P<name>[a-zA-Z])\s*(?:(?P<sign>[+-])\s*(?P<shift>[^|+-]+))?\|")  # |x - 3|
_REAL_LINE = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?|\\R|(?:\\text\s*\{\s*)?[aA]ll real (?:numbers|values)(?: (?:of )?[a-z])?\s*\}?"
)
_SETMINUS = re.compile(r"\\(?:setminus|backslash|smallsetminus)(?![a-zA-Z])|\\(?=\\\{)")
_CONJUNCTION = re.compile(r"\\text\s*\{\s*and\s*\}|(?<![\\a-zA-Z])and(?![a-zA-Z])|\\(?:land|wedge|cap)(?![a-zA-Z])")


def split_top(text: str, separator: str = ",") -> list[str]:
    """`text` cut at each `separator` outside of brackets."""
    parts, depth, start, index = [], 0, 0, 0
    while index < len(text):
        char = text[index]
        if char == "\\" and index + 1 < len(text) and text[index + 1] in "{}":
            depth += 1 if text[index + 1] == "{" else -1
            index += 1
        elif char in _OPENING:
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(separator, index):
            parts.append(text[start:index].strip())
            start = index + len(separator)
            index = start
            continue
        index += 1
    return [*parts, text[start:].strip()]


@dataclass(frozen=True)
class Items:
    """Several values. `brackets` are those around them, such as "()" (ordered), "{}" (a set) or "" (a bare list)."""

    brackets: str
    values: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        return self.brackets in ("()", "<>")

    @property
    def a_set(self) -> bool:
        return self.brackets == "{}"


def items(text: str) -> Items | None:
    r"""`text` as several values, or a set of one; None for a single value.

    >>> items("(1,2)"), items("2 and 3")
    (Items(brackets='()', values=('1', '2')), Items(brackets='', values=('2', '3')))
    >>> items(r"\{3\}"), items("1,234"), items("1, 234").values
    (Items(brackets='{}', values=('3',)), None, ('1', '234'))
    """
    text = _MEMBER.sub("", text, count=1).strip()
    if _GROUPED.fullmatch(text):
        return None  # 1,234
    for opening, closing, brackets in _BRACKETS:
        if text.startswith(opening) and text.endswith(closing) and _closes_at_end(text, opening, closing):
            inner = text[len(opening) : len(text) - len(closing)]
            if brackets != "{}" and _OR.search(inner):
                return None
            values = _list_values(inner)
            return Items(brackets, values) if len(values) > 1 or brackets == "{}" else None
    values = _list_values(text)
    return Items("", values) if len(values) > 1 else None


def _closes_at_end(text: str, opening: str, closing: str) -> bool:
    depth = index = 0
    while index < len(text):
        if text.startswith(opening, index):
            depth += 1
            index += len(opening)
        elif text.startswith(closing, index):
            depth -= 1
            index += len(closing)
            if depth == 0:
                return index == len(text)
        else:
            index += 1
    return False


def _list_values(text: str) -> tuple[str, ...]:
    if _AND.search(text):
        text = _AND.sub(", ", _THOUSANDS.sub("", text))
    values = split_top(text)
    # A comma at the end closes a list; one with nothing before it is a slip that leaves no list.
    return (text,) if "" in values[:-1] else tuple(value for value in values if value)


def ratio(text: str) -> list[str] | None:
    r"""The terms of `a:b:c`, or of `a \text{ to } b`."""
    terms = split_top(_TO.sub(":", text), ":")
    return terms if len(terms) > 1 and all(terms) else None


def plus_minus(text: str) -> tuple[str, ...]:
    r"""The values of an expression with `\pm`, the text itself without one; each `\pm` by itself, unless with `\mp`.

    >>> plus_minus(r"1\pm2"), len(plus_minus(r"\pm1\pm i")), plus_minus(r"\pm1\mp i")
    (('1+2', '1-2'), 4, ('1-i', '-1+i'))
    """
    signs = [sign.strip() for sign in _PLUS_MINUS.findall(text)]
    if not signs:
        return (text,)
    if r"\mp" not in signs and 1 < len(signs) <= MAX_SIGNS:
        first, second = (_PLUS_MINUS.sub(sign, text, count=1) for sign in ("+", "-"))
        return tuple(value.strip().removeprefix("+") for half in (first, second) for value in plus_minus(half))
    upper = re.sub(r"\\mp(?![a-zA-Z])\s*", "-", re.sub(r"\\pm(?![a-zA-Z])\s*", "+", text))
    lower = re.sub(r"\\mp(?![a-zA-Z])\s*", "+", re.sub(r"\\pm(?![a-zA-Z])\s*", "-", text))
    return tuple(value.strip().removeprefix("+") for value in (upper, lower))


def matrix(text: str) -> list[list[str]] | None:
    r"""Rows of entries, a factor in front multiplied in; also the lines of a piecewise definition.

    >>> matrix(r"2\begin{pmatrix} 1 & x \end{pmatrix}")
    [['(2)(1)', '(2)(x)']]
    """
    match = _MATRIX.fullmatch(text.strip())
    if match is None:
        return None
    rows = [row for row in match["body"].split(r"\\") if row.strip()]
    entries = [[entry.strip() for entry in row.split("&")] for row in rows]
    if match["kind"] == "cases":
        entries = [[_IF.sub("", entry).strip(" ,") for entry in row] for row in entries]
    factor = match["factor"].strip()
    return [[f"({factor})({entry})" for entry in row] for row in entries] if factor else entries


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
    text = _MEMBER.sub("", text).strip()
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
    if len(signs) == 2 and _VARIABLE.fullmatch(terms[1]) and all(terms):
        if all(sign in (">", r"\ge") for sign in signs):
            terms.reverse()
            signs = [_flipped(sign) for sign in reversed(signs)]
        if all(sign in ("<", r"\le") for sign in signs):
            piece = Piece(terms[0], terms[2], (signs[0] == r"\le", signs[1] == r"\le"))
            return Region((piece,), (), frozenset({terms[1]}))
    return None


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
