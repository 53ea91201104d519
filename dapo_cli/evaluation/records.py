"""A judged completion as one row of generations.jsonl, and the rows of a problem as its score."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any, NamedTuple

from dapo_cli.data.questions import Question
from dapo_cli.evaluation.metrics import AnswerClass, ProblemScore, consensus, top_voted
from dapo_cli.evaluation.votes import Same, Vote, answer_classes
from dapo_cli.types import Case, Finish, Outcome, Prompt, Verdict


class Problem(NamedTuple):
    """A question and what the model reads for it."""

    question: Question
    prompt: Prompt


class Sample(NamedTuple):
    """A completion as an evaluation needs it. `tokens` is a mean where a server counts those of several together."""

    text: str
    finish: Finish
    tokens: float


@dataclass(frozen=True)
class Generation:
    """A row. `prompt` is the text that the model read, `question` that of the data; `outcome`, `extracted` and `rule`
    are the verdict."""

    uid: str
    sample_index: int
    source: str
    subject: str | None
    level: str | None
    question: str
    prompt: str
    answer: str
    text: str
    finish: str
    tokens: float
    outcome: str
    extracted: str | None
    rule: str

    @property
    def case(self) -> Case:
        return Case(self.prompt, self.text, self.answer)

    @property
    def verdict(self) -> Verdict:
        return Verdict(Outcome(self.outcome), self.extracted, self.rule)

    def with_verdict(self, verdict: Verdict) -> "Generation":
        return replace(self, outcome=verdict.outcome.value, extracted=verdict.extracted, rule=verdict.rule)

    def to_row(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_row(cls, row: Any) -> "Generation":
        """Raises ValueError for what is no such row."""
        missing = [name for name in ROW_KEYS if not isinstance(row, dict) or name not in row]
        if missing:
            raise ValueError(f"it has no {missing[0]}")
        for name in ROW_KEYS:
            if reason := _value_problem(name, row[name]):
                raise ValueError(f"its {name} is {json.dumps(row[name])[:SHOWN_CHARACTERS]}: must be {reason}")
        return cls(**{name: row[name] for name in ROW_KEYS})


ROW_KEYS = tuple(field.name for field in fields(Generation))
NULLABLE = ("subject", "level", "extracted")
CHOICES = {"finish": [each.value for each in Finish], "outcome": [each.value for each in Outcome]}
SHOWN_CHARACTERS = 60  # of a value in a message


def _value_problem(name: str, value: Any) -> str | None:
    """What the value of a key should be, where it is not."""
    if name in CHOICES:
        return None if value in CHOICES[name] else f"one of {', '.join(CHOICES[name])}"
    if name == "sample_index":
        return None if type(value) is int and value >= 0 else "a whole number from 0"
    if name == "tokens":
        return None if type(value) in (int, float) and isfinite(value) and value >= 0 else "a number from 0"
    if isinstance(value, str) or (value is None and name in NULLABLE):
        return None
    return "a text or null" if name in NULLABLE else "a text"


def judged_rows(problem: Problem, samples: Sequence[Sample], verdicts: Sequence[Verdict]) -> list[Generation]:
    """The rows of a problem, by sample index."""
    question, prompt = problem
    return [
        Generation(
            uid=prompt.uid,
            sample_index=index,
            source=question.source,
            subject=question.subject,
            level=question.level,
            question=question.text,
            prompt=prompt.text,
            answer=prompt.answer,
            text=sample.text,
            finish=sample.finish.value,
            tokens=sample.tokens,
            outcome=verdict.outcome.value,
            extracted=verdict.extracted,
            rule=verdict.rule,
        )
        for index, (sample, verdict) in enumerate(zip(samples, verdicts, strict=True))
    ]


def problem_scores(problems: Sequence[Sequence[Generation]], same: Same) -> list[ProblemScore]:
    """One score a problem, in order. Without any answer told (a user's function that returns bools) there is neither
    cons@k nor a share without answer."""
    tells = any(row.verdict.tells_answer for rows in problems for row in rows)
    votes = [[Vote(row.extracted, row.verdict.outcome is Outcome.RIGHT) for row in rows] for rows in problems]
    classes: list[list[AnswerClass | None]] = answer_classes(votes, same) if tells else [[] for _ in problems]
    return [_score(rows, found if tells else None) for rows, found in zip(problems, classes, strict=True)]


def _score(rows: Sequence[Generation], classes: Sequence[AnswerClass | None] | None) -> ProblemScore:
    first = rows[0]
    outcomes = [row.verdict.outcome for row in rows]
    unstated = sum(row.extracted is None and row.verdict.tells_answer for row in rows)
    return ProblemScore(
        uid=first.uid,
        question=first.question,
        answer=first.answer,
        source=first.source,
        subject=first.subject,
        level=first.level,
        right=outcomes.count(Outcome.RIGHT),
        failed=outcomes.count(Outcome.FAILED),
        truncated=sum(row.finish == Finish.LENGTH.value for row in rows),
        no_answer=None if classes is None else unstated,
        tokens=tuple(row.tokens for row in rows),
        consensus=None if classes is None else consensus(classes),
        voted=tuple(found.answer for found in top_voted(classes or [])),
    )
