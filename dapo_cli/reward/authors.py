r"""The DAPO release's own rewards, as references to compare with: by string, without reading the mathematics.

`authors`: what the last `Answer:` in the last 300 characters states must be the reference's text, after Minerva's
normalisation (Lewkowycz et al. 2022, arXiv:2206.14858, appendix D.1) on both sides. `strict_boxed`: the last `\boxed{}`
in the last 100 characters must hold the reference's text, character by character.

One departure: the release compares a response without an answer as the text "[INVALID]"; here it is wrong.
"""

import re

from dapo_cli.types import Outcome, Verdict

ANSWER_CHARS = 300  # of the response's end, in which `authors` looks for an answer
BOX_CHARS = 100  # of the response's end, in which `strict_boxed` looks for a box

_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_BOX = r"\boxed{"

# Minerva's tables, in their order.
_REPLACED = [
    ("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), (r"\ ", ""), (" ", ""), ("mbox", "text"),
    (r",\text{and}", ","), (r"\text{and}", ","), (r"\text{m}", r"\text{}"),
]  # fmt: skip
_REMOVED = [
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", r"\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples",
    r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3", "\\text{\n}", r"\text{}",
    r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots",
]  # fmt: skip
_REWRITTEN = [
    (re.compile(r".*?\$(.*?)\$.*"), r"$\1$"),  # mathematics alone, without the words around it
    (re.compile(r"\\text\{(.*?)\}"), r"\1"),
    (re.compile(r"\\textbf\{(.*?)\}"), r"\1"),
    (re.compile(r"\\overline\{(.*?)\}"), r"\1"),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),  # \frac12
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
]


def verify_authors(response: str, answer: str) -> Verdict:
    """The release's default rule; `extracted` is the normalised text."""
    stated = _ANSWER.findall(response[-ANSWER_CHARS:])
    if not stated:
        return Verdict(Outcome.WRONG, None, "none")
    given = minerva_normal(stated[-1])
    return _verdict(given, given == minerva_normal(answer), "answer_line:text")


def verify_strict_boxed(response: str, answer: str) -> Verdict:
    """The release's stricter rule."""
    _, box, behind = response[-BOX_CHARS:].rpartition(_BOX)
    given = _before_closing(behind) if box else None
    if given is None:
        return Verdict(Outcome.WRONG, None, "none")
    return _verdict(given, given == answer, "box:text")


def _before_closing(text: str) -> str | None:
    r"""`text` up to the brace that closes the one before it; as in the release, `\{` and `\}` count as braces."""
    depth = 1
    for index, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[:index]
    return None


def minerva_normal(answer: str) -> str:
    r"""Minerva's spelling of an answer.

    >>> minerva_normal(r"$x = \frac12$ square meters"), minerva_normal("1,234 dollars"), minerva_normal("0.5")
    ('\\frac{1}{2}', '1234', '0.5')
    """
    text = answer.rpartition("=")[2]
    for before, after in _REPLACED:
        text = text.replace(before, after)
    for expression in _REMOVED:
        text = text.replace(expression, "")
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    text = text.replace("$", "")
    digits = text.replace(",", "")
    return (digits if digits.isdigit() else text).strip()


def _verdict(given: str, same: bool, rule: str) -> Verdict:
    return Verdict(Outcome.RIGHT if same else Outcome.WRONG, given, rule)
