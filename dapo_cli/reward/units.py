"""Units of measure behind a value: found, named in one way, and taken off.

Only the words listed here are units: in "3 halves", "5 thousands" or "6 false" the word changes the value.
"""

import re

from dapo_cli.reward.latex import without_text

# One unit between bars: its short name, then other spellings. All but single letters take an s, too.
_SPELLINGS = """
    m meter metre 米 | cm centimeter centimetre 厘米 | mm millimeter millimetre 毫米 | dm decimeter 分米
    km kilometer kilometre 千米 公里 | nm nanometer | mol mole | erg | kJ | kPa | mg/L | rpm | ppm | decade
    century centuries | in inch inches | ft foot feet | yd yard | mi mile | acre | hectare | g gram 克
    mg milligram 毫克 | kg kilogram 千克 公斤 | ton tonne 吨 | oz ounce | lb pound | L l liter litre 升
    mL ml milliliter millilitre 毫升 | gal gallon | qt quart | pint | cup | s sec second 秒 | min minute 分钟
    h hr hour 小时 | day 天 日 | week 周 | month 个月 月 | year 年 | mi/h mph | km/h kph 千米/时 | N newton
    J joule | W watt | kW kilowatt | V volt | Pa pascal | Hz hertz | eV | keV | calorie | degree deg 度
    rad radian | dollar USD | cent | euro | yuan 元 | rupee | unit | am | pm | 岁 | way | method | 种 | case
    outcome | arrangement | combination | permutation | choice | path | route | subset | set 组 | tuple | triple
    sequence | integer | number | digit | term | value | factor | divisor | multiple | solution | pattern
    coloring colouring | configuration | possibility possibilities | point 分 | mark | side | edge
    vertex vertices | face | corner | diagonal | angle | line | region | triangle | rectangle | circle | tile
    block | row | column | cell | box boxes | person people 人 名 | child children kid | man men | woman women
    boy | girl | student | player | team 队 | game | match | matches | member | friend | teacher | worker
    customer | guest | voter | adult | passenger | visitor | family families | page 页 | book 本 | card | coin
    ball | marble | apple | orange | egg | cookie | slice | piece | ticket | tree 棵 | toy | flower | animal 只
    fish | dog | cat | cow | sheep | chicken | horse | bird | rabbit | word | letter | question | problem | step
    item 个 件 次 条 张 支 块 台 箱 袋 位 朵 | candy candies | element | committee | handshake | intersection
    round | group | plane | polynomial | root | cake | pie | pizza | banana | pencil | pen | sticker | stamp
    shirt | bottle | bag | basket | jar | car 辆 | bus buses | truck | train | bike | wheel | seat | chair
    table | room | house | floor | bead | stone | stick | toothpick | button | flag | lamp | sandwich sandwiches
    burger | vote | trip | lap | move | flip | roll | toss tosses | crayon | muffin | cupcake | brownie | bagel
    video | movie | song | class classes | course | lesson | test | exam | bacteria | bacterium
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
    "|".join(name for name in _LONGEST_FIRST if len(name) == 2 or (len(name) == 1 and not name.isascii())),
    "|".join(name for name in _LONGEST_FIRST if len(name) == 1 and name.isascii()),
)
_UNIT = re.compile(
    r"(?P<value>.*?[\d})\]a-z]) ?(?<![\\a-zA-Z])"
    r"(?:(?:such|positive|different|distinct|possible|real|ordered|valid|more|total) )*"
    r"(?:(?P<square>square |sq\.? |平方)|(?P<cubic>cubic |cu\.? |立方))?"
    rf"(?P<name>{_NAME}|(?<=ordered )pairs?)(?: ?(?:/|\bper ) ?(?P<per>{_NAME}))? ?(?:\^ ?\{{?(?P<power>\d)\}}?)?"
    r"(?: (?:old|of age|tall|long|wide|high|deep|each|in total|in all|altogether|away))? ?\.?"
)
_CURRENCY = re.compile(r"^\s*(?P<sign>-?)\s*(?:\\\$|\\text\s*\{\s*(?:\\?\$|USD)\s*\}|(?P<other>[€£¥]))\s*")
_CURRENCY_BEHIND = re.compile(r"(-?[\d.,]+)\s*(\\\$|[€£¥])")
_CURRENCIES = {None: "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_IN_TEXT = re.compile(r"\\text\s*\{[^{}]*\}\s*(?:\^.*)?$")
_NUMBER = re.compile(r"[-+]?[\d.,/ ]+(?:\\times 10\^\{[-+\d]+\})?|-?\d*\s*\\frac\{\d+\}\{\d+\}")
_DEGREES = re.compile(r"\s*\^\\circ\s*(?:(?:\\text\s*\{\s*)?(?P<scale>[CF])\s*\}?)?\s*$")
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")


def without_unit(text: str) -> tuple[str, str]:
    r"""`text` (canonical LaTeX) without its unit, currency or degree sign, and one name for that; "" if it has none.

    >>> without_unit(r"15\text{ square centimeters}"), without_unit("15 cm^2"), without_unit("6 halves")
    (('15', 'cm2'), ('15', 'cm2'), ('6 halves', ''))
    """
    if match := _CURRENCY.match(text):
        amount = match["sign"] + text[match.end() :]
        return (text, "") if without_unit(amount)[1] else (amount, _CURRENCIES[match["other"]])
    if match := _CURRENCY_BEHIND.fullmatch(text):
        return match[1], _CURRENCIES[None if match[2] == r"\$" else match[2]]
    if degrees := _DEGREES.search(text):
        # In `\sin 20^\circ` the sign belongs to the argument; one of several signs is no unit.
        if _ANGLE_FUNCTION.search(text) or text.count(r"\circ") > 1:
            return text, ""
        return text[: degrees.start()], f"degree{degrees['scale'] or ''}"
    match = _UNIT.fullmatch(" ".join(without_text(text.replace(r"\text", r" \text")).split()))
    if match is None:
        return text, ""
    # Outside of \text, one letter behind anything but a number is a variable: `\frac12 m v`.
    letter = len(match["name"]) == 1 and match["name"].isascii() and not _IN_TEXT.search(text)
    if letter and not _NUMBER.fullmatch(match["value"]):
        return text, ""
    if _UNIT.fullmatch(match["value"]):
        return text, ""
    power = "2" if match["square"] else "3" if match["cubic"] else match["power"] or ""
    return match["value"], _name(match["name"]) + (f"/{_name(match['per'])}" if match["per"] else "") + power


def _name(spelling: str) -> str:
    return _NAMES.get(spelling.lower() if len(spelling) > 2 else spelling, "pair")
