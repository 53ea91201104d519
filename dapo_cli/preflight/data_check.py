"""What the data sections give: counts, lengths, answers, and what training and evaluation have in common."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dapo_cli.config.schema import DataConfig
from dapo_cli.data.prompts import make_prompts
from dapo_cli.data.questions import DataReport, Question, load_questions, words_of_section
from dapo_cli.errors import UserError
from dapo_cli.preflight.findings import Finding, Level
from dapo_cli.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INTEGER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)")
NO_LIMIT = 2**62
_LOOSE_POINT = re.compile(r"(?<!\d)[.,]|[.,](?!\d)|[;:?'\"`$]")
_BLANK_OUTSIDE_WORDS = re.compile(r"(?<!\w)\s+|\s+(?!\w)")
SHOWN_QUESTION = 60  # characters
SHOWN_ROWS = 3
LONG_ANSWER = 100  # characters; a final answer is shorter


@dataclass(frozen=True)
class Lengths:
    """Of all prompts, those too long included; tokens. `mean` and `longest` are of the ones that are kept."""

    p50: int
    p95: int
    most: int
    mean: float
    longest: int


@dataclass(frozen=True)
class DataFigures:
    """One section. `kept` are prompts that the run would have; `lengths` is None without a tokenizer. `odd_answers` are
    the rows whose answer is no final answer by its form: very long, or with a brace that does not close."""

    section: str
    source: str
    rows: int
    duplicates: int
    conflicting: int
    too_long: int
    kept: int
    not_integers: float
    odd_answers: tuple[str, ...]
    lengths: Lengths | None


@dataclass(frozen=True)
class Section:
    """A section as read; `prompts` holds all of them, those too long included, and is empty without a tokenizer."""

    figures: DataFigures
    questions: list[Question]
    prompts: list[Prompt]


def read_section(name: str, data: DataConfig, tokenizer: "PreTrainedTokenizerBase | None") -> Section:
    """Raises UserError as the run would for data that cannot be read or used."""
    questions, report = load_questions(data)
    prompts: list[Prompt] = []
    lengths = None
    if tokenizer is not None:
        prompts = make_prompts(questions, tokenizer, replace(data, max_prompt_tokens=NO_LIMIT), report)
        lengths, report.too_long = _lengths([len(prompt.token_ids) for prompt in prompts], data.max_prompt_tokens)
    return Section(_figures(name, report, questions, lengths), questions, prompts)


def _figures(name: str, report: DataReport, questions: Sequence[Question], lengths: Lengths | None) -> DataFigures:
    not_integers = sum(INTEGER.fullmatch(question.answer.strip()) is None for question in questions)
    return DataFigures(
        section=name,
        source=report.source,
        rows=report.rows,
        duplicates=report.duplicates,
        conflicting=report.conflicting,
        too_long=report.too_long,
        kept=report.kept,
        not_integers=not_integers / len(questions),
        odd_answers=tuple(question.where for question in questions if is_odd(question.answer)),
        lengths=lengths,
    )


def is_odd(answer: str) -> bool:
    r"""Only the same text again could be equivalent to such an answer.

    >>> is_odd(r"\frac{1}{2}"), is_odd(r"\frac{1}{2"), is_odd("Let us show that " * 10)
    (False, True, True)
    """
    braces = re.sub(r"\\[{}]", "", answer)
    return len(answer) > LONG_ANSWER or braces.count("{") != braces.count("}")


def _lengths(tokens: list[int], limit: int) -> tuple[Lengths, int]:
    """And how many are above the limit."""
    ordered = sorted(tokens)
    kept = [length for length in ordered if length <= limit]
    at = {share: ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95)}
    mean = sum(kept) / len(kept) if kept else float(limit)
    return Lengths(at[0.5], at[0.95], ordered[-1], mean, kept[-1] if kept else limit), len(ordered) - len(kept)


def data_findings(section: Section, data: DataConfig) -> list[Finding]:
    """What is wrong with one section's figures."""
    figures, findings = section.figures, []
    if figures.kept == 0:
        least = min(len(prompt.token_ids) for prompt in section.prompts)
        problem = f"all {figures.too_long:,} prompts are longer; the shortest has {least:,} tokens, template included"
        key, value = f"{figures.section}.max_prompt_tokens", str(data.max_prompt_tokens)
        return [Finding(Level.ERROR, key, value, problem, "raise it")]
    if figures.too_long:
        share = figures.too_long / (figures.kept + figures.too_long)
        level = Level.WARNING if share > 0.01 else Level.NOTE
        problem = f"{figures.too_long:,} prompts ({share:.1%}) are longer and are left out"
        key = f"{figures.section}.max_prompt_tokens"
        findings.append(Finding(level, key, str(data.max_prompt_tokens), problem, "raise it to keep them"))
    if figures.conflicting:
        problem = f"{figures.conflicting:,} rows repeat a question with another answer: the first one is taken"
        findings.append(Finding(Level.WARNING, figures.section, figures.source, problem, "correct the data"))
    if odd := figures.odd_answers:
        problem = (
            f"{len(odd):,} answers have over {LONG_ANSWER} characters or a brace that does not close, so that only the "
            f"same text is right: {'; '.join(odd[:SHOWN_ROWS])}"
        )
        findings.append(Finding(Level.WARNING, figures.section, figures.source, problem, "correct or remove such rows"))
    return findings


@dataclass(frozen=True)
class Overlap:
    """Evaluation questions that are in the training data, too: letter by letter, and in all but case, space and
    punctuation; `example` is one of them, None without any."""

    exact: int
    normalised: int
    of: int
    example: str | None


def overlap(training: Sequence[Question], evaluation: Sequence[Question]) -> Overlap:
    """`normalised` counts the exact ones as well."""
    texts = {question.text for question in training}
    plain = {normalised(text) for text in texts}
    same = [question.text for question in evaluation if normalised(question.text) in plain]
    return Overlap(sum(text in texts for text in same), len(same), len(evaluation), same[0] if same else None)


def normalised(text: str) -> str:
    """A question without case, space and punctuation; what has a meaning in mathematics stays.

    >>> normalised("What is  $3.5 + 4$ ?"), normalised("what is 3.5+4")
    ('what is 3.5+4', 'what is 3.5+4')
    """
    words = " ".join(_LOOSE_POINT.sub("", text.casefold()).split())
    return _BLANK_OUTSIDE_WORDS.sub("", words)


def overlap_finding(found: Overlap) -> Finding | None:
    """An exact copy is refused by the run; a near one is what only a reader would notice."""
    if not found.normalised:
        return None
    level = Level.ERROR if found.exact else Level.WARNING
    example = found.example or ""
    shown = example if len(example) <= SHOWN_QUESTION else example[:SHOWN_QUESTION] + "…"
    problem = (
        f"{found.normalised:,} of {found.of:,} questions are in data, too ({found.exact:,} letter by letter, the "
        f"others but for case, space or punctuation), the first: {shown!r}"
    )
    return Finding(level, "eval.data", "", problem, "held-out accuracy would be of what is trained on: take them out")


def refused(section: str, data: DataConfig, error: UserError) -> Finding:
    """Data that the run would refuse."""
    return Finding(Level.ERROR, section, "", words_of_section(error, section, data))
