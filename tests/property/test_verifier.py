"""The verifier's fast paths against slower oracles: sympy, and its own full reading of a response."""

import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dapo_cli.reward.expression import NotPlainError, equal, read
from dapo_cli.reward.extract import extract
from dapo_cli.reward.latex import canonical

X, Y = sympy.symbols("x y")

leaves = st.sampled_from([("x", X), ("y", Y)]) | st.integers(0, 12).map(lambda n: (str(n), sympy.Integer(n)))


def combined(parts):
    """Two (LaTeX, sympy) pairs and a way to join them -> one pair, written as a person would."""
    (left, a), (right, b), how = parts
    divisor = {r"\frac": b, "^-": a}.get(how)
    if divisor is not None and sympy.cancel(divisor) == 0:
        how = "+"
    match how:
        case "+":
            return f"{left}+{right}", a + b
        case "-":
            return f"{left}-({right})", a - b
        case "*":
            return f"({left})({right})", a * b
        case r"\cdot":
            return rf"({left})\cdot({right})", a * b
        case r"\frac":
            return rf"\frac{{{left}}}{{{right}}}", a / b
        case "^":
            return f"({left})^{{2}}", a**2
        case "^-":
            return f"({left})^{{-1}}", 1 / a
        case _:
            raise AssertionError(how)


def is_plain(text: str) -> bool:
    try:
        return read(text) is not None
    except NotPlainError:
        return False


operations = st.sampled_from(["+", "-", "*", r"\cdot", r"\frac", "^", "^-"])
expressions = st.recursive(leaves, lambda inner: st.tuples(inner, inner, operations).map(combined), max_leaves=8)


@given(expressions, st.integers(-2, 2))
@settings(max_examples=150)
def test_rational_expressions_agree_with_sympy(pair, shift: int):
    text, value = pair
    assume(value.is_finite is not False and not value.has(sympy.zoo, sympy.nan))
    other = sympy.latex(sympy.expand(value) + shift)
    written = f"{text}+{shift}" if shift >= 0 else f"{text}-{-shift}"
    for reference in (other, written):
        found = equal(text, reference)
        assert found == (shift == 0) if is_plain(text) and is_plain(reference) else found is None


@given(expressions, expressions)
@settings(max_examples=150)
def test_equality_of_rational_expressions_is_sympys(one, other):
    assume(not any(value.has(sympy.zoo, sympy.nan) for _, value in (one, other)))
    assert equal(one[0], other[0]) == (sympy.cancel(one[1] - other[1]) == 0)


def test_what_is_plain_is_read_by_the_fast_parser():
    texts = [
        "x",
        "2x^2-3x+1",
        r"\frac{1}{2}(a+b)",
        r"3\sqrt{2}",
        r"2\pi r",
        r"\binom{5}{2}",
        "5!",
        r"\sin(x)",
        r"\log_{2} 8",
    ]
    for text in texts:
        assert equal(text, text) is True
        assert equal(text, f"{text}+1") is False


def test_what_could_be_read_in_two_ways_is_left_alone():
    for text in ("2 4", "f(2)", r"\sin x / 2", r"\sin 2(x+1)", "x^10", "|x|y|z|", "1<2", r"\int x", "2^3!", "x,y"):
        assert equal(text, "1") is None


FRAGMENTS = [
    "So we get 12.", "\n", " ", "Answer: 7", "Answer: -12.", "**Answer:** 3", "Final Answer: 8", r"\boxed{5}",
    r"\boxed{-6}$", r"\[\boxed{9}\]", "<think>", "</think>", "The answer is 4.", "<|im_end|>", "$", "or", ", ",
    "answer", "ANSWER: ", " = ", "Answer: 5 or ", "x < ", "not ", "#### 11", ".", "\n\n", r"\boxed{", "}", "####",
    "答案：2",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8))
@settings(max_examples=500)
def test_the_short_way_to_an_integer_finds_what_the_long_way_does(fragments):
    text = "".join(fragments)
    assert extract(text) == extract(text + "  ")  # blanks at the end mean nothing, and close the short way


SPELLINGS = [
    r"\frac12", r"\dfrac{1}{2}", "½", "²", "√7", r"\text{ cm}", r"\mathrm{m}", "^{\\circ}", r"\left(", r"\right)",
    "{,}", r"\binom{5}{2}", "C(5,2)", "7C3", r"\log_2", r"\lg", "sqrt(3)", "pi", "<=", "+/-", r"\cdot", "*", "x",
    "(", ")", r"\{", r"\}", "0.1", "(3)", "%", r"\$", "|", "或", "，", r"\mathbb R", r"\\[4pt]", "&", r"\quad", "1",
    "5 million", r"\,",
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_one_spelling_is_reached_at_once(text: str):
    assert canonical(canonical(text)) == canonical(text)


@given(st.lists(st.sampled_from(SPELLINGS), max_size=10))
@settings(max_examples=300)
def test_bringing_a_text_to_one_spelling_cannot_blow_it_up(fragments):
    text = "".join(fragments)
    assert len(canonical(text)) <= 8 * len(text) + 20
