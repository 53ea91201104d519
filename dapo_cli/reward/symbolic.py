"""Equality of what `expression` does not read, parsed by math-verify's LaTeX grammar: the dearest tier, which imports
sympy on first use.

The grammar's trees are compared by the same rules as plain expressions (`sympy_tree` compiles them). Sympy itself
evaluates and simplifies nothing: that is slow, and can run away.
"""

import functools
import math
import re
from collections.abc import Iterator
from typing import Any

from dapo_cli.reward.boxes import brace_pairs
from dapo_cli.reward.compare import same
from dapo_cli.reward.expression import NotPlainError
from dapo_cli.reward.sympy_tree import compiled

MAX_CHARS = 400  # longer expressions are no final answer
MAX_NESTING = 12  # brackets within brackets; the parser recurses
MAX_EXPONENT = 20_000  # of an exponent, or an argument of a factorial or binomial, as written out
MAX_EXPONENT_DIGITS = 5
MAX_MATRIX_ENTRIES = 12  # of a matrix within an expression

_IMAGINARY = re.compile(r"(?<![a-zA-Z\\])i(?![a-zA-Z])|\\text\{i\}")
_DECIMAL = re.compile(r"(?<![\d_])(?<!_\{)(\d*)\.(\d+)")
_MIXED = re.compile(r"(?<![\w^.])(\d+)\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*\\circ(?![a-zA-Z])")
_EXPONENT = re.compile(r"\^\s*(?:(?P<group>\{)|(?P<plain>[+-]?\d+|\\?\w+))")
_NUMERIC_POWER = re.compile(r"(\d+)\s*\}?\s*\^\s*\{?\s*(\d+)")
_GROWING = re.compile(r"!|\\(?:binom|exp)")
# The grammar takes a command from the front of a longer word: `\intx` is an integral.
_RUNAWAY = re.compile(
    r"\\(?:int|lim|frac\s*\{d(?![a-zA-Z])|bmod|pmod|mod|Gamma|gcd|lcm|det|operatorname|begin\{vmatrix)"
    r"|\\end\s*\{\w+\}\s*\^"
)
_NESTED_FACTORIAL = re.compile(r"!\s*[)}]+\s*!|!\s*!|\\exp\s*\(\s*\\exp|\d{5,}\s*[)}]*\s*!")
_LARGE_NUMBER = re.compile(r"\d[eE][+-]?\d{3,}")
# What the grammar drops without a word, or reads as something else: marks and dots, a base, a transpose, "2 4".
_MISREAD = re.compile(
    r"['\"~:]|\\\$|\.\.|\\(?:ldots|approx)|[\d)]\s*_|\^\s*\{?\s*(?:T\b|\\top|\\prime)|\d\s+\.?\d"
    r"|\^\s*(?:\d+|[a-zA-Z]|\{[^{}]*\})\s*\^|\\sqrt\s*\[(?!\s*(?:\d{1,3}|[a-z])\s*\])|[^\x00-\x7f\w]"
    r"|\b0[xXbB]\d|\\angle|(?<!_)\{[^{}]*\}\s*\d|(?<![\^_\d.])\d+\s*\{"
)


@functools.cache
def _parser() -> Any:
    from latex2sympy2_extended import NormalizationConfig, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

    config = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    # Everything side by side is a product: the library's own method makes `2(4)` and `\frac{2}{1}4` a sum, 6.
    converter = type("Converter", (_Latex2Sympy,), {"convert_postfix_list": _product})
    return lambda text, is_real: converter(is_real=is_real).parse(normalize_latex(text, config))


def _product(converter: Any, factors: list[Any]) -> Any:
    values = [converter.convert_postfix(factor) for factor in factors]
    return functools.reduce(converter.mul_flat, values)


def warm_up() -> None:
    """Load sympy and the grammar's tables, which take up to 2 s, before the first expression does."""
    assert _same(_parse(r"\frac{2}{4}"), _parse(r"\frac{1}{2}")), "math-verify's grammar reads no fraction"


