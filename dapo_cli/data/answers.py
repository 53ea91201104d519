"""The reference answer of a row, from the ways data sets write it."""

import json
import re
from decimal import Decimal

from dapo_cli.data.faults import RowFault

THOUSANDS = re.compile(r"-?\$?\d{1,3}(,\d{3})+(\.\d+)?")
INTEGRAL = re.compile(r"(-?\d+)\.0+")
NUMBER = re.compile(r"-?\d+(\.\d+|/\d+)?")
BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")


def reference_answer(value: object, *, worked: bool) -> str:
    r"""The answer that `value` states, as text; empty where it states none.

    `worked`: the value is a worked solution, so only a marked answer counts (`#### 42` or `\boxed{42}`), unless the
    whole of it is a number. Otherwise a text without a mark is the answer itself. Integral floats lose their `.0`
    (`27.0` -> `27`); commas of thousands go after `####` alone, as elsewhere "1,234" may be two numbers.

    >>> reference_answer("3 + 4 = 7 eggs.\n#### 1,007", worked=False), reference_answer(27.0, worked=False)
    ('1007', '27')
    >>> reference_answer(r"Thus $x = \boxed{\frac{1}{2}}$.", worked=True), reference_answer('["5"]', worked=False)
    ('\\frac{1}{2}', '5')

    Raises RowFault for a list of several answers, a box without end, and what is neither text nor number.
    """
    match value:
        case None:
            return ""
        case bool():
            return str(value)
        case int() | float() | Decimal():
            return number_text(value)
        case str():
            return answer_in_text(value.strip(), worked=worked)
        case []:
            return ""
        case [single]:
            return reference_answer(single, worked=worked)
        case [*several]:
            raise RowFault(f"{len(several)} answers where one is expected: {several!r:.80}")
        case _:
            raise RowFault(f"the answer is neither text nor number, but {type(value).__name__}: {value!r:.80}")


def number_text(value: int | float | Decimal) -> str:
    """Plain decimal notation, shortest for a float; empty for NaN and infinities, which stand for missing values."""
    number = Decimal(str(value))
    return _without_zero_fraction(f"{number:f}") if number.is_finite() else ""


def answer_in_text(text: str, *, worked: bool) -> str:
    if text.startswith('["') and isinstance(listed := _json_or_none(text), list):
        return reference_answer(listed, worked=worked)
    last_line = text.rpartition("\n")[2].strip()
    if marked := last_line.startswith("####"):
        text = last_line.removeprefix("####").strip()
        if THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
    if (boxed := last_boxed(text)) is not None:
        return boxed
    if worked and not marked and not NUMBER.fullmatch(text):
        return ""
    return _without_zero_fraction(text)


def _without_zero_fraction(text: str) -> str:
    integral = INTEGRAL.fullmatch(text)
    return integral[1] if integral else text


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces balanced (`\{` and `\}` do not count); None where there is no box.

    `\boxed 7`, without braces, holds what comes before the next space or `$`. Raises RowFault where the last box never
    closes: an earlier one would be another number.
    """
    boxes = list(BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if not text.startswith("{", start):
        return re.split(r"[\s$]", text[start:], maxsplit=1)[0]
    depth, position = 0, start
    while position < len(text):
        match text[position]:
            case "\\":
                position += 1
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return text[start + 1 : position].strip()
        position += 1
    raise RowFault(rf"the last \boxed{{ has no closing brace: {text[boxes[-1].start() :]!r:.80}")


def _json_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def valid_text(text: str) -> str:
    """JSON can smuggle in lone surrogates (`"\\ud800"`), on which hashing and tokenizers fail much later."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise RowFault(f"a lone surrogate, which is no character, in {text!r:.80}")
    return text
