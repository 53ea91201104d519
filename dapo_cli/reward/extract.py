"""The final answer that a response states, read as a person would: the last explicit statement counts.

Everything here is linear in the length of the text: plain searches, and patterns without nested repetition.
"""

import re
from dataclasses import dataclass

MAX_RESPONSE_CHARS = 20_000  # the end of the response; an answer stated earlier than this is not the final one
MAX_ANSWER_CHARS = 2_000  # of one statement

_NOISE = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]"  # terminal colours
    r"|[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\ufeff]"  # control and invisible characters
)
_TURN_END = re.compile(r"<\|(?:im_start|im_end|endoftext|eot_id|end_of_solution|end)\|>|</s>")
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+(?=[^\s{]))")
_MARKER = re.compile(r"[aA]nswer|ANSWER|答案|^[ \t]*####[ \t]+(?=\S)", re.MULTILINE)
_COLON = re.compile(r"[ \t]*(?:\([^()\n]{0,40}\))?[*_ \t]{0,6}[:：][*_ \t]{0,6}")  # Answer: · **Final Answer** :
_IS = re.compile(r"[ \t](?:is|must be|should be)\b(?:[ \t]*[:：])?")
_CHINESE_IS = re.compile(r"[*]{0,2}[ \t]*(?:[:：]|是|为)[ \t]*")
# A heading is a line of its own, and its value is on the next line.
_HEADING = re.compile(r"[#>*_ \t-]{1,8}(?:(?:[fF]inal|FINAL)[ \t])?")
_LINE_END = re.compile(r"[*_ \t]{0,6}$", re.MULTILINE)
_NESTED = re.compile(r"\banswer (?:is|must be|should be)\b(?:[ \t]*[:：])?", re.IGNORECASE)
_ONLY_VALUE = re.compile(r"\$[^$\n]{1,200}\$|[+-]?[\d.,/]{1,200}%?")
_BETWEEN_BOXES = re.compile(r"(?:[\s,;$.]|\\[()\[\]]|\band\b|\bor\b)*")
_SENTENCE_END = re.compile(r"\.(?=\s|$)|。|\n")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_EDGE = re.compile(r"^(?:[\s*_`]|\\[,;:! ])+|(?:[\s*_`~]|\\[,;:! ]|\\(?=$))+$")
_CLOSING = re.compile(r"(?:(?<!\.)\.|[。;；，]|(?<!\\),)$")  # "6..." is cut off, not closed
_DOLLAR = re.compile(r"(?<!\\)\$")
_WORD = re.compile(r"[^\s$]+")
# Words after "the answer is" that start no value: "the answer is then found by", "the answer is not".
_NO_VALUE = re.compile(
    r"(?:not|then|that|thus|therefore|found|given|obtained|easy|clear|easily|clearly|correct|right|checked|verified|confirmed"
    r"|consistent|reasonable|indeed|also|now|as|because|since|what|in the|a )\b",
    re.IGNORECASE,
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
    text = _after_reasoning(_NOISE.sub("", response[-MAX_RESPONSE_CHARS:]))
    box_start, box = _last_boxes(text)
    # From the last marker back to the last box, which is the later statement when it follows a marker or is its value.
    for marker in reversed(list(_MARKER.finditer(text, max(box_start, 0)))):
        rule, end = _marker_kind(text, marker)
        value = _value_after(text, end, rule) if rule else None
        if value is not None:
            return Extraction(value, rule)
        if rule == "answer_line":
            return NONE  # "Answer:" and nothing behind it takes back what was said before
    if box is not None:
        return box
    bare = text.strip().rstrip(".")
    return Extraction(bare.strip("$").strip(), "bare") if _ONLY_VALUE.fullmatch(bare) else NONE


def _marker_kind(text: str, marker: re.Match[str]) -> tuple[str, int]:
    """How the word or sign at `marker` states an answer, and where its value begins; ("", 0) if it does not."""
    start, end = marker.span()
    if marker.group().endswith((" ", "\t")):
        return "hashes", end
    if marker.group() == "答案":
        chinese = _CHINESE_IS.match(text, end)
        return ("answer_line", chinese.end()) if chinese else ("", 0)
    before = text[start - 1] if start else "\n"
    if before == "<" and text.startswith(">", end):
        return "tag", end + 1
    if before.isalpha() or before in "$/":
        return "", 0
    if colon := _COLON.match(text, end):
        return "answer_line", colon.end()
    if verb := _IS.match(text, end):
        return "prose", verb.end()
    line_start = text.rfind("\n", 0, start) + 1
    line_end = _LINE_END.match(text, end)
    if line_end and _HEADING.fullmatch(text, line_start, start):
        return "answer_line", line_end.end()
    return "", 0


def _after_reasoning(text: str) -> str:
    """The answer part of a turn: behind `</think>`, before an end-of-turn mark. An open reasoning block has none."""
    _, closed, after = text.rpartition("</think>")
    text = after if closed else text.partition("<think>")[0]
    text = text.rpartition("###Response")[2]
    end = _TURN_END.search(text)
    return text[: end.start()] if end and text[: end.start()].strip() else _TURN_END.sub("", text)


def _value_after(text: str, position: int, rule: str) -> str | None:
    """What a marker that ends at `position` states: the rest of the line, or the next line that is not blank."""
    rest = text[position : position + MAX_ANSWER_CHARS].lstrip()
    if rule == "tag":
        return clean(rest.partition("</answer>")[0])
    line = rest.partition("\n")[0]
    if line.strip() in ("$$", r"\[", "$"):  # display mathematics opens on a line of its own
        line = rest.replace("\n", " ")
    if rule == "prose":
        if _NO_VALUE.match(line):
            return None
        line = _first_sentence(line)
    nested = _NESTED.search(line)  # "Final Answer: The final answer is 5. I hope it is correct."
    if nested:
        line = _first_sentence(line[nested.end() :])
    return clean(line)


def _first_sentence(line: str) -> str:
    end = _SENTENCE_END.search(line)
    return line[: end.start()] if end else line


def clean(value: str) -> str | None:
    """A stated value without emphasis, mathematics delimiters and closing punctuation; None when nothing is left.

    >>> clean("**$\\\\frac{1}{2}$**."), clean(" .")
    ('\\\\frac{1}{2}', None)
    """
    value = value.strip()
    before = None
    while value != before:
        before = value
        value = _CLOSING.sub("", _EDGE.sub("", value)).strip()
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            if value.startswith(opening) and value.endswith(closing) and len(value) >= len(opening) + len(closing):
                value = value[len(opening) : len(value) - len(closing)]
                break
    if len(_DOLLAR.findall(value)) == 1:  # "Answer: $204" imitates the authors' "Answer: $Answer"
        value = _DOLLAR.sub("", value)
    return value or None


def _last_boxes(text: str) -> tuple[int, Extraction | None]:
    """Start and content of the last box; boxes joined to it by nothing but commas or "and"/"or" make one list."""
    if "box" not in text:
        return -1, None
    parts: list[str] = []
    start = end = -1
    closing = brace_pairs(text)
    for match in _BOX.finditer(text):
        if match.start() < end:
            continue  # inside the box before it
        span = _box_span(text, match, closing)
        if span is None:
            continue
        joined = (
            end >= 0 and _BETWEEN_BOXES.fullmatch(text, end, match.start()) and "\n\n" not in text[end : match.start()]
        )
        if not joined:
            parts, start = [], match.start()
        parts.append(unwrapped(text[span[0] : span[1]].strip()))
        end = span[1] + 1
    if start < 0:
        return -1, None
    cleaned = [clean(part) for part in parts]
    if any(part is None for part in cleaned):
        return start, NONE
    return start, Extraction(", ".join(str(part) for part in cleaned), "box" if len(parts) == 1 else "boxes")


def _box_span(text: str, match: re.Match[str], closing: dict[int, int]) -> tuple[int, int] | None:
    r"""Where the content of a `\boxed` lies; None for a brace that is never closed (a truncated answer)."""
    if match.group().endswith("{"):
        end = closing.get(match.end() - 1)
        return None if end is None else (match.end(), end)
    word = _WORD.match(text, match.end())  # \boxed 5
    return None if word is None else word.span()


def unwrapped(content: str) -> str:
    """Without boxes around everything: those directly inside of boxes, or around a reference, add nothing."""
    closing = brace_pairs(content)
    start, end = 0, len(content)
    while (match := _BOX.match(content, start)) and closing.get(match.end() - 1) == end - 1:
        start, end = match.end(), end - 1
    return content[start:end].strip()


def brace_pairs(text: str) -> dict[int, int]:
    r"""Index of each `{` -> index of its `}`, in one pass; `\{` and `\}` are characters, not groups."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            pairs[opened.pop()] = match.start()
    return pairs
