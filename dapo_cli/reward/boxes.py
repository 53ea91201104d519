r"""Boxes in a response: the last `\boxed{}`, those that belong to it, and what around them changes the value.

A box states its content only where nothing else belongs to the value: `-\boxed{6}` is -6, `2\boxed{6}` is no 6, and
neither is `\boxed{6} or 7`, `x \ge \boxed{6}` or `not \boxed{6}`.
"""

import re
from dataclasses import dataclass

MAX_BETWEEN_CHARS = 200  # of two boxes that belong together, and of what is read around them

_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+(?=[^\s{]))")
_WORD = re.compile(r"[^\s$,;.]+(?:[.,]\d+)*")  # \boxed 5
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

# Between two boxes of one statement: blanks, signs and units; a connector joins them across paragraphs, too.
_CONNECTOR = (
    r"(?:\b(?i:or|and|also|possibly|maybe|perhaps|either|else|alternatively|to)\b|\\l(?:or|and)\b|[,;&/+=:]|\([a-z\d]\)"
    r"|\\(?:times|cdot)(?![a-zA-Z])|[a-zA-Z]\s*=|\\text\s*\{\s*(?:or|and)\s*\})"
)
_SPACING = r"(?:[\s$.*_~\-•|]|\\[()\[\]{},;:! ]|\\q?quad\b|\\text\s*\{[^{}\d]{0,12}\}|\^\s*\{?\s*\\circ\s*\}?|\\?%)"
_BETWEEN = re.compile(rf"(?:{_CONNECTOR}|{_SPACING})*")
_JOINS = re.compile(_CONNECTOR)
# "… or, if n is odd, …" adds a value; "… for x, so the total is …" goes on to another one.
_CASES = re.compile(
    r"(?![^.\n]*\b(?i:so|thus|hence|therefore|then|gives?|total|final(?:ly)?|answer|wait|no|actually|rather|instead)\b)"
    r"[^.\n]*\b(?i:or|also|possibly|alternatively|for|if|when)\b[^.\n]*"
)

# Right before a box, and without meaning for its value: delimiters, emphasis, spacing, arrows.
_NEUTRAL_BEFORE = re.compile(
    r"(?:[\s$*_`~]|\\[(\[,;:! ]|\{|<[a-zA-Z]+>|(?:=|-)+>|→|⇒|^\s*>"
    r"|\\(?:displaystyle|textstyle|q?quad|implies|iff|therefore|to|bf|rm"
    r"|(?:L|l)?ong(?:right|leftright)arrow|(?:R|r|Leftr|leftr)ightarrow|[lL]arge|LARGE|huge|Huge|text|textbf|mathbf|mathrm"
    r"|boldsymbol|underline|bm|left|big|Big)(?![a-zA-Z])|\\(?:text)?color\s*\{[^{}]*\})+$",
    re.MULTILINE,
)
# A minus sign that belongs to the box; a dash between words or at the head of a list does not.
_SIGN_BEFORE = re.compile(r"(?:(?<![\w)}])[-−]|(?<=[=(\[{,$])\s*[-−]\s+)$")
# Before a box, and changing or denying its value: what touches it, and what does so across blanks.
_TOUCHING = re.compile(r"(?:[\d)}]|(?<![a-zA-Z])[a-zA-Z]|\d[.,])$")
_OPERATOR = re.compile(
    r"(?:[+*/^_<>≤≥≠±≈~]|[<>!]=|[\d)}]\s*[-−]|\\(?!text|[,;:! ])[a-zA-Z]+(?:\s*\[[^\]]*\])?(?:\s*\{[^{}]*\})*\s*\{?"
    r"|\b(?i:or|not|isn't|never|cannot be|not equal to|not be|minus|negative|plus|about|approximately|roughly|nearly"
    r"|almost|at least|at most|less than|more than|greater than))$"
)
_LISTED_BEFORE = re.compile(r"[\d}]\s*\$?\s*(?:,|\b(?i:and|or)\b)$")
_OR_BEFORE = re.compile(r"(?i)[\d}$)]\s*,?\s*or(?: \w+ \w+)?(?:[\s$]*[a-z]\s*=)?$")
_RELATION_BEFORE = re.compile(r"(?:[<≤≥≠≈]|(?<![-=a-zA-Z\n])(?<!^)>|\\(?:leq?|geq?|neq?|lt|gt|approx))$")
# Right behind a box: what belongs to its value, and what takes it back or adds to it.
_KEPT_BEHIND = re.compile(r"\^\s*(?:\{[^{}\n]{0,20}\}|\\circ|\w)|\\?%|!(?=\s*(?:\$|\\[)\]]))")
_CHANGED_BEHIND = re.compile(
    r"[_\d{]|[.,]\d|\s*(?:[+*/=×·]|-(?=\s*[\d\\(a-z]))\s*[\d\\(a-z]|\s*(?:<(?!/?[a-zA-Z]{2,})|(?<!\n)>(?=\s*[\d\\a-z-])|[≤≥≠±≈])"
    r"|\s*\\(?:pi|sqrt|frac|cdot|times|pm|mp|leq?|geq?|lt|gt|neq?|approx|log|ln)(?![a-zA-Z])|[a-zA-Z](?![a-zA-Z])"
    r"|\s*(?:thousand|million|billion|dozen|hundred)\b"
)
_CLOSING = r"[\s$*_)\]\\.,}(]*"
_NUMBER_WORD = r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b"
_HEDGE_BEHIND = re.compile(
    rf"{_CLOSING}(?:(?:\b(?i:or)\b|\\lor\b|\\text\s*\{{\s*or\s*\}})\s*(?i:possibly|maybe|perhaps|else|even)?[\s$(\\*]*"
    rf"(?:[-−\d\\]|[a-z]\s*[=+*/-]|{_NUMBER_WORD})(?:[^.\n]|\.\d)*|(?:\b(?i:and|to)\b|;)[\s$(\\*]*[-−]?\d[^\n]*)"
    r"|(?:\s*,\s*\$?(?:[a-z]\s*=\s*)?-?\d+(?:\.\d+)?\$?)+(?=\s*\.?\s*(?:\n|$))"
)
_DENIED_BEHIND = re.compile(r"(?i)[\s$*_)\]\\}]*(?:(?:is|was) (?:wrong|incorrect|not)\b|\?\s*no\b)")


