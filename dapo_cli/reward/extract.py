"""The final answer that a response states, read as a person would: the last explicit statement counts.

Everything here is linear in the length of the text: plain searches, and patterns without nested repetition.
"""

import re
from dataclasses import dataclass

from dapo_cli.reward.boxes import Boxes, around, joined, last_boxes

MAX_RESPONSE_CHARS = 20_000  # the end of the response; an answer stated earlier than this is not the final one
MAX_ANSWER_CHARS = 2_000  # of one statement

INTEGER_END_CHARS = 80
_INTEGER_AT_END = re.compile(
    r"(?:\n(?:\*\*)?(?:Final )?Answer:(?:\*\*)? ?(?P<line>-?\d{1,18})"
    r"|(?:\n|[a-z] (?:is|get|have) )(?:\$|\\[(\[])?\\boxed\{(?P<boxed>-?\d{1,18})\}(?:\$|\\[)\]])?)\.?\n?\Z",
    re.ASCII,
)
_NOT_SO_SIMPLE = re.compile(
    r"(?i)answer|答|\bor\b|\bnot\b|\band\b|\bif\b|\bwrong\b|[<>≤≥?]|\\(?:[gl]e|ne|[gl]t|approx)"
)
_NOISE = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]"  # terminal colours
    r"|[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\ufeff]"  # control and invisible characters
)
# A transcript that begins with the prompt's turns, or with the name of the answering one.
_TURN_START = re.compile(r"\s*(?:<\|im_start\|>(?:system|user)\b.*?)?<\|im_start\|>assistant\b", re.DOTALL)
_TURN_END = re.compile(r"<\|(?:im_start|im_end|endoftext|eot_id|end_of_solution|end)\|>|</s>")
_MARKER = re.compile(
    r"[aA]nswer|ANSWER|(?<=[cC]orrect )(?:option|choice)|\bAns(?=\.?:)|答案|^答(?=[：:])|故选|^[ \t]*####[ \t]+(?=\S)",
    re.MULTILINE,
)
_COLON = re.compile(
    r"[ \t]*(?:\((?P<note>[^()\n]{0,40})\))?[*_ \t]{0,6}[:：][*_ \t]{0,6}"
)  # Answer: · **Final Answer** :
_IS = re.compile(
    r"[ \t](?:to (?:the|this) (?:problem|question)[ \t])?(?:(?:is|must be|should be|equals)\b|=)(?:[ \t]*[:：])?"
    r"(?:[ \t]+(?:therefore|thus|hence|then|clearly|indeed|simply|just|exactly|actually|still|equal to|given by)\b,?"
    r"(?=[ \t]*[$\\\d(-]))*"
)
_CHINESE_IS = re.compile(r"[*】]{0,3}[ \t]*(?:[:：]|(?:是|为)[:：]?|(?<=】)|(?<=故选))[ \t]*")
_CHINESE_NOT = re.compile(r"(?:错误?的?|假|非|不是|没有)$")
# A heading is a line of its own, and its value is on the next line.
_HEADING = re.compile(r"[#>*_ \t-]{0,8}(?:(?:[fF]inal|FINAL)[ \t])?")
_LINE_END = re.compile(r"[*_ \t]{0,6}$", re.MULTILINE)
# What may stand right before "answer" in its clause; and what in that clause makes it no assertion.
_CLAUSE_END = re.compile(r"[.!?;:,\n。！？；：，]")
_ASSERTING = re.compile(
    r"(?i)(?:^|.*?\b(?:the|our|my|your|so|thus|hence|therefore|then|and|is)\b)[\s*_#>\[({\"'-]*"
    r"(?:(?:final|correct|required|desired|exact|numerical|right|overall|complete|full|simplified|actual|only|short|direct)"
    r"[\s*_]+)*$",
    re.DOTALL,
)
_NO_WORDS = re.compile(r"[^a-zA-Z'’*_ \t#>\[(-]")
_DOUBT = re.compile(
    r"(?i)\b(?:not?|never|cannot|wrong|incorrect|false|doubt|suppose|assume|if|impossible|unlikely|might|could|would|may"
    r"|maybe|perhaps|unless|whether|claims?|says?|guess|or)\b|n't\b"
)
_EXAMPLE = re.compile(r"(?i)\b(?:example|e\.g\.|format)[^\n]{0,20}$")
# Mathematics that opens on a line of its own, up to its closing.
_DISPLAY = re.compile(r"(\$\$|\\\[|\$)[ \t]*\n(.*?)(?:\$|\\\])", re.DOTALL)
# A clause behind the value that adds nothing to it.
_REASON = re.compile(
    r",\s+as (?:required|desired|claimed|expected|needed|stated|requested|wanted|was to be shown)$|\s+above$"
)
_NESTED = re.compile(r"\banswer" + _IS.pattern, re.IGNORECASE)
_ONLY_VALUE = re.compile(r"\$[^$\n]{1,200}\$|[+-]?[\d.,/]{1,200}%?")
_SENTENCE_END = re.compile(r"\.(?=\s|$)|。|\n")
_GOES_ON = re.compile(r"\s*(?:[Oo]r|OR)\b[,:]?")
_EDGE = re.compile(r"^(?:[\s*_`]|\\[,;:! ])+|(?:[\s*_`~✓✔✅☑]|\\[,;:! ]|\\(?=$))+$")
_CLOSING = re.compile(r"(?:(?<!\.)\.|[。;；，]|(?<!\\),)$")  # "6..." is cut off, not closed
_DOLLAR = re.compile(r"(?<!\\)\$")
_VALUE_LIKE = re.compile(r"[\d\\$]|^\(?[A-Ja-j]\)?$|^(?i:yes|no|true|false)$")
# Words after "the answer is" that start no value: "the answer is then found by", "the answer is not".
_NO_VALUE = re.compile(
    r"(?i)(?:not|then|that|thus|therefore|found|given|obtained|easy|clear|easily|clearly|correct|right|checked|verified"
    r"|confirmed|consistent|reasonable|indeed|also|now|as|because|since|what|in the|boxed|unique|exact|helpful|less"
    r"|greater|more|larger|smaller|between|close|near|above|below|at (?:least|most)|always|positive|negative)\b"
    r"|(?i:an?|the)\s+[a-z]{2}"
)