def too_complex(text: str) -> str | None:
    """Why `text` may not be parsed: it cannot be a final answer, or its value would be astronomically large."""
    if len(text) > MAX_CHARS:
        return "too_long"
    if nesting(text) > MAX_NESTING or text.count("|") > MAX_NESTING:
        return "too_deep"
    if _LARGE_NUMBER.search(text) or _grows(text) or text.count("&") > MAX_MATRIX_ENTRIES:
        return "too_large"
    if _MISREAD.search(text):
        return "unreadable"
    return "unevaluated" if _RUNAWAY.search(text) else None


def nesting(text: str) -> int:
    """Most brackets open at a time."""
    depth = deepest = 0
    for char in text:
        depth += (char in "{([") - (char in "})]")
        deepest = max(deepest, depth)
    return deepest


def _grows(text: str) -> bool:
    """Whether a value in `text` may have more digits than can be written out: large exponents, towers, factorials."""
    growing = len(_GROWING.findall(text))
    exponents = list(_exponents(text))
    if any(_large(exponent) or _GROWING.search(exponent) for exponent in exponents):
        return True
    # A factorial or binomial of what is itself a power or a large number, and one within another.
    return growing > 0 and (growing > 6 or _large(text) or bool(_NESTED_FACTORIAL.search(text)))


def _exponents(text: str) -> Iterator[str]:
    pairs = brace_pairs(text)
    for match in _EXPONENT.finditer(text):
        yield match["plain"] or text[match.end() : pairs.get(match.end() - 1, len(text))]


def _large(exponent: str) -> bool:
    """Whether an exponent holds a number, or a power of numbers, above MAX_EXPONENT, or is itself a tower of powers."""
    if re.search(rf"\d{{{MAX_EXPONENT_DIGITS + 1},}}", exponent) or exponent.count("^") > 1:
        return True
    if math.prod(max(1, int(number)) for number in re.findall(r"\d+", exponent)) > MAX_EXPONENT:
        return True
    powers = _NUMERIC_POWER.findall(exponent)
    return any(len(power) > 2 or int(base) ** int(power) > MAX_EXPONENT for base, power in powers)


def equal(given: str, reference: str) -> bool | None:
    """Whether two canonical LaTeX expressions or equations are equal; None where the grammar does not read one of them.
    Both must have passed `too_complex`."""
    if r"\circ" in given + reference:
        return False  # degrees of what is no number
    if _need_case(given, reference):
        return False  # the grammar makes no difference between R and r
    left, right = _parse(given), _parse(reference)
    return None if left is None or right is None else _same(left, right)


def _need_case(given: str, reference: str) -> bool:
    """Whether the two texts together have a letter in both cases."""
    letters = set(re.findall(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", given + reference)))
    return any(letter.swapcase() in letters for letter in letters)


def with_fractions(text: str) -> str:
    """Decimals, mixed numbers and degrees as fractions."""
    text = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})", text)
    text = _DECIMAL.sub(lambda match: rf"\frac{{{match[1]}{match[2]}}}{{{10 ** len(match[2])}}}", text)
    return _MIXED.sub(_improper, text)


def _improper(mixed: re.Match[str]) -> str:
    whole, top, bottom = (int(part) for part in mixed.groups())
    return rf"\frac{{{whole * bottom + top}}}{{{bottom}}}" if 0 < top < bottom else mixed.group()


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    """The sympy object, unevaluated as far as the grammar allows; None if it does not know the text."""
    parser = _parser()
    try:
        return parser(text, not _IMAGINARY.search(text))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # the grammar has no class of its own for what it does not know
        return None


def _same(left: Any, right: Any) -> bool:
    """Whether two sympy objects are the same: by value where they are expressions or equations, else as they stand."""
    import sympy

    if isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase):
        return left.shape == right.shape and all(map(_same, left.flat(), right.flat()))
    try:
        found = same(compiled(left), compiled(right))
    except NotPlainError:
        found = None
    if found is not None:
        return found
    return _shape(left) == _shape(right) and not left.has(sympy.zoo, sympy.nan)  # 3/0 is not 5/0


def _shape(parsed: Any) -> Any:
    """A tree to compare by, factors and summands in one order; the grammar keeps them as written."""
    arguments = [_shape(argument) for argument in getattr(parsed, "args", ())]
    if not arguments:
        return str(parsed)
    name = type(parsed).__name__
    return (name, *(sorted(arguments, key=repr) if name in ("Add", "Mul", "Equality", "FiniteSet") else arguments))
