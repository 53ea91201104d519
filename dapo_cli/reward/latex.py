"""One spelling for the many ways of writing the same mathematics: unicode, plain text and LaTeX variants."""

import re
from collections.abc import Callable

from dapo_cli.reward.boxes import brace_pairs

GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi"
    r"|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega)(?![a-zA-Z])"
)
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "0123456789+-()n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎", "0123456789+-()", strict=True))
_FRACTIONS = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5)}
_FRACTIONS |= {"⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8)}
_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-",
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/", "∗": "*",
    "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ",
    "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "±": r"\pm ", "°": r"^\circ ", "º": r"^\circ ", "′": "'", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "，": ",", "、": ",", "；": ";", "：": ":", "∶": ":", "％": r"\%", "（": "(", "）": ")", "【": "[", "】": "]",
    "｛": r"\{", "｝": r"\}", "⟨": r"\langle ", "⟩": r"\rangle ", "“": '"', "”": '"', "’": "'", "…": r"\ldots ",
    "或": " or ", "和": " and ", "与": " and ", "及": " and ",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ",
}  # fmt: skip
_TABLE = str.maketrans(
    _SYMBOLS
    | {char: rf"\frac{{{top}}}{{{bottom}}}" for char, (top, bottom) in _FRACTIONS.items()}
    # Full-width forms, and the bold, italic and double-struck digits: one character each, so nothing can expand.
    | {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code) not in _SYMBOLS}
    | {chr(0x1D7CE + index): str(index % 10) for index in range(50)}
)
_RAISED = re.compile(f"[{''.join(map(re.escape, _SUPERSCRIPTS))}]+")
_LOWERED = re.compile(f"[{''.join(map(re.escape, _SUBSCRIPTS))}]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-z]))")
_CUBE_ROOT = re.compile(r"∛\s*(?:\(([^()]*)\)|(\d+|[a-z]))")


def _lines(match: re.Match[str]) -> str:
    """Lines below each other as a list, without their marks of alignment."""
    return match[2].replace("&", " ").replace(r"\\", ", ")


_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


def _base_name(match: re.Match[str]) -> str:
    return f"_{{{_BASES[match[1]]}}}"


