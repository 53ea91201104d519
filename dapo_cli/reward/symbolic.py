"""Equality of two expressions by sympy, parsed by math-verify's LaTeX grammar: the dearest tier, imported on first use.

Values are compared exactly or at high precision instead of by `simplify`: it costs less, runs away less easily, and 60
digits at random points tell expressions apart where math-verify's own 15 digits do not (1/2004! and 1/2006!).
"""

import functools
import random
import re
from collections.abc import Iterator
from typing import Any

from dapo_cli.reward.extract import brace_pairs

MAX_CHARS = 400  # longer expressions are no final answer
MAX_NESTING = 12  # brackets within brackets; the parser recurses
MAX_EXPONENT = 20_000  # of an exponent, or an argument of a factorial or binomial, as written out
MAX_EXPONENT_DIGITS = 5
DIGITS = 60
POINTS = 4

_DECIMAL = re.compile(r"(?<![\d_{])(\d*)\.(\d+)")
_MIXED = re.compile(r"(?<![\w^.])(\d+)\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_EXPONENT = re.compile(r"\^\s*(?:(?P<group>\{)|(?P<plain>[+-]?\d+|\\?\w+))")
_NUMERIC_POWER = re.compile(r"(\d+)\s*\}?\s*\^\s*\{?\s*(\d+)")
# The grammar takes a command from the front of a longer word: `\intx` is an integral.
_GROWING = re.compile(r"!|\\(?:binom|exp)")
_RUNAWAY = re.compile(r"\\(?:int|sum|prod|lim|frac\s*\{d(?![a-zA-Z])|bmod|pmod|mod|Gamma|gcd|lcm|det)")
_NESTED_FACTORIAL = re.compile(r"!\s*[)}]+\s*!|!\s*!|\\exp\s*\(\s*\\exp|\d{5,}\s*[)}]*\s*!")
_LARGE_NUMBER = re.compile(r"\d{41,}")
# What the grammar drops without a word, or reads as something else: marks and dots, a base, a transpose, "2 4".
_MISREAD = re.compile(
    r"['~]|\.\.|\\(?:ldots|approx)|[\d)]\s*_|\^\s*\{?\s*(?:T\b|\\top|\\prime)|\d\s+\.?\d|[^\x00-\x7f\w]"
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
    equal_expressions(r"\frac{1}{2}", "x")


def too_complex(text: str) -> str | None:
    """Why `text` may not be parsed: it cannot be a final answer, or its value would be astronomically large."""
    if len(text) > MAX_CHARS:
        return "too_long"
    if nesting(text) > MAX_NESTING or text.count("|") > MAX_NESTING:
        return "too_deep"
    if _LARGE_NUMBER.search(text) or _grows(text):
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
    if any(_large(exponent) or "!" in exponent for exponent in exponents):
        return True
    # A factorial or binomial of what is itself a power or a large number, and one within another.
    return growing > 0 and ("!!" in text or growing > 6 or _large(text) or bool(_NESTED_FACTORIAL.search(text)))


def _exponents(text: str) -> Iterator[str]:
    pairs = brace_pairs(text)
    for match in _EXPONENT.finditer(text):
        yield match["plain"] or text[match.end() : pairs.get(match.end() - 1, len(text))]


def _large(exponent: str) -> bool:
    """Whether an exponent holds a number, or a power of numbers, above MAX_EXPONENT, or is itself a tower of powers."""
    if re.search(rf"\d{{{MAX_EXPONENT_DIGITS + 1},}}", exponent) or exponent.count("^") > 1:
        return True
    powers = _NUMERIC_POWER.findall(exponent)
    return any(len(power) > 2 or int(base) ** int(power) > MAX_EXPONENT for base, power in powers)


def equal_expressions(given: str, reference: str) -> bool:
    """Whether two canonical LaTeX expressions or equations are equal. Both must have passed `too_complex`."""
    left, right = _parse(given), _parse(reference)
    if left is None or right is None:
        return False
    try:
        return _equal(left, right)
    except TypeError:  # of two kinds that have no difference, such as a set and a number
        return False


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    """The sympy object, None if the grammar does not know the text. Decimals and mixed numbers become fractions."""
    text = _DECIMAL.sub(lambda match: rf"\frac{{{match[1]}{match[2]}}}{{{10 ** len(match[2])}}}", text)
    text = _MIXED.sub(lambda match: rf"\frac{{{int(match[1]) * int(match[3]) + int(match[2])}}}{{{match[3]}}}", text)
    try:
        return _parser()(text, not re.search(r"(?<![a-zA-Z\\])i(?![a-zA-Z])|\\text\{i\}", text))
    except MemoryError:
        raise
    except Exception:
        return None


def _equal(left: Any, right: Any) -> bool:
    import sympy

    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        return _proportional(left.lhs - left.rhs, right.lhs - right.rhs)
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return _same_values(left, right)
    return type(left) is type(right) and not isinstance(left, sympy.Expr) and bool(left == right)


def _same_values(left: Any, right: Any) -> bool:
    """Equal exactly where both are rational, else equal at random points to many digits."""
    if not left.free_symbols and not right.free_symbols:
        left, right = left.doit(), right.doit()
        if left.is_Rational and right.is_Rational:
            return bool(left == right)
    pairs = _values([left, right])
    return pairs is not None and all(_close(a, b) for a, b in pairs)


def _proportional(left: Any, right: Any) -> bool:
    """Whether two differences vanish together: their ratio is one nonzero constant."""
    pairs = _values([left, right])
    if pairs is None or any(a == 0 or b == 0 for a, b in pairs):
        return False
    first = pairs[0]
    return all(_close(a * first[1], b * first[0]) for a, b in pairs)


def _values(expressions: list[Any]) -> list[list[Any]] | None:
    """Values of each expression at the same random points; None when they have no finite value there."""
    import sympy

    names = sorted({symbol.name for expression in expressions for symbol in expression.free_symbols})
    rng = random.Random("points")
    rows = []
    for point in range(4 * POINTS):
        at = {name: sympy.Rational(rng.randint(100, 400) * (-1 if point % 2 else 1), 127) for name in names}
        row = [_value(expression, at) for expression in expressions]
        if all(value is not None for value in row):
            rows.append(row)
        if len(rows) == (POINTS if names else 1):
            return rows
        if not names:
            break
    return rows if names and len(rows) >= 2 else None


def _value(expression: Any, at: dict[str, Any]) -> Any:
    """The number to DIGITS digits, behind the decimal point where it is large; None if undefined."""
    import sympy

    expression = expression.xreplace({symbol: at[symbol.name] for symbol in expression.free_symbols}).doit()
    value = sympy.N(expression, DIGITS)
    if not value.is_number or not value.is_finite:
        return None
    magnitude = int(sympy.log(abs(value), 10).evalf(15)) if abs(value) > 1 else 0
    return value if magnitude == 0 else sympy.N(expression, DIGITS + min(magnitude, 10 * DIGITS))


def _close(left: Any, right: Any) -> bool:
    difference, size = abs(left - right), max(abs(left), abs(right))
    return bool(difference == 0 or difference < min(size, 1) * 10.0 ** (20 - DIGITS))
