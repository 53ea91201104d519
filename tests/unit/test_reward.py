"""Extraction, equivalence and the overlong penalty, against worked examples and exact arithmetic."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dapo_cli.config.schema import OverlongConfig
from dapo_cli.reward.exact import exact_number
from dapo_cli.reward.extract import MAX_RESPONSE_CHARS, extract
from dapo_cli.reward.latex import canonical
from dapo_cli.reward.math_verifier import equivalent, verify
from dapo_cli.reward.overlong import SoftOverlong, soft_overlong_penalty
from dapo_cli.types import Completion, Finish, Outcome

CASES = Path(__file__).parents[3] / "shared" / "verifier" / "cases.jsonl"


# Eq. 13


@pytest.mark.parametrize(
    ("length", "max_tokens", "cache_tokens", "expected"),
    [
        (70, 100, 20, 0.0),
        (80, 100, 20, 0.0),
        (90, 100, 20, -0.5),
        (100, 100, 20, -1.0),
        (110, 100, 20, -1.0),
        (16384, 20480, 4096, 0.0),
        (18000, 20480, 4096, (16384 - 18000) / 4096),
    ],
)
def test_soft_overlong_worked_numbers(length: int, max_tokens: int, cache_tokens: int, expected: float):
    assert soft_overlong_penalty(length, max_tokens, cache_tokens) == pytest.approx(expected, abs=1e-12)


def test_paper_example_of_a_correct_long_answer():
    assert 1 + soft_overlong_penalty(18000, 20480, 4096) == pytest.approx(0.605, abs=5e-4)


@given(st.integers(1, 200), st.integers(2, 100), st.data())
def test_soft_overlong_is_the_three_branches_of_the_paper(length: int, max_tokens: int, data: st.DataObject):
    cache = data.draw(st.integers(1, max_tokens - 1))
    if length <= max_tokens - cache:
        expected = 0.0
    elif length <= max_tokens:
        expected = ((max_tokens - cache) - length) / cache
    else:
        expected = -1.0
    assert soft_overlong_penalty(length, max_tokens, cache) == expected


def test_shaper_counts_tokens_and_can_be_off():
    completion = Completion("p", 0, tuple(range(90)), (0.0,) * 90, Finish.STOP, "text of other length")
    assert SoftOverlong(OverlongConfig(cache_tokens=20), max_tokens=100).penalty(completion) == -0.5
    assert SoftOverlong(OverlongConfig(penalty=False), max_tokens=80).penalty(completion) == 0.0


# Extraction


@pytest.mark.parametrize(
    ("response", "answer", "rule"),
    [
        ("2+2: 2+2=4\nAnswer: 4", "4", "answer_line"),
        ("x = 3\ny = 20\nx + y = 3 + 20 = 23\nAnswer: 23", "23", "answer_line"),
        ("The answer = 20?\nx = 20 + 3 = 23\n\n**Answer: 23.**\n\n", "23", "answer_line"),
        ("x = 23\nAnswer: 23\nCheck: x - 3 = 20\nand 20 + 3 = 23.", "23", "answer_line"),
        ("Answer: 23\nThe answer is easily checked: 20 + 3 = 23.\nThis answer fits.", "23", "answer_line"),
        ("final answer: **7**", "7", "answer_line"),
        ("3+4=7 Answer: 7", "7", "answer_line"),
        ("5+Answer: 7", "7", "answer_line"),
        ("**Final Answer:** $\\frac{1}{2}$.", "\\frac{1}{2}", "answer_line"),
        ("**Final Answer**\n\n42", "42", "answer_line"),
        ("### Answer\n42", "42", "answer_line"),
        ("Answer：４２", "４２", "answer_line"),
        ("Answer: $204", "204", "answer_line"),
        ("Answer: 5\n\nNo, I forgot one. Answer: 6", "6", "answer_line"),
        ("Answer: \\boxed{8}", "8", "box"),
        ("so \\boxed{\\frac{1}{2}} holds", "\\frac{1}{2}", "box"),
        ("\\boxed{1} first, then \\boxed{\\{x : x > 2\\}}", "\\{x : x > 2\\}", "box"),
        ("\\boxed{\\boxed{809}}", "809", "box"),
        ("so \\fbox{5}", "5", "box"),
        ("\\boxed{4}, no: \\boxed{\\fbox{5}}", "5", "box"),
        ("\\boxed 5 is it", "5", "box"),
        ("\\boxed{4} or \\boxed{5}", "4, 5", "boxes"),
        ("$\\boxed{4}$, $\\boxed{5}$", "4, 5", "boxes"),
        ("The answer is 12. I hope it is correct.", "12", "prose"),
        ("Final Answer: The final answer is $480$. I hope it is correct.", "480", "prose"),
        ("Working.\n#### 1,234", "1,234", "hashes"),
        ("<answer>\n$116$\n</answer>", "116", "tag"),
        ("答案是 42。", "42", "answer_line"),
        ("$7$", "7", "bare"),
        ("\\boxed{1}. Answer: 2", "2", "answer_line"),
        ("Answer: 2. Or rather \\boxed{3}", "3", "box"),
        ("<think>Answer: 1</think>Answer: 2<|im_end|>", "2", "answer_line"),
        ("Answer: 2<|im_end|>\n<|im_start|>user\nAnswer: 3", "2", "answer_line"),
    ],
)
def test_last_stated_answer(response: str, answer: str, rule: str):
    extraction = extract(response)
    assert (extraction.answer, extraction.rule) == (answer, rule)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "...",
        "The sum is 42, so we go on with",
        "so \\boxed{4",
        "\\boxed{}",
        "Answer:",
        "First \\boxed{3}.\nAnswer:",
        "<think>\\boxed{5}",
        "<think>\\boxed{5}</think>",
        "score: 1.0\nis_correct: True",
    ],
)
def test_nothing_stated(response: str):
    assert extract(response).answer is None
    assert verify(response, "5").outcome is Outcome.WRONG


STATED = [r"\boxed{5}", r"\fbox{8}", "Answer: 3", "The answer is 7.", "So ", "x is ", "then we get ", "wrong"]
BETWEEN = [" and ", " or ", ", ", "\n", "\n\n", "$", "(", "<think>", "</think>", ". "]


@given(
    st.lists(st.sampled_from(STATED + BETWEEN), max_size=8),
    st.sampled_from([r"\boxed{42}", r"$\boxed{42}$.", "Answer: 42", "**Final Answer:** 42"]),
)
@example([r"\boxed{5}", "\n"], r"\boxed{42}")  # two boxes are a list
@example(["Answer: 3", " or ", "\n"], r"\boxed{42}")  # the line before belongs to it
@example(["Answer: 3", " or ", "\n", "(", "\n"], r"\boxed{42}")  # a line that says nothing does not part them
@settings(max_examples=400)
def test_an_integer_at_the_end_is_what_the_full_reading_finds(parts: list[str], end: str):
    """Behind a response that ends in an integer, a word that states nothing turns the quick way off."""
    response = "".join(parts) + end
    assert extract(response) == extract(f"<|im_start|>assistant\n{response}")


def test_only_the_end_of_a_long_response_counts():
    filler = "and so on " * (MAX_RESPONSE_CHARS // 10)
    assert extract("Answer: 1\n" + filler).answer is None
    assert extract(filler + "\nAnswer: 1").answer == "1"


# Exact numbers

integers = st.integers(-(10**30), 10**30)
denominators = st.integers(1, 10**6)


def is_right(given_text: str, reference: str) -> bool:
    return verify(f"Answer: {given_text}", reference).outcome is Outcome.RIGHT


@given(integers, integers)
def test_integers_are_compared_exactly(one: int, other: int):
    assert is_right(str(one), str(one))
    assert is_right(f"{one:,}", str(one))
    assert is_right(str(one), str(other)) == (one == other)
    assert not is_right(str(one), str(one + 1))


@given(integers, denominators, st.integers(-50, 50), denominators)
def test_fractions_are_compared_exactly(top: int, bottom: int, other_top: int, other_bottom: int):
    value, other = Fraction(top, bottom), Fraction(other_top, other_bottom)
    assert is_right(f"{top}/{bottom}", str(value))
    assert is_right(rf"$\frac{{{top}}}{{{bottom}}}$", rf"\frac{{{value.numerator}}}{{{value.denominator}}}")
    assert is_right(str(other), rf"\dfrac{{{top}}}{{{bottom}}}") == (value == other)


@given(st.integers(0, 10**12), st.integers(0, 12))
def test_decimals_are_compared_exactly(digits: int, places: int):
    text = f"{digits:0{places + 1}d}"
    text = f"{text[: len(text) - places]}.{text[len(text) - places :]}" if places else text
    value = Fraction(digits, 10**places)
    assert exact_number(text) == value
    assert is_right(text, str(value))
    assert is_right(f"{text}\\%", str(value / 100))
    assert not is_right(f"{text}1", str(value))


@given(st.integers(1, 999), st.integers(1, 98), st.integers(2, 99))
def test_mixed_numbers_and_repeating_decimals(whole: int, top: int, bottom: int):
    mixed = top < bottom
    value = whole + Fraction(top, bottom) if mixed else whole * Fraction(top, bottom)
    assert exact_number(rf"{whole}\frac{{{top}}}{{{bottom}}}") == value
    assert exact_number(f"{whole} {top}/{bottom}") == (value if mixed else None)
    assert exact_number(rf"{whole}.\overline{{{bottom:02d}}}") == whole + Fraction(bottom, 99)


@given(st.text(max_size=60), st.text(max_size=20))
@settings(max_examples=200)
def test_any_text_gets_a_verdict_and_cheap_tiers_never_raise(response: str, answer: str):
    assert verify(response, answer).outcome in (Outcome.RIGHT, Outcome.WRONG)


# Equivalence: one row a kind. Right pairs, then wrong ones that look like them.

RIGHT = [
    ("42.0", "42"),
    ("x = 5", "5"),
    ("5", "k=5"),
    ("3.5e2", "350"),
    (r"3.84\times 10^{5}", "384000"),
    ("28%", "0.28"),
    ("28", r"28\%"),
    (r"1\,234", "1234"),
    ("½", "0.5"),
    ("3√13", r"\sqrt{117}"),
    ("2π", r"2\pi"),
    ("sqrt(3)/3", r"\frac{1}{\sqrt{3}}"),
    (r"\frac{6!}{3!}", "120"),
    (r"\binom{10}{3}", "120"),
    ("(a+1)^2", "a^2+2a+1"),
    (r"\frac{\sin x}{\cos x}", r"\tan x"),
    (r"\ln 4", r"2\ln 2"),
    ("y=2x+1", "y-2x=1"),
    (r"\frac{1+i\sqrt3}{2}", r"\frac12+\frac{\sqrt3}{2}i"),
    ("{1, 2}", r"\{2,1\}"),
    ("2 and 3", "3, 2"),
    (r"3\pm\sqrt2", r"3-\sqrt{2}, 3+\sqrt{2}"),
    ("(1, 2)", "(1,2)"),
    ("n=2, k=1", "k=1, n=2"),
    ("1 000", "1000"),
    ("(1,2), (3, 4), (1, 2)", "(3,4), (1,2)"),
    ("x>5", r"(5,\infty)"),
    (r"x\ne 3", r"(-\infty,3)\cup(3,\infty)"),
    (r"-2\le x<7", "x\\in[-2,7)"),
    (r"\begin{bmatrix}1&2\\3&\frac12\end{bmatrix}", r"\begin{pmatrix}1 & 2 \\ 3 & 0.5\end{pmatrix}"),
    ("1:2", "1 : 2"),
    ("204_5", "204_{5}"),
    ("90", r"90^\circ"),
    ("15 square centimeters", r"15\text{ cm}^2"),
    (r"\$12.50", "12.5"),
    (r"\$5", r"5\text{ dollars}"),
    (r"\{\}", r"\varnothing"),
    ("10 apples", "10"),
    (r"\frac12\text{ m/s}", "0.5 meters per second"),
    ("6 MPH", r"6\text{ miles per hour}"),
    (r"3\text{m}", "3"),
    (r"3(6)", "18"),
    (r"(3)\binom{4}{1}", "12"),
    (r"1\frac12\pi", r"\frac{3\pi}{2}"),
    ("(C)", "C"),
    ("C. 42", r"\text{(C)}"),
    ("monday", r"\text{Monday}"),
    (r"\text{No solution}", "no solution"),
    ("42", r"$\boxed{42}$"),
]
WRONG = [
    ("42.0000001", "42"),
    ("14/5", "1 4/5"),
    ("32, 349", "32349"),
    ("0.33", r"\frac13"),
    ("0.5%", "0.5"),
    ("4 or 5", "4"),
    ("4, 5", "4"),
    ("[4, 5]", "4"),
    (r"\pm 4", "4"),
    (r"4 \neq 5", "4"),
    ("not 4", "4"),
    ("5x", "5"),
    (r"2^{2005}-1", r"2^{2005}+1"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"\frac{2^{2005}-1}{2^{2006}}", r"\frac{2^{2005}+1}{2^{2006}}"),
    (r"\sqrt{2}", "1.41421356"),
    ("-(a+1)", "a-1"),
    ("y=2x", "y=-2x"),
    ("11a+c", "7=11a+c"),
    ("{-2, 7}", "[-2,7]"),
    ("(-2,7)", "[-2,7]"),
    (r"x\ge5", "x>5"),
    ("(2,1)", "(1,2)"),
    ("{1,2}", "(1,2)"),
    ("n=1, k=2", "k=1, n=2"),
    ("1:3:2", "1:2:3"),
    (r"\begin{pmatrix}1\\3\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\\3\end{pmatrix}"),
    ("204_6", "204_5"),
    ("204_6", "204"),
    ("3 miles", r"3\text{ km}"),
    ("3m", "3"),
    ("10 million", "10"),
    ("10 minus one", "10"),
    ("6 cm^2", r"6\text{ cm}"),
    ("6 7", "13"),
    ("3(6)", "9"),
    (r"\frac{2}{1}\binom{4}{1}", "6"),
    (r"6 \pmod 7", "13"),
    ("0.333...", "0.333"),
    (r"0.333\ldots", "0.333"),
    (r"x+1+\cdots", "x+1"),
    (r"y'", "y"),
    (r"x+1 \approx 7", "x+1"),
    ("-5 apples", r"\text{5 apples}"),
    ("A, B, C, D", "C"),
    ("C. 42 or D. 43", "C"),
    ("C) false, D", "C"),
    ("C + 1", "C"),
    ("B. 42", "C"),
    ("Monday or Tuesday", r"\text{Monday}"),
    ("unknown", "42"),
    (r"(1,2)\cup[2,3)", r"(1,3)\setminus\{2\}"),  # the second piece has the point
    (r"\mathbb{R}\setminus(3,5)", r"\mathbb{R}\setminus\{3,5\}"),  # an interval, and two points
]


# Texts around a 6 that make another value of it, or none: all wrong for 6. Split at bars.
NEAR_MISSES = r"""
    -6 | - 6 | minus 6 | negative 6 | not 6 | \text{not }6 | \lnot 6 | !6 | neither 6 | 6 is wrong | 6 false | 6 wrong
    6 nope | about 6 | ~6 | \approx 6 | \sim 6 | 6 or so | 6 approximately | 6-ish | 6... | 6.. | 6… | 6, ...
    6\ldots | 6.\overline{6} | 6 or 7 | 6 to 7 | 6-7 | 6 – 7 | 6, 7 | 6; 7 | 6 and 7 | 6/7 | 6:7 | 6 7 | 6 (7)
    6 vs 7 | 6 \approx 7 | 6 = 7 | 7 = 6 | 6\text{ or }7 | \text{6 or 7} | 6 \lor 7 | 6 \to 7 | 6\pm1 | \pm6
    \{6, 7\} | (6, 7) | [6, 7] | (6, 6) | 6, not 7 | x = 6 or x = 7 | 6+ | 6 or more | at least 6 | >6 | \le 6 | x > 6
    x \ne 6 | -x = 6 | 2x = 6 | x^2 = 6 | half of 6 | twice 6 | 6 of 7 | 6 out of 7 | 6! | 6\% | 6% | 6 percent
    6\text{ per cent} | 6 pct | 6‰ | 6^2 | 6² | 6^T | 6' | 6^\prime | 6_2 | 6_7 | 6₇ | 6_{\text{seven}} | \sqrt6
    6 mod 7 | 6 \pmod 7 | 6 \bmod 7 | 6 squared | 6 cubed | 6 factorial | 6 choose 2 | 6 over 7 | 6 times 7 | 6 plus 7
    \bar{6} | \frac{6}{} | 6 thirds | 6 halves | 6\text{ halves} | 6 tenths | 6 half | 6 and a half | 6 point five
    6 1/2 | 6\frac12 | 6½ | 6th | 6\text{th} | 6 tens | 6 dozen | 6 dozens | 6 pairs | 6 score | 6 gross | 6 hundreds
    6 thousand | 6 thousands | 6 million | 6\text{ millions} | 6 k | 6k | 6 M | 6 MM | 6\text{万} | \$6k | \$6 million
    6 hundred feet | 6 half hours | 6 fold | 6 times | 6 nine | 6 twos | 6\text{7} | 6x | 6 x | x6 | 6i | 6\pi | 6m
    6 root 2 | 6 zeros | 6e | 6e1 | 6E2 | 0x6 | 0b6 | 6\times10^2 | 6*7 | 6,000 | 6 000 | 60 | 16 | 6.6 | .6
    6 ft 7 in | 6 hours 7 minutes | 6 cm or 7 cm | 6 feet short | 6 below zero | 6 less | 6 left | 6 debt | 6 if x > 0
    6 undefined | NaN 6