_LATEX: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\\cr(?![a-zA-Z])"), r"\\\\"),
    (re.compile(r"\\\\\s*\[-?[\d.]+\s*(?:pt|em|ex|mm|cm)\]"), r"\\\\"),  # row spacing
    (re.compile(r"\\(?:text)?color\s*\{[\w!]*\}"), ""),
    (re.compile(r"\\(?:[lL]arge|LARGE|[hH]uge|small|bf|rm|boldmath|nonumber|(?:math)?strut)(?![a-zA-Z])"), ""),
    (re.compile(r"\\begin\{(aligned|align\*?|gathered|split|equation\*?)\}(.*?)\\end\{\1\}", re.DOTALL), _lines),
    (re.compile(r"\\begin\{(cases)\}([^&]*)\\end\{cases\}"), _lines),
    (re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?"), ""),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|quad|qquad|hfill)(?![a-zA-Z])"), " "),
    (re.compile(r"\\[hv]space\*?\{[^{}]*\}|\\phantom\{[^{}]*\}"), " "),
    (re.compile(r"\\(?:leq|leqslant|le)(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant|ge)(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\(?:neq|ne|not\s*=)(?![a-zA-Z])"), r"\\ne "),
    (re.compile(r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\(?:lt)(?![a-zA-Z])"), "<"),
    (re.compile(r"\\(?:gt)(?![a-zA-Z])"), ">"),
    (re.compile(r"\\(?:lvert|rvert|vert|mid)(?![a-zA-Z])"), "|"),
    (re.compile(r"\\(?:lbrace)(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\(?:mathrm|textbf|textit|textrm|textnormal|texttt|textsf|mbox|hbox|emph)(?=\s*\{)"), r"\\text"),
    (re.compile(r"\\(?:mathbf|mathit|mathsf|boldsymbol|bm|pmb|underline)(?=\s*\{)"), ""),
    (re.compile(r"\\math(?:ord|punct|bin|rel|op|open|close|inner)(?=\s*\{)"), ""),
    (re.compile(r"\{([-+:])\}"), r"\1"),
    (re.compile(r"\\colon(?![a-zA-Z])"), ":"),
    (re.compile(r"\\bigcup(?![a-zA-Z])"), r"\\cup "),
    (re.compile(r"_\{\\text\s*\{\s*(two|three|four|five|six|seven|eight|nine|ten)\s*\}\}"), _base_name),
    (re.compile(r"\\mathbb\s+([A-Z])"), r"\\mathbb{\1}"),
    (re.compile(r"\\not\s*<|\\nless(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\not\s*>|\\ngtr(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10} "),
    (re.compile(r"\\log\s*_\s*(\w)"), r"\\log_{\1} "),
    (re.compile(r"\{\s*,\s*\}|(?<=\d),\\[!,]\s*(?=\d{3})|(?<=\d)\\!,\\!(?=\d{3})|(?<=\d)(?:\\[,; !]|~)(?=\d{3})"), ","),
    (re.compile(r"(?<!\\)\\[,;:!> ]|(?<!^)(?<!=)(?<!= )~"), " "),  # `~6` is "about 6"
    (re.compile(r"\^\s*\{\s*\\text\s*\{\s*o\s*\}\s*\}"), r"^\\circ "),
    (re.compile(r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degree(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\\(?:cdots|dots|ldots)(?![a-zA-Z])"), r"\\ldots "),
    (re.compile(r"\{\s*([^{}]+?)\s*\\over\s+([^{}]+?)\s*\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\{\s*([^{}]+?)\s*\\choose\s+([^{}]+?)\s*\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*([a-zA-Z\d])\s*([a-zA-Z\d])(?![a-zA-Z])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*([a-zA-Z\d])\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"(\\frac\s*\{[^{}]*\})\s*([a-zA-Z\d])"), r"\1{\2}"),
    (re.compile(r"\\sqrt\s*(\d+|[a-zA-Z])"), r"\\sqrt{\1}"),
]  # fmt: skip
_PLAIN = [
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=[\d)}a-z])\s*\*\s*(?=[\d(\\a-z])"), r"\\cdot "),
    (re.compile(r"<=|=<"), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"!="), r"\\ne "),
    (re.compile(r"\+/-|\+-"), r"\\pm "),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*(\d+)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])sqrt\s*\{"), r"\\sqrt{"),
    (re.compile(r"(?<![\\a-zA-Z])exp\s*\(([^()]*)\)"), r"e^{\1}"),
    (re.compile(r"\\exp\s*\(([^()]*)\)"), r"e^{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])log_?(2|10)(?=\s*\()"), r"\\log_{\1}"),
    (re.compile(r"(?<![\\a-zA-Z])(sin|cos|tan|cot|sec|csc|ln|log|arcsin|arccos|arctan)(?![a-zA-Z])"), r"\\\1 "),
    (re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<![\\a-zA-Z])(?:infinity|infty|inf|oo)(?![a-zA-Z])", re.IGNORECASE), r"\\infty "),
    (re.compile(r"\^\s*\(([^()]*)\)"), r"^{\1}"),
]  # fmt: skip
# Binomials and permutations in letters: C(7,3), {}_7C_3, ^7C_3, C_7^3, 7C3; {}_7P_3, A_7^3.
_N, _K = r"\{?(\d{1,4})\}?", r"\{?(\d{1,4})\}?"
_CHOOSE = [
    (re.compile(r"(?<![a-zA-Z\\])C\(\s*(\d{1,4}),\s*(\d{1,4})\s*\)"), r"\\binom{\1}{\2}"),
    (re.compile(rf"(?:\{{\}}|(?<![\w)}}\]]))\s*[_^]\s*{_N}\s*C\s*_\s*{_K}"), r"\\binom{\1}{\2}"),
    (re.compile(rf"(?<![a-zA-Z\\])C\s*_\s*{_N}\s*\^\s*{_K}"), r"\\binom{\1}{\2}"),
    (re.compile(r"(?<![\w.])(\d{1,4})\s?C\s?(\d{1,4})(?![\w.]|\s*_)"), r"\\binom{\1}{\2}"),
    (re.compile(rf"(?:\{{\}}|(?<![\w)}}\]]))\s*[_^]\s*{_N}\s*P\s*_\s*{_K}"), r"\\frac{\1!}{(\1-\2)!}"),
    (re.compile(rf"(?<![a-zA-Z\\])A\s*_\s*{_N}\s*\^\s*{_K}"), r"\\frac{\1!}{(\1-\2)!}"),
]
_MERIDIEM = re.compile(r"(?<=\d)\s*(?:\\text\s*\{\s*)?([ap])\.?\s?m\b\.?\s*\}?$", re.IGNORECASE)
# A repeating decimal by dots, 0.\dot{1}4285\dot{7}, or by brackets, 0.1(6), as one with a bar.
_REPEATED = [
    (re.compile(r"(?<=[.\d])\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?"), r"\\overline{\1\2\3}"),
    (re.compile(r"(?<=[.\d])\\dot\s*\{?(\d)\}?"), r"\\overline{\1}"),
    (re.compile(r"^(-?\d*\.\d*)\((\d+)\)$"), r"\1\\overline{\2}"),
]
_POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_POWER_WORD = re.compile(rf"(?<=\d)\s*(\\text\s*\{{\s*)?({'|'.join(_POWERS)})(?![a-zA-Z])", re.IGNORECASE)
_MINUTES = re.compile(r"(\d+)\s*\^\\circ\s*(\d+)\s*(?:'|\^\s*\{?\s*\\prime\s*\}?)")
_DOLLAR = re.compile(r"(?<!\\)\$")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def plain_unicode(text: str) -> str:
    """Characters that look like mathematics, as the LaTeX or ASCII that means the same."""
    if text.isascii():
        return text
    text = _RAISED.sub(lambda match: "^{" + "".join(_SUPERSCRIPTS[char] for char in match.group()) + "}", text)
    text = _LOWERED.sub(lambda match: "_{" + "".join(_SUBSCRIPTS[char] for char in match.group()) + "}", text)
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text)
    text = _CUBE_ROOT.sub(lambda match: rf"\sqrt[3]{{{match[1] or match[2]}}}", text)
    return text.translate(_TABLE)


def canonical(text: str) -> str:
    r"""LaTeX with one command for each meaning, `\text{}` kept, blanks single.

    >>> canonical("sqrt(3)/2 ≤ x"), canonical(r"\left( \tfrac12, 1{,}000 \right)")
    ('\\sqrt{3}/2 \\le x', '( \\frac{1}{2}, 1,000 )')
    """
    text = " ".join(plain_unicode(text).split())
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    if "$" in text and r"\text" in text:
        text = _without_mathematics_in_text(text)
    for pattern, replacement in _PLAIN:
        text = pattern.sub(replacement, text)
    text = _POWER_WORD.sub(lambda match: rf"\times 10^{{{_POWERS[match[2].lower()]}}}{match[1] or ''}", text)
    if "C" in text or "P" in text or "A" in text:
        for pattern, replacement in _CHOOSE:
            text = pattern.sub(replacement, text)
    if "." in text:
        for pattern, replacement in _REPEATED:
            text = pattern.sub(replacement, text)
    text = _MINUTES.sub(lambda match: rf"\frac{{{60 * int(match[1]) + int(match[2])}}}{{60}}^\circ ", text)
    text = _DOLLAR.sub(" ", _MERIDIEM.sub(lambda match: f" {match[1].lower()}m", text))
    return _without_outer_braces(" ".join(text.split()).removeprefix("+").strip())


def _without_outer_braces(text: str) -> str:
    """Braces around everything group nothing; around several values they are meant as a set."""
    while text.startswith("{") and brace_pairs(text).get(0) == len(text) - 1:
        text = text[1:-1].strip()
        if "," in text:
            return rf"\{{{text}\}}"
    return text


def _without_mathematics_in_text(text: str) -> str:
    r"""`\text{$\frac{1}{2}$}` as its content."""
    for start, end in brace_pairs(text).items():
        if text[:start].rstrip().endswith(r"\text") and "$" in text[start:end]:
            before = text[:start].rstrip().removesuffix(r"\text")
            return _without_mathematics_in_text(before + text[start + 1 : end] + text[end + 1 :])
    return text


def without_text(text: str) -> str:
    r"""`\text{...}` replaced by its content."""
    return _TEXT.sub(r"\1", text)
