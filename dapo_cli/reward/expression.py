r"""Equality of plain expressions and equations, some fifty times faster than through a computer algebra system.

A recursive-descent parser for what most answers consist of: numbers, variables, + - * / ^ !, products without a sign,
\frac \sqrt \binom, brackets, |x|, elementary functions. A text is compiled to a function of its variables, and two are
compared at random rational points: exactly as long as values stay rational, to 60 digits elsewhere. Whatever could be
read in two ways is not plain, and left to `symbolic`.
"""

import functools
import re
from collections.abc import Callable
from fractions import Fraction

from dapo_cli.reward import values as v
from dapo_cli.reward.compare import Compiled, Expression, binary, constant, same, unary
from dapo_cli.reward.latex import GREEK
from dapo_cli.reward.values import CONSTANTS, FUNCTIONS, Value

_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]|[-+*/^_(){}\[\]|!=]|\s+")
_GREEK = re.compile(GREEK)
_TIMES = {"*", r"\cdot", r"\times"}
_OPENING = {"(": ")", "{": "}", "[": "]"}


class NotPlainError(ValueError):
    """A text that this parser does not read, or that could be read in two ways."""


def equal(given: str, reference: str) -> bool | None:
    r"""Whether two canonical texts are the same expression or equation; None where one of them is not plain.

    >>> equal(r"(a+1)^2", "a^2+2a+1"), equal("y=2x", r"\frac{y}{2}=x"), equal("f(2)", "2f")
    (True, True, None)
    """
    try:
        return same(read(given), read(reference))
    except NotPlainError:
        return None


