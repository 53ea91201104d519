"""Units of measure behind a value: found, named in one way, and taken off.

Only the words listed here are units: in "3 halves", "5 thousands" or "6 false" the word changes the value.
"""

import re

from dapo_cli.reward.latex import without_text

# One unit between bars: its short name, then other spellings. All but single letters take an s, too.
_SPELLINGS = """
    m meter metre | cm centimeter centimetre | mm millimeter millimetre | km kilometer kilometre 千米 公里
    in inch inches | ft foot feet | yd yard | mi mile | acre | hectare
    g gram | mg milligram | kg kilogram 千克 公斤 | ton tonne | oz ounce | lb pound
    L l liter litre | mL ml milliliter millilitre | gal gallon | qt quart | pint | cup
    s sec second 秒 | min minute 分钟 | h hr hour 小时 | day 天 | week | month | year 年
    mi/h mph | km/h kph | N newton | J joule | W watt | kW kilowatt | V volt | Pa pascal | Hz hertz | eV | keV | calorie
    degree deg 度 | rad radian | dollar USD | cent | euro | yuan 元 | rupee | unit | point | mark | way
    person people 人 | child children kid | man men | woman women | boy | girl | student | player | team | game
    page 页 | book | card | coin | ball | marble | apple | orange | egg | cookie | slice | piece | ticket | tree
    flower | animal | fish | dog | cat | word | question | problem | solution | step | item | triangle | side | edge
"""
_NAMES = {
    spelling.lower() if len(spelling) > 2 else spelling: names.split()[0]
    for names in _SPELLINGS.replace("\n", "|").split("|")
    for name in names.split()
    for spelling in (name, name + "s" * (len(name) > 1))
}
_LONGEST_FIRST = sorted(_NAMES, key=len, reverse=True)
# The case of a short name counts ("6 M" is no length), and one letter alone could be a variable ("3m" but "3 m").
_NAME = "(?:(?ai:{})|{}|(?<=[ /])(?:{}))".format(
    "|".join(name for name in _LONGEST_FIRST if len(name) > 2),
    "|".join(name for name in _LONGEST_FIRST if len(name) == 2),
    "|".join(name for name in _LONGEST_FIRST if len(name) == 1),
)
_UNIT = re.compile(
    r"(?P<value>.*?[\d})\]a-z]) ?(?<![\\a-zA-Z])(?:(?P<square>square |sq\.? )|(?P<cubic>cubic |cu\.? ))?"
    rf"(?P<name>{_NAME})(?: ?(?:/|\bper ) ?(?P<per>{_NAME}))? ?(?:\^ ?\{{?(?P<power>\d)\}}?)? ?\.?"
)
_CURRENCY = re.compile(r"^\s*(?P<sign>-?)\s*(?:\\\$|\\text\s*\{\s*(?:\\?\$|USD)\s*\}|[$€£¥])\s*")
_DEGREES = re.compile(r"\s*\^\\circ\s*$")


def without_unit(text: str) -> tuple[str, str]:
    r"""`text` (canonical LaTeX) without its unit, currency or degree sign, and one name for that; "" if it has none.

    >>> without_unit(r"15\text{ square centimeters}"), without_unit("15 cm^2"), without_unit("6 halves")
    (('15', 'cm2'), ('15', 'cm2'), ('6 halves', ''))
    """
    if match := _CURRENCY.match(text):
        return match["sign"] + text[match.end() :], "dollar"
    if _DEGREES.search(text):
        return _DEGREES.sub("", text), "degree"
    match = _UNIT.fullmatch(" ".join(without_text(text.replace(r"\text", r" \text")).split()))
    if match is None:
        return text, ""
    power = "2" if match["square"] else "3" if match["cubic"] else match["power"] or ""
    return match["value"], _name(match["name"]) + (f"/{_name(match['per'])}" if match["per"] else "") + power


def _name(spelling: str) -> str:
    return _NAMES[spelling.lower() if len(spelling) > 2 else spelling]
