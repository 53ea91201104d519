"""Numbers read exactly: integers, decimals, fractions, mixed numbers, percent and powers of ten, without floats."""

import re
from fractions import Fraction

MAX_DIGITS = 400  # of one number; longer ones are no answer to a mathematical question
MAX_EXPONENT = 400  # of a power of ten

_GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])"
_BLANK_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?")
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<value>(?:{_GROUPED}|\d+)(?:\.\d*)?|\.\d+)"
    r"(?:(?:[eE]|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^)\s*\{?\s*(?P<exponent>[+-]?\d+)\s*\}?)?"
)
_POWER_OF_TEN = re.compile(r"(?P<sign>[+-]?)\s*10\s*\^\s*\{?\s*(?P<exponent>[+-]?\d+)\s*\}?")
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<whole>\d+)\s*)?\\frac\s*\{\s*(?P<top>[+-]?\s*[\d,.]+)\s*\}"
    r"\s*\{\s*(?P<bottom>[+-]?\s*[\d,.]+)\s*\}"
)
_SLASH = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<whole>\d+)\s+(?=\d))?\(?\s*(?P<top>-?[\d,.]+)\s*/\s*(?P<bottom>-?[\d,.]+)\s*\)?"
)
_REPEATING = re.compile(r"(?P<sign>[+-]?)\s*(?P<fixed>\d*\.\d*)\s*\\overline\s*\{\s*(?P<cycle>\d+)\s*\}")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*percent\s*\}|\bpercent\b|\bper cent\b)\s*$", re.IGNORECASE)


class TooLargeError(Exception):
    """More digits, or a larger power of ten, than any answer needs."""


def exact_number(text: str) -> Fraction | None:
    r"""The rational that `text` (canonical LaTeX) writes, None if it is not just a number. Raises TooLargeError.

    >>> exact_number("1,234"), exact_number(r"-1\frac{1}{2}"), exact_number("3.5e-2"), exact_number("32, 349")
    (Fraction(1234, 1), Fraction(-3, 2), Fraction(7, 200), None)
    """
    text = text.strip()
    while text.startswith(("(", "{")) and text.endswith((")", "}")) and not set("(){},") & set(text[1:-1]):
        text = text[1:-1].strip()
    if _BLANK_GROUPED.fullmatch(text):
        text = text.replace(" ", "")
    if match := _POWER_OF_TEN.fullmatch(text):
        return _signed(match, _power_of_ten(match["exponent"]))
    if match := _NUMBER.fullmatch(text):
        return _signed(match, _decimal(match["value"]) * _power_of_ten(match["exponent"]))
    if match := _REPEATING.fullmatch(text):
        return _signed(match, _repeating(match["fixed"], match["cycle"]))
    if match := _FRACTION.fullmatch(text) or _SLASH.fullmatch(text):
        top, bottom = exact_number(match["top"].replace(" ", "")), exact_number(match["bottom"].replace(" ", ""))
        if top is None or bottom is None or bottom == 0:
            return None
        if match["whole"] is None:
            return _signed(match, top / bottom)
        if "." not in match["top"] + match["bottom"] and 0 < top < bottom:
            return _signed(match, _decimal(match["whole"]) + top / bottom)  # a mixed number
        # What cannot be one, such as 2\frac{5}{2}, is a product; "2 5/2" is nothing.
        return None if "/" in text else _signed(match, _decimal(match["whole"]) * top / bottom)
    return None


def without_percent(text: str) -> tuple[str, bool]:
    """`text` without a percent sign or word at its end, and whether it had one."""
    stripped = _PERCENT.sub("", text)
    return (stripped, True) if stripped != text and stripped.strip() else (text, False)


def _signed(match: re.Match[str], value: Fraction) -> Fraction:
    return -value if match["sign"] == "-" else value


def _decimal(digits: str) -> Fraction:
    digits = digits.replace(",", "")
    if len(digits) > MAX_DIGITS:
        raise TooLargeError(f"a number of {len(digits)} digits")
    whole, _, fraction = digits.partition(".")
    return Fraction(int((whole + fraction) or "0"), 10 ** len(fraction))


def _repeating(fixed: str, cycle: str) -> Fraction:
    """0.1(6) is (16 - 1) / 90: the cycle over as many nines, shifted behind the fixed digits."""
    if len(fixed) + len(cycle) > MAX_DIGITS:
        raise TooLargeError(f"a number of {len(fixed) + len(cycle)} digits")
    shift = 10 ** len(fixed.partition(".")[2])
    return _decimal(fixed) + Fraction(int(cycle), (10 ** len(cycle) - 1) * shift)


def _power_of_ten(exponent: str | None) -> Fraction:
    if exponent is None:
        return Fraction(1)
    if len(exponent) > 6 or abs(int(exponent)) > MAX_EXPONENT:
        raise TooLargeError(f"10 to the power {exponent[:12]}")
    return Fraction(10) ** int(exponent)