@dataclass(frozen=True)
class Extraction:
    """`rule`: box, boxes (several joined, as a list), answer_line, prose, hashes, tag, bare, or none (no answer)."""

    answer: str | None
    rule: str


NONE = Extraction(None, "none")


def extract(response: str) -> Extraction:
    r"""The last stated final answer of `response`, after its reasoning block; `NONE` where nothing is stated.

    >>> extract("So \\boxed{41}? No.\n**Final Answer:** $42$").answer
    '42'
    """
    if at_end := _integer_at_end(response):
        return at_end
    text = _NOISE.sub("", _answer_part(response)[-MAX_RESPONSE_CHARS:])
    boxes = last_boxes(text)
    words = NONE
    # From the last marker back to the last box, which is the later statement when it follows a marker or is its value.
    for marker in reversed(list(_MARKER.finditer(text, boxes.end if boxes else 0))):
        rule, end = _marker_kind(text, marker)
        if not rule:
            continue
        value = _value_after(text, end, rule)
        if rule == "tag":
            value = _with_tag_before(text, marker.start(), value)
        if value is None and rule == "answer_line":
            return NONE  # "Answer:" and nothing behind it takes back what was said before
        if value is None:
            continue
        if rule in ("prose", "hashes") and not _VALUE_LIKE.search(value):
            # "The answer is unique", "#### Check": words about an answer, unless there is no other.
            words = words if words.answer else Extraction(value, rule)
            continue
        return Extraction(value, rule)
    if boxes is not None:
        return _of_boxes(text, boxes)
    if words.answer:
        return words
    bare = text.strip().rstrip(".")
    return Extraction(bare.strip("$").strip(), "bare") if _ONLY_VALUE.fullmatch(bare) else NONE


def _integer_at_end(response: str) -> Extraction | None:
    r"""What most responses to integer questions end in, `Answer: 42` or one `\boxed{42}`, found without reading the
    rest: some four times faster, and the same as the full reading would find. None where that could differ."""
    match = _INTEGER_AT_END.search(response, max(0, len(response) - INTEGER_END_CHARS))
    if match is None or "<|" in response or "</s>" in response:
        return None
    if "<think" in response and not (response.rfind("</think>") > response.rfind("<think")):
        return None
    if match["boxed"] is None:
        return Extraction(match["line"], "answer_line")
    # The line of the box and the one before it that says something, which could be "5 or".
    *lines, own = response[max(0, match.start() - MAX_ANSWER_CHARS) : match.start() + 2].split("\n")
    before = next((line for line in reversed(lines) if any(map(str.isalnum, line))), "")
    alone = response.count("box") == 1 and not _NOT_SO_SIMPLE.search(f"{before} {own}")
    return Extraction(match["boxed"], "box") if alone else None


def _answer_part(response: str) -> str:
    """The answer part of a turn: behind the reasoning, before an end-of-turn mark. An open reasoning block has none."""
    text = (
        response.replace("<thinking>", "<think>").replace("</thinking>", "</think>")
        if "thinking>" in response
        else response
    )
    text = text.rpartition("</think>")[2].partition("<think>")[0]
    text = text.rpartition("###Response")[2]
    if opening := _TURN_START.match(text):
        text = text[opening.end() :]
    end = _TURN_END.search(text)
    return text[: end.start()] if end else text


