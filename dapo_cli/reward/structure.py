"""Answers taken apart without parsing their mathematics: lists, tuples, regions of the line, matrices, plus-minus."""

import re
from dataclasses import dataclass

_OPENING = {"(": ")", "[": "]", "{": "}"}
_BRACKETS = ((r"\{", r"\}", "{}"), (r"\langle", r"\rangle", "<>"), ("(", ")", "()"), ("[", "]", "[]"))
_AND = re.compile(
    r",?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z]))\s*|\s*;\s*", re.IGNORECASE
)
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_MATRIX = re.compile(
    r"(?:[(\[]\s*)?\\begin\{(?P<kind>[pbvBV]?matrix|array)\}(?:\{[clr|]*\})?(?P<body>.*?)\\end\{(?P=kind)\}(?:\s*[)\]])?",
    re.DOTALL,
)
_RELATION = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|<|>")
_UNION = re.compile(r"\\cup(?![a-zA-Z])|\\text\s*\{\s*or\s*\}|(?<![\\a-zA-Z])or(?![a-zA-Z])")
_MEMBER = re.compile(r"^\s*\\?[a-zA-Z]\w*\s*\\in(?![a-zA-Z])")
_SET_BUILDER = re.compile(r"^\\\{\s*\w+\s*(?:\\in\s*\\mathbb\{?R\}?\s*)?[|:](?P<condition>.*)\\\}$")
_VARIABLE = re.compile(r"\\?[a-zA-Z]+(?:_\{?\w+\}?)?|\|[a-zA-Z]\|")


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


def items(text: str) -> Items | None:
    r"""`text` as several values, or a set of one; None for a single value.

    >>> items("(1,2)"), items("2 and 3")
    (Items(brackets='()', values=('1', '2')), Items(brackets='', values=('2', '3')))
    >>> items(r"\{3\}"), items("1,234"), items("1, 234").values
    (Items(brackets='{}', values=('3',)), None, ('1', '234'))
    """
    text = text.strip()
    if _GROUPED.fullmatch(text):
        return None
    for opening, closing, brackets in _BRACKETS:
        if text.startswith(opening) and text.endswith(closing) and _closes_at_end(text, opening, closing):
            values = _list_values(text[len(opening) : len(text) - len(closing)])
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
    values = split_top(_AND.sub(", ", text))
    return tuple(value for value in values if value)


def ratio(text: str) -> list[str] | None:
    """The terms of `a:b:c`."""
    terms = split_top(text, ":")
    return terms if len(terms) > 1 and all(terms) else None


def plus_minus(text: str) -> tuple[str, ...]:
    r"""Both values of an expression with `\pm`; the text itself without one."""
    if not re.search(r"\\(?:pm|mp)(?![a-zA-Z])", text):
        return (text,)
    upper = re.sub(r"\\mp(?![a-zA-Z])\s*", "-", re.sub(r"\\pm(?![a-zA-Z])\s*", "+", text))
    lower = re.sub(r"\\mp(?![a-zA-Z])\s*", "+", re.sub(r"\\pm(?![a-zA-Z])\s*", "-", text))
    return tuple(value.strip().removeprefix("+") for value in (upper, lower))


def matrix(text: str) -> list[list[str]] | None:
    """Rows of entries; a vector in angle brackets is a row."""
    match = _MATRIX.fullmatch(text.strip())
    if match is None:
        return None
    rows = [row for row in match["body"].split(r"\\") if row.strip()]
    return [[entry.strip() for entry in row.split("&")] for row in rows]


@dataclass(frozen=True)
class Piece:
    """An interval; `closed` tells for each end whether it belongs."""

    low: str
    high: str
    closed: tuple[bool, bool]


def region(text: str) -> list[Piece] | None:
    r"""A union of intervals, written as such or as inequalities in one variable; None for anything else.

    >>> region(r"2 < x \le 5") == region("x \\in (2, 5]"), region(r"x \ne 3")[1]
    (True, Piece(low='3', high='\\infty', closed=(False, False)))
    """
    text = text.strip()
    if match := _SET_BUILDER.match(text):
        text = match["condition"].strip()
    text = _MEMBER.sub("", text).strip()
    pieces: list[Piece] = []
    for part in _UNION.split(text):
        found = _interval(part.strip()) or _inequality(part.strip())
        if found is None:
            return None
        pieces += found
    return pieces


def _interval(text: str) -> list[Piece] | None:
    if len(text) < 5 or text[0] not in "([" or text[-1] not in ")]":
        return None
    ends = split_top(text[1:-1])
    if len(ends) != 2 or not all(ends):
        return None
    return [Piece(ends[0], ends[1].removeprefix("+"), (text[0] == "[", text[-1] == "]"))]


def _inequality(text: str) -> list[Piece] | None:
    signs = [match.group() for match in _RELATION.finditer(text)]
    terms = [term.strip() for term in _RELATION.split(text)]
    if len(signs) == 1 and len(terms) == 2:
        if _VARIABLE.fullmatch(terms[1]) and not _VARIABLE.fullmatch(terms[0]):
            terms.reverse()
            signs = [_flipped(signs[0])]
        if not _VARIABLE.fullmatch(terms[0]) or not terms[1]:
            return None
        bound, sign = terms[1], signs[0]
        if sign == r"\ne":
            return [Piece(r"-\infty", bound, (False, False)), Piece(bound, r"\infty", (False, False))]
        closed = sign in (r"\le", r"\ge")
        if sign in ("<", r"\le"):
            return [Piece(r"-\infty", bound, (False, closed))]
        return [Piece(bound, r"\infty", (closed, False))]
    if len(signs) == 2 and _VARIABLE.fullmatch(terms[1]) and all(terms):
        if all(sign in (">", r"\ge") for sign in signs):
            terms.reverse()
            signs = [_flipped(sign) for sign in reversed(signs)]
        if all(sign in ("<", r"\le") for sign in signs):
            return [Piece(terms[0], terms[2], (signs[0] == r"\le", signs[1] == r"\le"))]
    return None


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
