"""Sympy trees compiled as `expression` compiles plain texts: to functions of their variables, with bounded values."""

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dapo_cli.reward import values as v
from dapo_cli.reward.compare import Compiled, Expression, Values, binary, constant, unary
from dapo_cli.reward.expression import NotPlainError
from dapo_cli.reward.values import CONSTANTS, FUNCTIONS, Value

MAX_TERMS = 100  # of a sum or product that is written out

# sympy's name -> ours
_NAMES = {"asin": r"\arcsin", "acos": r"\arccos", "atan": r"\arctan", "log": r"\ln", "exp": r"\exp"}


def compiled(parsed: Any) -> Expression:
    """Raises NotPlainError for what is neither an expression nor an equation of known parts."""
    import sympy

    names: set[str] = set()
    sides: tuple[Any, ...] = tuple(parsed.args) if isinstance(parsed, sympy.Eq) else (parsed,)
    values = [_compile(side, names, frozenset()) for side in sides]
    subject, divides = None, False
    if len(sides) == 2:
        if sides[1].is_Symbol and not sides[0].is_Symbol:
            sides, values = sides[::-1], values[::-1]
        powers = [power for side in sides for power in side.atoms(sympy.Pow)]
        divides = any(power.exp.could_extract_minus_sign() and power.base.free_symbols for power in powers)
        if sides[0].is_Symbol and sides[0] not in sides[1].free_symbols:
            subject = sides[0].name
    return Expression(str(parsed), tuple(values), frozenset(names), subject, divides)


def _compile(node: Any, names: set[str], indices: frozenset[str]) -> Compiled:
    """`indices` are the running variables of the series around."""
    import sympy
    from sympy.core.function import AppliedUndef

    part = functools.partial(_compile, names=names, indices=indices)
    match node:
        case sympy.Rational():
            return constant(Fraction(int(node.p), int(node.q)))
        case sympy.Add() | sympy.Mul():
            return functools.reduce(
                functools.partial(binary, v.add if node.is_Add else v.multiply), map(part, node.args)
            )
        case sympy.Pow():
            return binary(v.power, part(node.base), part(node.exp))
        case sympy.Symbol() | AppliedUndef():
            return _variable(str(node), names, indices)
        case sympy.Abs():
            return unary(abs, part(node.args[0]))
        case sympy.factorial():
            return unary(v.factorial, part(node.args[0]))
        case sympy.binomial():
            return binary(v.binomial, part(node.args[0]), part(node.args[1]))
        case sympy.Max() | sympy.Min():
            choose = v.larger if isinstance(node, sympy.Max) else v.smaller
            return functools.reduce(functools.partial(binary, choose), map(part, node.args))
        case sympy.Sum() | sympy.Product():
            return _series(node, names, indices)
        case _ if str(node) in CONSTANTS:
            return constant(CONSTANTS[str(node)])
        case sympy.Function() if len(node.args) == 1:
            return unary(_function(type(node).__name__), part(node.args[0]))
        case sympy.log():
            return binary(
                lambda value, base: value / base, *(unary(_function("log"), part(side)) for side in node.args)
            )
        case _:
            raise NotPlainError(str(node)[:80])


def _variable(name: str, names: set[str], indices: frozenset[str]) -> Compiled:
    """`y(0)` is a value of which nothing is known, under its own name; some `i` come as a variable."""
    if name == "i" and name not in indices:
        return constant(CONSTANTS["I"])
    if name not in indices:
        names.add(name)
    return lambda values: values[name]


def _function(name: str) -> Callable[[Value], Value]:
    found = FUNCTIONS.get(_NAMES.get(name, f"\\{name}"))
    if found is None:
        raise NotPlainError(name)
    return found


def _series(node: Any, names: set[str], indices: frozenset[str]) -> Compiled:
    """Written out over a few integers."""
    (index, first, last), *more = node.limits
    if more or indices or not (first.is_Integer and last.is_Integer and 0 <= last - first < MAX_TERMS):
        raise NotPlainError("a series")
    name = str(index)
    term = _compile(node.function, names, frozenset({name}))
    operation = v.add if type(node).__name__ == "Sum" else v.multiply
    terms = range(int(first), int(last) + 1)

    def value(values: Values) -> Value:
        return functools.reduce(operation, (term({**values, name: Fraction(k)}) for k in terms))

    return value