def _marker_kind(text: str, marker: re.Match[str]) -> tuple[str, int]:
    """How the word or sign at `marker` states an answer, and where its value begins; ("", 0) if it does not."""
    start, end = marker.span()
    if marker.group().endswith((" ", "\t")):
        return "hashes", end
    if marker.group() in ("答案", "答", "故选"):
        chinese = None if _CHINESE_NOT.search(text, max(0, start - 4), start) else _CHINESE_IS.match(text, end)
        return ("answer_line", chinese.end()) if chinese else ("", 0)
    before = text[start - 1] if start else "\n"
    if before == "<" and text.startswith(">", end):
        return "tag", end + 1
    if before.isalpha() or before in "$/" or not _asserts(text, start):
        return "", 0
    if colon := _COLON.match(text, end):
        note = colon["note"] or ""
        return ("", 0) if _DOUBT.search(note) or any(map(str.isdigit, note)) else ("answer_line", colon.end())
    if verb := _IS.match(text, end):
        return "prose", verb.end()
    line_start = text.rfind("\n", 0, start) + 1
    line_end = _LINE_END.match(text, end)
    if line_end and _HEADING.fullmatch(text, line_start, start):
        return "answer_line", line_end.end()
    return "", 0


def _asserts(text: str, position: int) -> bool:
    """Whether the clause before the word "answer" lets it state one: no "wrong answer", no "if the answer"."""
    before = text[max(0, position - 200) : position]
    if _EXAMPLE.search(before):
        return False
    clause = _CLAUSE_END.split(before)[-1]
    return _ASSERTING.match(_NO_WORDS.split(clause)[-1].lstrip()) is not None and not _DOUBT.search(clause)


def _value_after(text: str, position: int, rule: str) -> str | None:
    """What a marker that ends at `position` states: the rest of the line, or the next line that is not blank."""
    rest = text[position : position + MAX_ANSWER_CHARS].lstrip()
    if rule == "tag":
        return clean(rest.partition("</answer>")[0])
    line = rest.partition("\n")[0].partition("</answer>")[0]
    end = len(line)
    if display := _DISPLAY.match(rest):
        line, end = display[2].replace("\n", " "), display.end()
    elif rule == "prose":
        if _NO_VALUE.match(line):
            return None
        line = _first_sentence(line)
        end = len(line)
        line = _REASON.sub("", line)
    if hedge := _GOES_ON.match(rest, end + rest.startswith(".", end)):  # "6. Or 7.", and "or 7" on a line of its own
        line += " or " + _first_sentence(rest[hedge.end() :])
    nested = _nested(line)
    if nested:
        line = _first_sentence(line[nested.end() :])
    return clean(line)


def _nested(line: str) -> re.Match[str] | None:
    """The statement within a statement: "Final Answer: The final answer is 5. I hope it is correct."."""
    return next((match for match in _NESTED.finditer(line) if _asserts(line, match.start())), None)


def _with_tag_before(text: str, start: int, value: str | None) -> str | None:
    """`<answer>5</answer> or <answer>6</answer>` is one list."""
    before = re.search(r"<answer>([^<]*)</answer>([^<]*)<$", text[max(0, start - MAX_ANSWER_CHARS) : start])
    if before and value is not None and joined(before[2]):
        return f"{before[1].strip()}, {value}"
    return value


def _first_sentence(line: str) -> str:
    end = _SENTENCE_END.search(line)
    return line[: end.start()] if end else line


def clean(value: str) -> str | None:
    """A stated value without emphasis, mathematics delimiters and closing punctuation; None when nothing is left.

    >>> clean("**$\\\\frac{1}{2}$**."), clean(" .")
    ('\\\\frac{1}{2}', None)
    """
    value = value.strip()
    if len(value) > MAX_ANSWER_CHARS:
        return value  # no answer, and taking it apart could take long
    before = None
    while value != before:
        before = value
        value = _CLOSING.sub("", _EDGE.sub("", value)).strip()
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            if value.startswith(opening) and value.endswith(closing) and len(value) >= len(opening) + len(closing):
                inner = value[len(opening) : len(value) - len(closing)]
                if opening == closing or closing not in inner:  # `\(6\) and \(7\)` are two
                    value = inner
                break
    if len(_DOLLAR.findall(value)) == 1 and "$" in (value[0], value[-1]):  # "$204" imitates the authors' "$Answer"
        value = value.strip("$")
    return value or None


def _of_boxes(text: str, boxes: Boxes) -> Extraction:
    """What the boxes state, with what belongs to them on their line."""
    cleaned = [clean(part) for part in boxes.parts]
    if any(part is None for part in cleaned):
        return NONE
    value = ", ".join(str(part) for part in cleaned)
    line = text[text.rfind("\n", 0, boxes.start) + 1 : boxes.start]
    listed = any(_marker_kind(line, marker)[0] == "answer_line" for marker in _MARKER.finditer(line))
    before, behind = around(text, boxes, listed=listed)
    if before or behind:
        return Extraction(clean(f"{before}{value}{behind}"), "box")
    return Extraction(value, "box" if len(boxes.parts) == 1 else "boxes")
