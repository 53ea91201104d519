"""Units of measure behind a value: found, named in one way, and taken off."""

import re

# One letter alone could be a variable ("3m"), so that it needs a blank before it.
_UNIT_WORDS = (
    r"(?:(?:square |cubic |sq\.? ?|cu\.? ?)?(?:cm|mm|km|ft|feet|foot|in|inch|inches|yd|yards?|mi|miles?|units?"
    r"|centimeters?|meters?|metres?|kilometers?|hours?|hrs?|minutes?|mins?|seconds?|secs?|days?|weeks?|months?|years?"
    r"|degrees?|dollars?|cents?|kg|grams?|pounds?|liters?|litres?|mph|points?|people|ways|eV|Hz)|(?<=\s)[mhsgJNVW])"
    r"(?: per [a-z]+|/[a-z]+)?"
)
_UNIT = re.compile(
    r"(?P<value>.*?[\d})\]a-z])\s*(?:\\text\s*\{(?P<text>[^{}]*)\}"
    rf"|(?P<word>(?<![\\a-zA-Z]){_UNIT_WORDS}|(?<=\d)\s+[a-z]{{3,}}(?: [a-z]{{2,}}){{0,1}}))"
    r"(?P<power>\s*\^\s*\{?\d\}?)?\.?",
    re.DOTALL,
)
# Words behind a number that are part of its value, or of a hedge.
_NOT_A_UNIT = re.compile(
    r"\b(?:and|or|to|i|hundred|thousand|million|billion|trillion|dozen|pi|percent|not|than|if|base|mod|plus|minus|times"
    r"|over|divided|squared|cubed|choose|factorial|root|at|least|most|about|less|more|from|is|but|maybe|wait)\b",
    re.IGNORECASE,
)
_SAME_UNIT = {
    "mile per hour": "mph", "hr": "hour", "h": "hour", "min": "minute", "sec": "second", "s": "second",
    "foot": "ft", "feet": "ft", "inch": "in", "inche": "in", "yard": "yd", "mile": "mi",
    "centimeter": "cm", "meter": "m", "metre": "m", "kilometer": "km", "gram": "g", "dollar": "$",
}  # fmt: skip
_CURRENCY = re.compile(r"^\s*(?P<sign>-?)\s*(?:\\\$|\\text\s*\{\s*(?:\\?\$|USD)\s*\}|[$€£¥])\s*")
_DEGREES = re.compile(r"\s*\^\\circ\s*$")


def without_unit(text: str) -> tuple[str, str]:
    r"""`text` (canonical LaTeX) without its unit, currency or degree sign, and one name for that; "" if it has none.

    >>> without_unit(r"15\text{ square centimeters}"), without_unit("15 cm^2"), without_unit("10 apples")
    (('15', 'cm2'), ('15', 'cm2'), ('10', 'apple'))
    """
    if match := _CURRENCY.match(text):
        return match["sign"] + text[match.end() :], "$"
    if _DEGREES.search(text):
        return _DEGREES.sub("", text), "degree"
    match = _UNIT.fullmatch(text)
    if match is None or not match["value"].strip():
        return text, ""
    unit = match["text"] if match["text"] is not None else match["word"]
    if _NOT_A_UNIT.search(unit):
        return text, ""
    return match["value"], _unit_name(unit, re.sub(r"\D", "", match["power"] or ""))


def _unit_name(unit: str, power: str) -> str:
    """One name for a unit: singular, short, with its power as a number ("square centimeters" is "cm2")."""
    unit = unit.strip().lower().rstrip(".")
    for word, number in (("square ", "2"), ("sq ", "2"), ("sq. ", "2"), ("cubic ", "3"), ("cu ", "3"), ("cu. ", "3")):
        if unit.startswith(word):
            unit, power = unit.removeprefix(word), number
    first, per, rest = unit.partition(" per ")
    unit = (first.removesuffix("s") if len(first) > 2 else first) + per + rest
    return _SAME_UNIT.get(unit, unit) + power