@dataclass(frozen=True)
class Boxes:
    """The last box and those joined to it: where they lie in the text, and what they hold."""

    start: int
    end: int
    parts: tuple[str, ...]


def last_boxes(text: str) -> Boxes | None:
    """The last box, with those before it that nothing but connectors, blanks and conditions separate from it."""
    if "box" not in text:
        return None
    parts: list[str] = []
    start = end = 0
    closing = brace_pairs(text)
    for match in _BOX.finditer(text):
        if match.start() < end:
            continue  # inside the box before it
        span = _content(text, match, closing)
        if span is None:
            continue
        if not (parts and _belong_together(text[end : match.start()])):
            parts, start = [], match.start()
        parts.append(unwrapped(text[span[0] : span[1]].strip()))
        end = span[1] + match.group().endswith("{")
    return Boxes(start, end, tuple(parts)) if parts else None


def around(text: str, boxes: Boxes, *, listed: bool) -> tuple[str, str]:
    """What belongs to the value before and behind the boxes, both empty where they state it by themselves.

    `listed`: on a line that lists the answer, a value and a comma before the box belong to it.
    """
    line = text[max(text.rfind("\n", 0, boxes.start) + 1, boxes.start - MAX_BETWEEN_CHARS) : boxes.start]
    behind = text[boxes.end : boxes.end + MAX_BETWEEN_CHARS]
    kept = _KEPT_BEHIND.match(behind)
    after = kept.group() if kept else ""
    if _SIGN_BEFORE.search(line):
        return "-", after
    before = _NEUTRAL_BEFORE.sub("", line)
    paragraph = text[max(0, boxes.start - MAX_BETWEEN_CHARS) : boxes.start].rstrip(" \n$*(\\[{")
    changed = (
        (line == before and _TOUCHING.search(before))
        or _OPERATOR.search(before)
        or _OR_BEFORE.search(paragraph)
        or _RELATION_BEFORE.search(paragraph)
        or (listed and _LISTED_BEFORE.search(before))
    )
    more = _DENIED_BEHIND.match(behind)
    if more is None and not kept:
        more = _CHANGED_BEHIND.match(behind) or _HEDGE_BEHIND.match(behind)
    if changed or more:
        return f"{paragraph[-30:]} ", f" {after}{more.group() if more else ''}"
    return "", after


def unwrapped(content: str) -> str:
    """Without boxes around everything: those directly inside of boxes, or around a reference, add nothing."""
    closing = brace_pairs(content)
    start, end = 0, len(content)
    while (match := _BOX.match(content, start)) and closing.get(match.end() - 1) == end - 1:
        start, end = match.end(), end - 1
    return content[start:end].strip()


def brace_pairs(text: str) -> dict[int, int]:
    r"""Index of each `{` -> index of its `}`, in one pass; `\{` and `\}` are characters, not groups."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            pairs[opened.pop()] = match.start()
    return pairs


def joined(between: str) -> bool:
    """Whether two statements with `between` between them are one list."""
    return _BETWEEN.fullmatch(between) is not None and _JOINS.search(between) is not None


def _belong_together(between: str) -> bool:
    if len(between) > MAX_BETWEEN_CHARS:
        return False
    if _BETWEEN.fullmatch(between):
        return "\n\n" not in between or _JOINS.search(between) is not None
    return _CASES.fullmatch(between) is not None


def _content(text: str, match: re.Match[str], closing: dict[int, int]) -> tuple[int, int] | None:
    r"""Where the content of a `\boxed` lies; None for a brace that is never closed (a truncated answer)."""
    if match.group().endswith("{"):
        end = closing.get(match.end() - 1)
        return None if end is None else (match.end(), end)
    word = _WORD.match(text, match.end())
    return None if word is None else word.span()