@functools.lru_cache(maxsize=1024)
def read(text: str) -> Expression:
    """Raises NotPlainError."""
    return _Parser(text).expression()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise NotPlainError(text[position])
            if not match.group().isspace():
                self.tokens.append(match.group())
            position = match.end()
        self.tokens.append("")  # the end
        self.at = 0
        self.names: set[str] = set()
        self.divides = False

    def expression(self) -> Expression:
        first = self.at
        sides = [self.sum()]
        if self.next == "=":
            self.take()
            sides.append(self.sum())
        if self.next:
            raise NotPlainError(self.next)
        subject = None
        if len(sides) == 2:
            equals = self.tokens.index("=")
            left, right = self.tokens[first:equals], self.tokens[equals + 1 : -1]
            if _is_name(right) and not _is_name(left):
                left, right = right, left
                sides.reverse()
            # A variable that stands on the other side, too, is not solved for.
            if _is_name(left) and left[0] not in right:
                subject = "".join(left)
        return Expression(self.text, tuple(sides), frozenset(self.names), subject, self.divides)

    @property
    def next(self) -> str:
        return self.tokens[self.at]

    def take(self) -> str:
        if not self.next:
            raise NotPlainError("the end")
        self.at += 1
        return self.tokens[self.at - 1]

    def ahead(self, count: int) -> str:
        """The token `count` behind the next one; empty behind the end."""
        return self.tokens[min(self.at + count, len(self.tokens) - 1)]

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise NotPlainError(token)

    def sum(self) -> Compiled:
        total = self.signed(self.quotient)
        while self.next in ("+", "-"):
            minus = self.take() == "-"
            if self.next in ("+", "-"):
                raise NotPlainError(self.next)
            term = self.quotient()
            total = binary(v.subtract if minus else v.add, total, term)
        return total

    def signed(self, part: Callable[[], Compiled]) -> Compiled:
        if self.next not in ("+", "-"):
            return part()
        minus = self.take() == "-"
        value = part()
        return unary(v.negate, value) if minus else value

    def quotient(self) -> Compiled:
        """Signs of multiplication and division, from left to right; products without a sign bind closer."""
        value = self.product()
        while self.next in _TIMES or self.next == "/":
            operation = v.divide if self.take() == "/" else v.multiply
            value = binary(operation, value, self.denominator(self.product, operation is v.divide))
        return value

    def denominator(self, part: Callable[[], Compiled], divides: bool) -> Compiled:
        start = self.at
        value = self.signed(part)
        self.divides |= divides and any(_is_name([token]) for token in self.tokens[start : self.at])
        return value

    def product(self) -> Compiled:
        first = self.next
        value = self.power()
        while self.starts_factor():
            if self.next[0] in ".0123456789" or (self.next == "{" and first[:1].isdigit()):
                raise NotPlainError(self.next)  # 2 4, x2, 1{2}
            first = self.next
            value = binary(v.multiply, value, self.power())
        return value

    def starts_factor(self) -> bool:
        token = self.next
        return bool(token) and (
            token[0].isalnum()
            or token[0] == "."
            or token in ("(", "{", r"\frac", r"\sqrt", r"\binom", r"\pi")
            or _is_greek(token)
            or token in FUNCTIONS
        )

    def power(self) -> Compiled:
        base = self.atom()
        if self.next == "^":
            self.take()
            base = binary(v.power, base, self.exponent())
            if self.next in ("^", "!"):
                raise NotPlainError(self.next)
        elif self.next == "!":
            self.take()
            base = unary(v.factorial, base)
            if self.next in ("^", "!"):
                raise NotPlainError(self.next)
        return base

    def exponent(self) -> Compiled:
        if self.next == "{":
            return self.bracketed()
        if self.next == "-":
            raise NotPlainError("-")
        token = self.next
        if token.isdigit() and len(token) > 1:
            raise NotPlainError(token)  # x^10 is x^{1}0 to TeX
        if not (token[:1].isalnum() or token == r"\pi" or _is_greek(token)):
            raise NotPlainError(token)
        return self.atom()

    def bracketed(self) -> Compiled:
        closing = _OPENING[self.take()]
        value = self.sum()
        self.expect(closing)
        return value

    def atom(self) -> Compiled:
        token = self.next
        if token[:1].isdigit() or token[:1] == ".":
            self.take()
            return constant(Fraction(token))
        if token in ("(", "{"):
            return self.bracketed()
        if token == "|":
            return self.absolute()
        if (len(token) == 1 and token.isalpha()) or _is_greek(token):
            return self.variable()
        self.take()
        match token:
            case r"\pi":
                return constant(CONSTANTS["pi"])
            case r"\frac":
                return binary(v.divide, self.group(), self.denominator(self.group, True))
            case r"\binom":
                return binary(v.binomial, self.group(), self.group())
            case r"\sqrt":
                degree = self.bracketed() if self.next == "[" else constant(Fraction(2))
                return binary(v.root, self.group(), degree)
            case _ if token in FUNCTIONS:
                return self.function(token)
            case _:
                raise NotPlainError(token)

    def group(self) -> Compiled:
        if self.next != "{":
            raise NotPlainError(self.next)
        return self.bracketed()

    def absolute(self) -> Compiled:
        self.take()
        value = self.sum()
        self.expect("|")
        return unary(abs, value)

    def variable(self) -> Compiled:
        name = self.take()
        if name == "e":
            return constant(CONSTANTS["E"])
        if name == "i":
            return constant(CONSTANTS["I"])
        if self.next == "_":
            self.take()
            if self.next == "{":
                self.take()
                name += "_" + self.take()
                while self.next != "}":
                    if not self.next.isalnum():
                        raise NotPlainError(self.next)
                    name += self.take()
                self.take()
            else:
                name += "_" + self.take()
            if not name[-1].isalnum():
                raise NotPlainError(name)
        if self.next == "(" and self.ahead(2) == ")":
            raise NotPlainError(name)  # f(2), f(x): a function's value or a product
        self.names.add(name)
        return lambda values: values[name]

    def function(self, token: str) -> Compiled:
        """An argument in brackets, or as many plain factors as follow; what could go further is not plain."""
        call, ln = FUNCTIONS[token], FUNCTIONS[r"\ln"]
        if token == r"\log" and self.next == "_":
            self.take()
            base = self.bracketed() if self.next == "{" else self.atom()
            return self.applied(lambda value, of: v.divide(ln(value), ln(of)), base)
        if self.next == "^":
            self.take()
            exponent = self.next.strip("{}") or self.ahead(1)
            if exponent not in tuple("23456"):
                raise NotPlainError(exponent)
            power = self.exponent()
            return self.applied(lambda value, by: v.power(call(value), by), power)
        return self.applied(lambda value, _: call(value), constant(Fraction(1)))

    def applied(self, operation: Callable[[Value, Value], Value], second: Compiled) -> Compiled:
        if self.next in ("(", "{"):
            argument = self.bracketed()
            if self.next in ("^", "!"):
                raise NotPlainError(self.next)
            return binary(operation, argument, second)
        argument = self.plain_factor()
        while self.starts_factor() and self.next not in FUNCTIONS and self.next != "(":
            argument = binary(v.multiply, argument, self.plain_factor())
        if self.next in ("(", "/", *_TIMES):
            raise NotPlainError(self.next)
        return binary(operation, argument, second)

    def plain_factor(self) -> Compiled:
        if not self.starts_factor() or self.next in FUNCTIONS:
            raise NotPlainError(self.next)
        return self.power()


def _is_name(tokens: list[str]) -> bool:
    return len(tokens) == 1 and (tokens[0].isalpha() or _is_greek(tokens[0])) and tokens[0] not in ("e", "i")


def _is_greek(token: str) -> bool:
    return _GREEK.fullmatch(token) is not None
