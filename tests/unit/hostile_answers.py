"""Texts that make a careless verifier hang, crash or fill the memory; all are wrong for the reference beside them."""

import itertools
import string


def boxed(content: str) -> str:
    return rf"\boxed{{{content}}}"


def matrix(size: int, kind: str) -> str:
    letters = itertools.cycle(string.ascii_letters)
    rows = ("&".join(next(letters) for _ in range(size)) for _ in range(size))
    return rf"\begin{{{kind}}}" + r"\\".join(rows) + rf"\end{{{kind}}}"


def nested_sets(size: int, last: str) -> str:
    sets = (",".join(f"a^10+{row * size + column}" for column in range(size)) for row in range(size))
    return r"\{" + ",".join(rf"\{{{members}\}}" for members in sets) + "," + last + r"\}"


GROWING = [
    r"9^{9999\cdot 9999\cdot 9999}",
    r"((9^{9999})^{9999})^{9999}",
    r"x^{9999\cdot 9999\cdot 9999}",
    r"2^{(9999)(9999)}",
    r"(9999\cdot 999+1)!",
    r"(x^{999}+1)!",
    "((((3!)!)!)!)",
    r"\binom{9999\cdot 9999}{5000\cdot 9999}",
    r"2^{\binom{99}{50}}",
    r"\log_{2}(2^{9999\cdot9999\cdot 99})",
    r"\sqrt[.00001]{\sqrt[.00001]{9}}",
    r"\sqrt[\frac{1}{99999}]{9}",
    "1E999999999+x",
    r"\cosh(\cosh(\cosh(100)))",
    r"\sin(\cosh(\cosh(15)))",
    r"\lfloor\cosh(\cosh(17))\rfloor",
    "e^{e^{e^{e^{9}}}}",
    "(x+" + "123456789" * 40 + ")^{9999}",
    "+".join(rf"\frac{{1}}{{{'123456789' * 5}{k}^{{20000}}}}" for k in range(1, 6)),
    r"\prod_{k=1}^{99}99^{9999k}",
    r"\sum_{k=1}^{99}(k!)!",
    r"\left(\prod_{k=1}^{99}k^{99}\right)^{9999}",
    r"\sum_{k=1}^{10^9}\frac{1}{k}",
    "x" + "^10" * 100,
    "(" * 12 + "-x^10" + ")^10" * 12,
    "9!" * 50,
    "9" * 1900 + " million",
    matrix(12, "vmatrix"),
    matrix(12, "pmatrix") + "^{-1}",
    r"\begin{pmatrix}x&1\\1&y\end{pmatrix}^{9999}",
    r"\operatorname{eig}(" + matrix(3, "pmatrix") + ")",
    r"\operatorname{ones}(9999,9999)",
]

BROKEN = [
    "x(",
    "f(",
    "x_{1}(",
    r"\sin^",
    "x_{",
    r"\sin x_{",
    r"\frac",
    r"\sqrt[",
    "|",
    "x^",
    "_",
    "^",
    "!",
    "=",
    "==",
    r"\left(",
    "｛" * 500 + "5" + "｝" * 500,
    "°" * 1900,
    "5" + " m" * 990,
    "5" + " cm" * 600,
    r"\text{" * 200 + "5" + "}" * 200,
]

LONG = [
    "5" + "*" * 19500 + "x",
    "x" + r"\," * 9000 + "y",
    "5" + "," * 19500,
    "5" + ".*" * 9500,
    "$" * 19900,
    "1{" + " " * 1980 + "x}",
    "1{" + " " * 1980 + r"\choose}",
    r"\cup".join(f"(a^10+{k},b)" for k in range(120)),
    "<".join(f"a^10b{k}" for k in range(250)),
    r"e^{-x}\begin{pmatrix}" + "&".join(["2"] * 800) + r"\end{pmatrix}",
    ", ".join(f"a^10+{k}" for k in range(29)),
    nested_sets(16, "6"),
]

CASES = [
    *((boxed(text), "5x") for text in (*GROWING, *BROKEN, *LONG)),
    *((boxed("5x"), text) for text in (*BROKEN, *LONG, "5" + " " * 100_000 + "x", "5" + "," * 100_000, "$" * 100_000)),
    (boxed(nested_sets(16, "6")), nested_sets(16, "7")),
    (boxed(r"x=99999\cdot 99999\cdot 99999\cdot 99999"), "y=x!"),
    (boxed(r"y=\sin2x"), r"y=\prod_{k=1}^{99}(x^{k}+y^{k})"),
    *(
        (text, "5x")
        for text in (
            "Answer: " * 3000,
            "answer is " * 2000,
            "<answer>" * 3000,
            r"\boxed{" * 3000,
            r"\boxed{6} or " * 1500,
            "答案" * 8000,
            "a" * 20000 + " the answer is 5",
            "(" * 20000,
            "#### " * 4000,
            "The " + "very " * 4000 + "answer is 5",
            r"\boxed{6}" + " or" * 6000,
            r"\boxed{6}" + ", 7" * 6000,
            "1 or " * 3000 + r"\boxed{6}",
            "$" * 19000 + r"\boxed{6}",
        )
    ),
]
