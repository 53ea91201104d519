"""Answers that a policy could farm: each was once accepted by this verifier or a well-known one, and states something
else, several things, or nothing. And right answers that a verifier which refuses those is tempted to refuse, too."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dapo_cli.config.schema import MathReward
from dapo_cli.reward.math_verifier import equivalent, verify
from dapo_cli.reward.modes import build_verifier
from dapo_cli.types import Case, Outcome
from tests.unit import hostile_answers

# What a box holds ⇐ the reference it was taken for.
BOXED = r"""
6 \text{ for all even } n, 7 \text{ for all odd } n ⇐ 6
6 for any even n and 7 otherwise ⇐ 6
n^2 \text{ for all } n>3, \text{ else } 2n ⇐ n^2
2 for every 3 ⇐ 2
The square of it is 6 ⇐ 6
The result plus one is 6 ⇐ 6
It can't be that it is 6 ⇐ 6
-abc ⇐ abc
mgh ⇐ -mgh
abc - d ⇐ abc + d
pqr/(a+b) ⇐ pqr(a+b)
a(bcd) ⇐ a/(bcd)
abc(a - b + c) ⇐ abc(a+b+c)
xyZ ⇐ xyz
Alice > Bob > Carol > Dave ⇐ Alice < Bob < Carol < Dave
\text{Tom} > \text{Jim} ⇐ \text{Tom} < \text{Jim}
\text{x < 5 only} ⇐ \text{x > 5 only}
\text{all even n + 1} ⇐ \text{all even n - 1}
\text{all n^2} ⇐ \text{all n 2}
¬True ⇐ True
!True ⇐ True
-\text{blue} ⇐ \text{blue}
True/False ⇐ True False
0 ⇐ \lfloor n^2/12\rfloor
\lfloor n/5\rfloor ⇐ \lfloor n/4\rfloor
n ⇐ n+\lfloor n^2/100\rfloor
\lceil n/2\rceil ⇐ \lfloor n/2\rfloor+1
\frac{n^2}{4} ⇐ \left[\frac{n^2}{4}\right]
[n/2] ⇐ n/2
\left[\frac n2\right]+1 ⇐ \frac n2+1
xy ⇐ |xy|
|a+b| ⇐ |a|+|b|
x/y ⇐ |x/y|
xy ⇐ \sqrt{x^2y^2}
|x+y|=1 ⇐ |x|+|y|=1
\frac{|a|}{a} ⇐ \frac{|b|}{b}
|a|b ⇐ a|b|
|x|=5 ⇐ x=5
2|x|=10 ⇐ x=5
|x-3|=2 ⇐ x=5
\sqrt{x^2}=5 ⇐ x=5
x=5 ⇐ |x|=5
|x-y|=2 ⇐ x=y+2
x=-5, |p|=3 ⇐ x=-5, p=3
z(x-5)=0 ⇐ x=5
(y-1)(x-5)=0 ⇐ x=5
xy=5y ⇐ x=5
x(y-2x)=0 ⇐ y=2x
(x-2)(x-1)(x-6)=0 ⇐ x=2
(n,N) ⇐ (N,n)
N=5, n=6 ⇐ N=6, n=5
R>r ⇐ r>R
r<R ⇐ R<r
R:r ⇐ r:R
\frac r2 ⇐ \frac R2
2\pi r ⇐ 2\pi R
A=b ⇐ a=B
E=mC^2 ⇐ E=mc^2
\delta ⇐ \Delta
x_N ⇐ x_n
(3,125) ⇐ 3125
1234 ⇐ (1,234)
-2 -1/2 ⇐ -3/2
-1 -1/3 ⇐ -2/3
2 (1/2) ⇐ 5/2
2\frac{-1}{2} ⇐ 3/2
2\frac{5}{2} ⇐ 9/2
3\frac43 ⇐ 13/3
0,125 ⇐ 125
0,001 ⇐ 1
0 123 ⇐ 123
0.5(2) ⇐ 0.5\overline2
2,3,3 ⇐ 2, 2, 3
k=45, 3n=2 ⇐ k=45, n=32
2x=4, 2y=6 ⇐ 24, 26
k=45, 0n=2 ⇐ k=45, n=2
k=45, \sqrt{n}=4 ⇐ k=45, n=2
a=1, \ln b=5 ⇐ a=1, b=\ln 5
a=1, 2^b=5 ⇐ a=1, b=2^5
DABC ⇐ ABDC
[3,2,1] ⇐ [1,2,3]
(\pm1,\mp2) ⇐ (\pm1,\pm2)
x=\pm1, y=\mp2 ⇐ x=\pm1, y=\pm2
a_1=3, a_2=1 ⇐ a_1=1, a_2=3
(y,x)=(1,2) ⇐ (1,2)
1:2 ⇐ 0.5
10:5 ⇐ 2
\ne=6 ⇐ 6
not = 6 ⇐ 6
half = 6 ⇐ 6
double=6 ⇐ 6
squared=6 ⇐ 6
million=6 ⇐ 6
x^{-1}=2 ⇐ 2
(C) or (d) ⇐ C
(C) or none of these ⇐ C
C) and also the second ⇐ C
C. or K ⇐ C
(C): no, cannot be determined ⇐ C
C. is incorrect ⇐ C
(C) ∨ Ⓓ ⇐ C
A. 7, or 8 ⇐ A
\frac{\sqrt3}{4} ⇐ \frac{\sqrt3}{4} s^{2}
\frac12m ⇐ \frac12 m g
\frac12 b h ⇐ \frac12 b
n h ⇐ n
6 m g h ⇐ 6
\pi L ⇐ \pi
2x g ⇐ 2x
€5 ⇐ \$5
\$6 cents ⇐ \$6
6 m cm ⇐ 6 cm
6 apples oranges ⇐ 6
xy>5 ⇐ x>5
abc>5 ⇐ x>5
wrong > 5 ⇐ x>5
y>5 ⇐ x>5
c>b ⇐ a>b
\cos < 5 ⇐ x<5
x>2 and y<5 ⇐ 2<x<5
x>2, y>3 ⇐ x>2, z>3
2"04 ⇐ 204
2\$04 ⇐ 204
6"_7 ⇐ 6
6\$_7 ⇐ 6
6 \$ 2 ⇐ 12
1$2 ⇐ 12
\sin x^\circ ⇐ \sin x
\sin 2.5^\circ ⇐ \sin\frac52
x^\circ+5 ⇐ x+5
\begin{vmatrix}1&2\\3&4\end{vmatrix} ⇐ \begin{pmatrix}1&2\\3&4\end{pmatrix}
-1+2\begin{pmatrix}1\\2\end{pmatrix} ⇐ \begin{pmatrix}1\\2\end{pmatrix}
2^3C_2 ⇐ 6
2^3^2 ⇐ 64
\sqrt2+10^{-50} ⇐ \sqrt2
0^0 ⇐ 1
2x (a-b) ⇐ 2x (b-a)
5 (x-y) ⇐ 5
\sin (a-b) ⇐ \sin (b-a)
6 (seven also possible) ⇐ 6
6 (in hundreds) ⇐ 6
(2 or 3) ⇐ (2,3)
(-\infty\text{ or }3) ⇐ (-\infty,3)
(x-3)(y-\frac12)=0 ⇐ y=\frac12
(y-\frac x2)(x-1)=0 ⇐ y=\frac x2
xy=\frac{x^2}2 ⇐ y=\frac x2
x = 3, y = 4 ⇐ x=3, x=4
x=1, y=2 ⇐ x=1,x=2
a=4,-8,-10 ⇐ b=4,-8,-10
\pm1\pm\sqrt2 ⇐ 1+\sqrt2, -1-\sqrt2
\pm1\pm2 ⇐ 3,-3
The last digit of it is 6 ⇐ 6
The successor of it is 6 ⇐ 6
The answer increased by one is 6 ⇐ 6
The square root is 6 ⇐ 6
The answer in base seven is 6 ⇐ 6
The upper bound is 6 ⇐ 6
Thus y is 6 ⇐ x=6
x(x-1)=6 ⇐ 6
n(n+1)=6 ⇐ 6
x(7)=6 ⇐ 6
notequal=6 ⇐ 6
mod=6 ⇐ 6
sqrt=6 ⇐ 6
minusone=6 ⇐ 6
sum+one=6 ⇐ 6
[\sqrt n] ⇐ \sqrt n
[\log_2 n] ⇐ \log_2 n
[\sqrt{10}] ⇐ \sqrt{10}
n-[\sqrt n] ⇐ n-\sqrt n
[x]+1 ⇐ x+1
\{n/2\} ⇐ n/2
{7}6 ⇐ 42
1{2} ⇐ 2
\frac{1}{2}3 ⇐ \frac32
0x1F ⇐ 0
\frac{3}{0} ⇐ \frac{5}{0}
1:2 ⇐ 1:02
C. 42; a. 43 ⇐ C
(C) 5 (a) 7 ⇐ C
C. ruled out ⇐ C
C ≥ 5 ⇐ C
C. maybe ⇐ C
\{x|-2\le y<1\} ⇐ [-2,1)
\angle ABC ⇐ \angle BCA
\text{5\% loss of value} ⇐ \text{5 loss of value}
(,1,2) ⇐ (1,2)
1,,2 ⇐ 1,2
28, 0.28 ⇐ 28\%
"""

# Whole responses, and the reference they were taken for.
RESPONSES = [
    ("\\boxed{5}\\text{ or }\\boxed{6}", "6"),
    ("\\boxed{5} or possibly \\boxed{6}", "6"),
    ("\\boxed{5} or maybe \\boxed{6}", "6"),
    ("$x=\\boxed{6}$ or $x=\\boxed{7}$", "7"),
    ("**\\boxed{6}** or **\\boxed{7}**", "7"),
    ("\\boxed{6}\\ \\boxed{7}", "7"),
    ("\\boxed{6}\\quad\\boxed{7}", "7"),
    ("\\boxed{6}\n\nor\n\n\\boxed{7}", "7"),
    ("(a) \\boxed{6} (b) \\boxed{7}", "7"),
    ("\\boxed{6} / \\boxed{7}", "7"),
    ("\\boxed{6} \\lor \\boxed{7}", "7"),
    ("\\boxed{6}~\\boxed{7}", "7"),
    ("- \\boxed{6}\n- \\boxed{7}", "7"),
    ("Answer: 5 or \\boxed{6}", "6"),
    ("Answer: 6 or\n\\boxed{7}", "7"),
    ("Answer: \\boxed{6} or 7", "6"),
    ("Final Answer: $7$, $\\boxed{6}$", "6"),
    ("**Answer:** $\\boxed{6}^\\circ$ or $\\boxed{174}^\\circ$", "174"),
    ("\\boxed{6}$ or $7$", "6"),
    ("$-\\boxed{6}$", "6"),
    ("2\\boxed{6}", "6"),
    ("\\boxed{6}^2", "6"),
    ("\\boxed{6}0", "6"),
    ("\\boxed{6}\\%", "6"),
    ("\\sqrt{\\boxed{6}}", "6"),
    ("\\frac{\\boxed{6}}{2}", "6"),
    ("\\boxed{5}<x<\\boxed{6}", "6"),
    ("Answer: x < \\boxed{6}", "6"),
    ("Answer: not \\boxed{6}", "6"),
    ("The answer is 5. A common incorrect answer is 6.", "6"),
    ("Answer: 5. The wrong answer is 6", "6"),
    ("Answer: 7, not 6. The student answer is 6", "6"),
    ("I doubt the answer is 6.", "6"),
    ("Suppose the answer is 6.", "6"),
    ("It is impossible that the answer is 6.", "6"),
    ("No answer is 6", "6"),
    ("The student's answer is 6.", "6"),
    ("Wrong answer: 6", "6"),
    ("my wrong answer: 6", "6"),
    ("Not the answer: 6", "6"),
    ("no correct answer: 6", "6"),
    ("I can't find the answer: 6", "6"),
    ("错误答案：6", "6"),
    ("Answer (wrong): 6", "6"),
    ("Answer (not): 6", "6"),
    ("Answer (7 or): 6", "6"),
    ("the answer is 6, as x>0, or 7, as x<0.", "6"),
    ("The answer is 6, as well as 7.", "6"),
    ("The answer is 6, since it is 6 or 7", "6"),
    ("The answer is 6, which could also be 7.", "6"),
    ("The answer is 6. Or 7.", "6"),
    ("Answer: 6\nor 7", "6"),
    ("<think>a</think>5<think>\\boxed{6}", "6"),
    ("<thinking>\\boxed{6}", "6"),
    ("\\boxed 6 or 7", "6"),
    ("\\boxed 6, 7", "6"),
    ("<|im_start|>assistant\nAnswer: 5<|im_end|><|im_start|>user\nAnswer: 6", "6"),
    ("<answer>5</answer> or <answer>6</answer>", "6"),
    ("x = 5 or x = \\boxed{6}", "6"),
    ("$x = 5$ or $x = \\boxed{6}$", "6"),
    ("either 5, or \\boxed{6}", "6"),
    ("either 5 or\n\\boxed{6}", "6"),
    ("either 5 or it is \\boxed{6}", "6"),
    ("\\boxed{6} or seven", "6"),
    ("\\boxed{6} or −7", "6"),
    ("\\boxed{6} or n+1", "6"),
    ("\\boxed{6}, or 7", "6"),
    ("\\boxed{6} (or 7)", "6"),
    ("\\boxed{6} and 7", "6"),
    ("\\boxed{6} and $7$", "6"),
    ("\\boxed{6}; 7", "6"),
    ("\\boxed{6}, x=7", "6"),
    ("\\boxed{6} to 7", "6"),
    ("\\boxed{6}\n\nand\n\n7", "6"),
    ("\\boxed{6}\\pi", "6"),
    ("\\boxed{6}\\sqrt{2}", "6"),
    ("\\boxed{6}x", "6"),
    ("\\boxed{6}i", "6"),
    ("\\boxed{6}/7", "6"),
    ("\\boxed{6}.5", "6"),
    ("\\boxed{6},000", "6"),
    ("\\boxed{6}\\cdot 10^5", "6"),
    ("\\boxed{6}+1", "6"),
    ("\\boxed{6} million", "6"),
    ("\\boxed{6} dozen", "6"),
    ("\\boxed{6}{7}", "6"),
    ("\\pi\\boxed{6}", "6"),
    ("x\\boxed{6}", "6"),
    ("3\\cdot\\boxed{6}", "6"),
    ("3+\\boxed{6}", "6"),
    ("1/\\boxed{6}", "6"),
    ("\\frac{1}{\\boxed{6}}", "6"),
    ("\\sqrt[3]{\\boxed{6}}", "6"),
    ("\\log \\boxed{6}", "6"),
    ("0.\\boxed{6}", "6"),
    ("minus \\boxed{6}", "6"),
    ("negative \\boxed{6}", "6"),
    ("so x >= \\boxed{6}", "6"),
    ("x != \\boxed{6}", "6"),
    ("x ≥ $\\boxed{6}$", "6"),
    ("$x\\ge$ $\\boxed{6}$", "6"),
    ("x \\ge\n\\boxed{6}", "6"),
    ("$x<$ \\boxed{6}", "6"),
    ("at least \\boxed{6}", "6"),
    ("≈ \\boxed{6}", "6"),
    ("about \\boxed{6}", "6"),
    ("The answer is not \\boxed{6}.", "6"),
    ("It is not \\boxed{6}", "6"),
    ("is not equal to \\boxed{6}", "6"),
    ("Is it \\boxed{6}? No.", "6"),
    ("\\boxed{6} is wrong.", "6"),
    ("\\boxed{6} is incorrect; I cannot determine the answer.", "6"),
    ("The answer is 6, as well as seven", "6"),
    ("The answer is 6, since n is even; otherwise seven", "6"),
    ("The answer is 6, which is wrong", "6"),
    ("The answer is 6, where we must double it", "6"),
    ("For example, Answer: 6", "6"),
    ("Format: Answer: 6", "6"),
    ("\\boxed{6} or alternatively \\boxed{7}", "7"),
    ("\\boxed{6}, but possibly also \\boxed{7}", "7"),
    ("\\boxed{6} or, if n is odd, \\boxed{7}", "7"),
    ("\\boxed{6} for n even, \\boxed{7} for n odd", "7"),
    ("\\boxed{6} + \\boxed{7}", "7"),
    ("\\boxed{6} \\times \\boxed{7}", "7"),
    ("\\boxed{6} to \\boxed{7}", "7"),
    ("\\boxed{6}:\\boxed{7}", "7"),
    ("\\boxed{6} = \\boxed{7}", "7"),
    ("1,\\boxed{234}", "234"),
    ("<think>" + "a " * 12000 + "\\boxed{6}", "6"),
]

RIGHT = [
    (r"This gives \boxed{4} for x, so the total is \boxed{7}.", "7"),
    (r"We get \boxed{4} for the base and finally \boxed{7}", "7"),
    (r"If n = 2 we have \boxed{4}, which is too small for us; hence \boxed{7}", "7"),
    ("n = 6 => \\boxed{42}", "42"),
    ("-> \\boxed{42}", "42"),
    ("--> \\boxed{42}", "42"),
    ("> \\boxed{42}", "42"),
    ("\\boxed{42}<br>", "42"),
    ("\\boxed{42} <END>", "42"),
    ("\\boxed{42}\n<details>", "42"),
    ("\\boxed{42}\n> note", "42"),
    ("\\boxed{42}!", "42"),
    ("Hooray, \\boxed{42}! That is it.", "42"),
    ("Answer: So \\boxed{42}", "42"),
    ("Answer: We have \\boxed{42}", "42"),
    ("Answer: Hence $n=\\boxed{42}$.", "42"),
    ("Answer: Alice has \\boxed{42} apples.", "42"),
    ("Answer: The minimum value of $x+y$ is \\boxed{42}", "42"),
    ("Answer: The value of \\(m+n\\) is \\(\\boxed{42}\\).", "42"),
    ("Answer: By Vieta, sum is 5, so product = \\boxed{42}", "42"),
    ("Answer: 6*7 = \\boxed{42}", "42"),
    ("Answer: There are $42$ such integers.", "42"),
    ("Answer: The minimum value of $x+y$ is $42$.", "42"),
    ("Answer: Tom has 42 apples.", "42"),
    ("Answer: It takes 42 minutes.", "42"),
    ("The final answer is therefore $42$.", "42"),
    ("The answer is thus 42", "42"),
    ("The answer is clearly 42", "42"),
    ("The answer is indeed 42", "42"),
    ("The answer is given by 42", "42"),
    ("The answer is simply 42", "42"),
    ("The answer is equal to 42", "42"),
    ("The answer to the problem is 42.", "42"),
    ("The answer equals 42", "42"),
    ("The answer = 42", "42"),
    ("【答案】42", "42"),
    ("答：42个", "42"),
    ("Ans: 42", "42"),
    ("Final Answer\n42", "42"),
    ("Answer\n\n42", "42"),
    ("✅ **Answer: 42**", "42"),
    ("最终答案为：42", "42"),
    ("<answer>The answer is 42.</answer>", "42"),
    ("Answer: 42 ✓", "42"),
    ("Answer: 42 ✅", "42"),
    ("\\boxed{42\\text{ positive integers}}", "42"),
    ("\\boxed{42\\text{ different ways}}", "42"),
    ("\\boxed{42\\text{ ordered pairs}}", "42"),
    ("\\boxed{42\\text{ elements}}", "42"),
    ("\\boxed{42€}", "42"),
    ("\\boxed{42\\text{ units}}", "42"),
    ("\\boxed{\\text{Area} = 42}", "42"),
    ("The answer is $42$.\n\nLet me know if you have questions!", "42"),
    ("\\boxed{42} square units", "42"),
    ("so we get $\\boxed{42}$ and we are done.", "42"),
    ("\\boxed{42}. And that is the answer.", "42"),
    ("Hence there are $\\boxed{42}$ of them, or in other words many.", "42"),
    ("\\boxed{42 \\text{ apples}}, since 6 times 7.", "42"),
    ("The correct option is C.", "C"),
    ("The correct choice is (C).", "C"),
    ("故选：C", "C"),
    ("\\boxed{C}", "\\text{(C) }42"),
    ("\\boxed{C. No solution}", "C"),
    ("\\boxed{C \\text{ (42)}}", "C"),
    ("\\boxed{(\\pm 1, 2)}", "(1,2),(-1,2)"),
    ("\\boxed{\\pm 1 \\pm i}", "1+i,1-i,-1+i,-1-i"),
    ("\\boxed{\\text{No solution}}", "\\emptyset"),
    ("\\boxed{0 \\le f(x) \\le 1}", "[0,1]"),
    ("\\boxed{(-\\infty,-1]\\bigcup[3,+\\infty)}", "(-\\infty,-1]\\cup[3,\\infty)"),
    ("\\boxed{E[X]=3}", "3"),
    ("\\boxed{100m+n = 13}", "13"),
    ("\\boxed{a^2+b^2=13}", "13"),
    ("\\boxed{1010_{\\text{two}}}", "1010_2"),
    ("答案是：42平方厘米", "42"),
    (
        "\\boxed{\\begin{cases} x & \\text{if } x>0 \\\\ -x, & \\text{if } x \\le 0\\end{cases}}",
        "\\begin{cases} x & x>0 \\\\ -x & x\\le 0\\end{cases}",
    ),
    ("Answer: $-\\frac{1}{2}$", "-0.5"),
    ("The answer is $-3$.", "-3"),
    ("$x=\\boxed{-3}$", "-3"),
    ("= \\boxed{\\frac{1}{2}}", "\\frac12"),
    ("\\boxed{42}\n\nThis answer is an integer, as required.", "42"),
    ("\\boxed{42}\n\nThe answer is unique.", "42"),
    ("\\boxed{42}. The answer is positive, so fine", "42"),
    ("\\boxed{42} The final answer is boxed above.", "42"),
    ("\\boxed{42}\n\nI hope this answer is helpful!", "42"),
    ("\\boxed{42}. The answer is less than 100", "42"),
    ("Answer: 6\n\nNote: the answer is exact.", "6"),
    ("\\boxed{6}\n\n#### Verification\nok", "6"),
    ("Answer: 6\n\n#### Verification\nok", "6"),
    ("Answer: \\(6\\) and \\(7\\)", "6, 7"),
    ("\\boxed{\\ln x+\\ln y}", "\\ln(xy)"),
    ("\\boxed{2\\ln x}", "\\ln x^2"),
    ("\\boxed{\\sqrt{ab}}", "\\sqrt a\\sqrt b"),
    ("\\boxed{a\\sqrt a}", "\\sqrt{a^3}"),
    ("\\boxed{\\sin\\pi}", "0"),
    ("\\boxed{\\sqrt[3]{-8}}", "-2"),
    ("\\boxed{b>a}", "a<b"),
    ("\\boxed{x:=5}", "5"),
    ("\\boxed{\\mathbb{Z}}", "\\mathbb Z"),
    ("Answer: Yes!", "yes"),
    ("\\boxed{\\frac{1}{2}} or 0.5", "\\frac12"),
    ("The value is $-\\boxed{3}$.", "-3"),
    ("so the angle is $\\boxed{60}^\\circ$", "60^\\circ"),
    ("That is \\boxed{28}\\%", "28\\%"),
    ("$x = -\\boxed{7}$", "-7"),
    ("- \\boxed{6}", "6"),
    ("Answer:\n- \\boxed{6}", "6"),
    ("Answer: The area is \\boxed{6} square units", "6"),
    ("**Final Answer**\n\nThe final answer is $\\boxed{6}$", "6"),
    ("1. First. 2. Then n = \\boxed{6}, as desired.", "6"),
    ("Hence $a=2$ or $a=3$, so the sum is $\\boxed{5}$.", "5"),
]


@pytest.mark.parametrize("row", [row for row in BOXED.splitlines() if row])
def test_boxed_answers_that_are_not_the_reference(row: str):
    given, reference = row.split(" ⇐ ")
    assert verify(f"So \\boxed{{{given}}}", reference).outcome is Outcome.WRONG


@pytest.mark.parametrize(("response", "reference"), RESPONSES)
def test_responses_that_do_not_state_the_reference(response: str, reference: str):
    assert verify(response, reference).outcome is Outcome.WRONG


@pytest.mark.parametrize(("response", "reference"), RIGHT)
def test_right_answers_with_something_around_them(response: str, reference: str):
    assert verify(response, reference).outcome is Outcome.RIGHT


def test_texts_that_would_hang_or_crash_are_judged():
    """Wrong, by a verdict and not by a limit: none of them takes long."""
    cases = [Case("", response, answer) for response, answer in hostile_answers.CASES]
    with build_verifier(MathReward(workers=1, timeout_s=60.0, memory_limit_mib=512)) as pool:
        verdicts = pool.verify(cases)
    assert [case for case, verdict in zip(cases, verdicts, strict=True) if verdict.outcome is not Outcome.WRONG] == []


def test_a_text_too_deep_to_parse_leaves_no_trace():
    """A parser that gave up within a deep text must not remember that for the same part by itself."""
    part, reference = "2x^10", r"20\cdot\frac{x^10}{10}"
    deep = ("｛" * 180 + part + "｝" * 180, "｛" * 180 + "7y" + "｝" * 180)
    before = equivalent(part, reference)
    equivalent(*deep)
    assert equivalent(part, reference) == before


def test_verdicts_do_not_depend_on_other_threads():
    pairs = [
        (r"e^{500}x", r"x\cdot e^{500}\cdot 1"),
        ("e^{300}+1", "e^{300}+1+10^{-9}"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
    ] * 60
    expected = [equivalent(*pair) for pair in pairs]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda pair: equivalent(*pair), pairs * 4)) == expected * 4
    finally:
        sys.setswitchinterval(interval)
