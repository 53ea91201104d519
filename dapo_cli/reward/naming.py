r"""What surrounds a value without changing it: a sentence's beginning, a name in front, a domain behind."""

import re

from dapo_cli.reward import structure
from dapo_cli.reward.latex import GREEK

# Words that name a quantity, and those that link them: "the area of the circle". A word that is not here may turn the
# value into another one: "the last digit of", "half of", "the square root of".
_QUANTITIES = frozenset(
    re.findall(
        r"\w+",
        """area volume perimeter circumference length width height depth radius diameter side sides base hypotenuse
        altitude distance speed time age number total sum product difference quotient ratio probability value minimum
        maximum smallest largest greatest least answer result solution solutions cost price amount angle measure median
        mean average mode range remainder slope degree expected ways integers people students profit weight mass
        temperature rate score income salary""",
    )
)
_LINKS = frozenset(
    re.findall(
        r"\w+",
        """the a an of in for to from at on by and this that these those its their our his her all such final correct
        required desired possible triangle square rectangle circle cube sphere cone cylinder polygon trapezoid hexagon
        given whole real distinct different so thus hence therefore""",
    )
)
_OPENINGS = frozenset({"there", "it", "this", "they", "we", "have", "so", "thus", "hence", "therefore", "the"})
_SYMBOL = rf"(?:[a-zA-Z]|{GREEK}|\\ell)(?:_\{{?[\w,]+\}}?)?"
_TERM = r"\d*[a-zA-Z](?:\^\{?\d\}?)?"
_NAME = re.compile(
    rf"\s*(?:\{{?(?:{_SYMBOL}|[a-zA-Z]{{2,3}}|[A-Z]{{4,6}})\}}?'*"  # x, x_1, x_{{1,2}}, \theta, y', mn, ABCD
    r"|(?P<words>[a-zA-Z]{4,}|\\text\s*\{[a-zA-Z ]+\})"  # Area, \text{Total cost}
    r"|\{?[A-Z]\}?\^\{?(?:-1|T)\}?"  # A^{-1}
    r"|[A-Zfghpqsuvwy](?:\^\{?-1\}?)?\s*\([^()=]*\)|[a-z]\([a-z]\)|\\?[A-Z]\s*\[[A-Z]\]"  # f(3), f^{-1}(x), x(t), E[X]
    rf"|\(\s*{_SYMBOL}(?:\s*,\s*{_SYMBOL})+\s*\)"  # (x,y), (r,\theta)
    rf"|{_TERM}(?:\s*\+\s*{_TERM})+"  # m+n, a^2+b^2
    r"|[a-zA-Z]+(?:\s*:\s*[a-zA-Z]+)+"  # a:b
    r"|\\frac\{[a-zA-Z]+\}\{[a-zA-Z]+\}|\|[a-zA-Z]+\|"  # a/b, |z|
    rf"|\\(?:sin|cos|tan|cot)\s*\{{?(?:\\angle\s*)?{_SYMBOL}\}}?"
    r"|\\(?:vec|hat|bar|overline|overrightarrow)\s*\{[a-zA-Z]+\}"
    r"|(?:m\s*)?\\angle\s*\{?[A-Z]{1,3}\}?)\s*:?=(?!=)\s*"
)
_NO_NAME = re.compile(r"\s*(?:not|mod|is|no|or|and|one|two|ten)\b")
_TUPLE = re.compile(rf"\s*\(\s*({_SYMBOL}(?:\s*,\s*{_SYMBOL})+)\s*\)\s*=\s*\((.*)\)\s*", re.DOTALL)
_EQUALS = re.compile(r"(?<![<>!\\=])=")
# A sentence's beginning: "The area of the circle is", "There are", "Tom has", "It takes".
_BEGINNING = re.compile(
    r"(?:\\text\s*\{\s*)?(?:(?i:final )?(?i:answer)\s*:"
    r"|(?P<words>[a-zA-Z][a-zA-Z ,'+]{0,80}?)\s(?:is|are|equals|was|were)(?=[\s}])"
    r"|(?:[A-Z][a-z]+|[Tt]hey|[Ii]t|[Ww]e|[Ss]he|[Hh]e)\s"
    r"(?:has|have|had|takes?|needs?|gets?|earns?|spends?|pays?|made|makes?)(?=[\s}]))(?:\s*\}\s*|\s+)"
)
# "for all x", "for every real number x", with the set that x is from; nothing that tells cases apart.
_DOMAIN = re.compile(
    r"[\s,]*(?:\\text\s*\{[\s,]*)?(?<![a-zA-Z])for (?:all|any|every)(?:\s*\}\s*)?"
    r"(?:\s*(?:real|positive|nonnegative|natural|integers?|numbers?|values?|of|\\in|\\mathbb\s*\{?[A-Z]\}?|,"
    r"|[a-z](?![a-zA-Z])))*\s*\}?\s*$"
)


def core(text: str) -> str:
    r"""`\text{There are }6\text{ ways}` states 6 ways, and `f(x)=x^2\text{ for all }x` states f(x)=x^2."""
    text = _DOMAIN.sub("", text)
    match = _BEGINNING.match(text)
    if match is None or not _name_a_quantity(match["words"] or "the"):
        return text
    return (r"\text{" if match.group().count("{") > match.group().count("}") else "") + text[match.end() :]


def _name_a_quantity(words: str) -> bool:
    """Whether all words are known to leave a value as it is; letters such as `m+n` beside a word for a quantity."""
    found = words.casefold().replace(",", " ").split()
    unknown = [word for word in found if word not in _QUANTITIES | _LINKS]
    letters = all(re.fullmatch(r"[a-z]{1,3}(?:\+[a-z]{1,3})*", word) for word in unknown)
    return _OPENINGS.issuperset(found) or (letters and not _QUANTITIES.isdisjoint(found))


def num_equals(text: str) -> int:
    return len(_EQUALS.findall(text))


def split_equals(text: str) -> list[str]:
    return _EQUALS.split(text)


def named(text: str) -> tuple[str, str] | None:
    """Name and value of `x = 5`, blanks of the name left out; None where there is none."""
    match = _NAME.match(text)
    if match is None or _NO_NAME.match(text):
        return None
    if match["words"] and not _name_a_quantity(re.sub(r"\\text\s*\{|\}", "", match["words"])):
        return None
    return re.sub(r"[\s:=]|(?<=[_^])\{(?=\w\})|(?<=[_^]\{\w)\}", "", match.group()), text[match.end() :]


def unnamed(text: str) -> str:
    found = named(text)
    return text if found is None else found[1]


def is_named_tuple(text: str) -> bool:
    return _TUPLE.fullmatch(text) is not None


def one_by_one(text: str) -> str:
    """`(p, q) = (3, 2)` as `p=3, q=2`; any other text as it is."""
    match = _TUPLE.fullmatch(text)
    if match is None:
        return text
    names, values = match[1].split(","), structure.split_top(match[2])
    if len(names) != len(values):
        return text
    return ", ".join(f"{name.strip()}={value}" for name, value in zip(names, values, strict=True))
