"""Answers taken apart without parsing their mathematics: lists, tuples, ratios, matrices, plus-minus."""

import re
from dataclasses import dataclass

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
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])\s*")
MAX_SIGNS = 4
_TO = re.compile(r"\s*(?:\\text\s*\{\s*to\s*\}|(?<![\\a-zA-Z])to(?![a-zA-Z]))\s*")
MEMBER = re.compile(r"^\s*\\?[a-zA-Z]\w*\s*\\in(?![a-zA-Z])")


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
    text = MEMBER.sub("", text, count=1).strip()
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