"""


@pytest.mark.parametrize("text", [text.strip() for text in NEAR_MISSES.replace("\n", "|").split("|") if text.strip()])
def test_near_misses(text: str):
    for response in (f"Answer: {text}", rf"So \boxed{{{text}}}", f"The answer is ${text}$"):
        assert verify(response, "6").outcome is Outcome.WRONG


@pytest.mark.parametrize(("given_text", "reference"), RIGHT)
def test_equivalent(given_text: str, reference: str):
    assert equivalent(given_text, reference)[0]


@pytest.mark.parametrize(("given_text", "reference"), WRONG)
def test_different(given_text: str, reference: str):
    assert not equivalent(given_text, reference)[0]


@pytest.mark.parametrize(
    "answer",
    [
        "1e999999999",
        "7" * 1000,
        r"9^{9^{9^{9}}}",
        r"2^{10^{9}}",
        "100000000!",
        r"((9!)!)!",
        r"\binom{10^9}{5\cdot 10^8}",
        r"\sum_{k=1}^{10^9} \frac{1}{k}",
        r"\intx+1",
        "(" * 200 + "1" + ")" * 200,
        "x+" * 400 + "x",
        r"\{" * 600 + "5" + r"\}" * 600,
    ],
)
def test_what_is_too_large_is_wrong_without_being_computed(answer: str):
    assert verify(rf"\boxed{{{answer}}}", "5").outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("given_text", "reference", "rule"),
    [
        (r"\vec{a}\cdot", "x+1", "unreadable"),  # the answer
        ("x+1", r"\vec{a}\cdot", "unreadable"),  # the reference
        (r"\sum_{i=1}^{n} i^2", r"\sum_{i=1}^{n} i^3", "symbolic"),  # both are read
    ],
)
def test_a_rule_tells_what_is_not_read_from_what_differs(given_text: str, reference: str, rule: str):
    assert equivalent(given_text, reference) == (False, rule)


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').system('touch {})",
        "open('{}','w')",
        "[open('{}','w') for _ in [0]]",
        "Point(open('{}','w'),2)",
    ],
)
def test_text_is_never_executed(code: str, tmp_path: Path):
    target = tmp_path / "executed"
    for response in (f"Answer: {code.format(target)}", rf"\boxed{{{code.format(target)}}}"):
        assert verify(response, "5").outcome is Outcome.WRONG
    assert not target.exists()


def test_canonical_spelling_is_stable():
    for text in ("½", r"\left(\dfrac12,\;1{,}000\right]", "x² ≤ √7", r"10\text{ cm}^2"):
        assert canonical(canonical(text)) == canonical(text)


def test_integer_answers_load_neither_sympy_nor_torch():
    code = (
        "import sys; from dapo_cli.reward.math_verifier import verify"
        "; verify('Answer: 4', '5'); verify('Answer: 1/2', '0.5')"
        "; print(sorted({'sympy', 'torch', 'math_verify'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.skipif(not CASES.exists(), reason="the collected cases are not beside this checkout")
def test_collected_cases():
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    cases = [case for case in cases if not case.get("debatable")]
    right = [verify(case["response"], case["answer"]).outcome is Outcome.RIGHT for case in cases]
    false_positives = sum(found and not case["correct"] for found, case in zip(right, cases, strict=True))
    correct = sum(found == case["correct"] for found, case in zip(right, cases, strict=True))
    assert correct / len(cases) > 0.995
    assert false_positives <= 1
