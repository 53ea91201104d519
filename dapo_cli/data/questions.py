"""From a recipe's data section to distinct questions, and the account of what was dropped on the way."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from dapo_cli.config.schema import ArithmeticData, DataConfig, FilesData, HubData, TabularData
from dapo_cli.data import arithmetic
from dapo_cli.data.answers import number_text, reference_answer, valid_text
from dapo_cli.data.faults import Faults, RowFault
from dapo_cli.data.hub import hub_table, resolve_revision
from dapo_cli.data.tables import Row, Table, Wanted, absent_column, first_value, open_table, value_at
from dapo_cli.errors import UserError

# An answer column goes before a worked solution, which may box an intermediate result last.
QUESTION_COLUMNS = ("prompt", "question", "problem")
ANSWER_COLUMNS = ("answer", "ground_truth", "reward_model.ground_truth", "solution")
SOURCE_COLUMNS = ("data_source", "source")
SUBJECT_COLUMNS = ("subject",)
LEVEL_COLUMNS = ("level", "difficulty")


class Message(NamedTuple):
    role: str
    content: str


@dataclass(frozen=True)
class Question:
    """A question as its data set asks it, before any template. A plain text is one user message.

    `source` names the data set, `where` the row it came from ("train.jsonl, line 3"). `subject` and `level` are what
    the data set says of the question ("Geometry", "5"), and no part of what it asks.
    """

    messages: tuple[Message, ...]
    answer: str
    source: str
    where: str
    subject: str | None = None
    level: str | None = None

    @property
    def text(self) -> str:
        return "\n\n".join(message.content for message in self.messages)

    @property
    def uid(self) -> str:
        """16 hex digits over question and answer: the same in every run, file order and template."""
        content = json.dumps([self.messages, self.answer])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass
class DataReport:
    """What became of the rows; the counts of dropped rows and `kept` add up to `rows`.

    `conflicting` rows ask a question already seen but give another answer: the first answer stays, as no rule could
    tell which one is right. `fingerprints` are (file, sha256), (hub id, commit hash), or (generator, sha256 of what it
    made): enough to tell that a run's data changed.
    """

    source: str
    rows: int = 0
    duplicates: int = 0
    conflicting: int = 0
    too_long: int = 0
    instruction_present: int = 0
    unknown_tokens: int = 0
    fingerprints: list[tuple[str, str]] = field(default_factory=list)

    @property
    def kept(self) -> int:
        return self.rows - self.duplicates - self.conflicting - self.too_long


def load_questions(config: DataConfig) -> tuple[list[Question], DataReport]:
    """The distinct questions of a data section, in the order of their first rows.

    Raises UserError for data that cannot be read, has no rows, or has rows without a question or an answer.
    """
    match config:
        case ArithmeticData():
            return _arithmetic_questions(config)
        case FilesData():
            if not config.paths:
                raise UserError("data.paths: the list is empty: name at least one data file")
            paths = [Path(path).expanduser() for path in config.paths]
            wanted = _wanted(config)
            report = DataReport(source=", ".join(config.paths))
            questions = _distinct_questions(((open_table(path, wanted), path.stem) for path in paths), wanted, report)
            report.fingerprints = [fingerprint for path in paths for fingerprint in _file_hashes(path)]
            return questions, report
        case HubData():
            commit = resolve_revision(config)
            report = DataReport(source=config.id, fingerprints=[(config.id, commit)])
            wanted = _wanted(config)
            return _distinct_questions([(hub_table(config, commit, wanted), config.id)], wanted, report), report
        case TabularData():
            raise UserError(
                "data tabular: the prompts are rows of a table (see `dapo recipe keys model`), without texts"
            )
        case _:
            raise AssertionError(f"a data section without a loader: {type(config).__name__}")


def words_of_section(error: UserError, section: str, data: DataConfig) -> str:
    """What loading `data` ended with. The loader speaks of `data.paths`; in the section it may be `eval.data.paths`."""
    keys = "|".join(key.name for key in fields(data))
    return re.sub(rf"(?<![\w./])data\.({keys})\b", rf"{section}.\1", str(error))


def _arithmetic_questions(config: ArithmeticData) -> tuple[list[Question], DataReport]:
    try:
        problems = arithmetic.problems(
            config.seed,
            config.prompts,
            held_out=config.held_out,
            min_terms=config.min_terms,
            max_terms=config.max_terms,
        )
    except ValueError as error:
        raise UserError(f"data.prompts={config.prompts}: {error}; ask for fewer, or raise data.max_terms") from error
    if not problems:
        raise UserError(f"data.prompts={config.prompts}: no problem to make; ask for at least 1")
    questions = [
        Question((Message("user", f"{problem.expression}=?"),), str(problem.answer), "arithmetic", f"problem {number}")
        for number, problem in enumerate(problems, start=1)
    ]
    made = "\n".join(question.uid for question in questions)
    report = DataReport("arithmetic", rows=len(questions))
    report.fingerprints = [("arithmetic", hashlib.sha256(made.encode()).hexdigest())]
    return questions, report


def _wanted(config: FilesData | HubData) -> Wanted:
    return Wanted(
        question=(config.prompt_column,) if config.prompt_column else QUESTION_COLUMNS,
        answer=(config.answer_column,) if config.answer_column else ANSWER_COLUMNS,
        optional=(*SOURCE_COLUMNS, *SUBJECT_COLUMNS, *LEVEL_COLUMNS),
    )


def _distinct_questions(tables: Iterable[tuple[Table, str]], wanted: Wanted, report: DataReport) -> list[Question]:
    """The first of each question; `tables` come with the name of their source. Counts into `report`."""
    first: dict[tuple[Message, ...], Question] = {}
    faults = Faults()
    for table, source in tables:
        rows_before = report.rows
        for number, row in table.rows:
            report.rows += 1
            where = f"{table.name}, {table.unit} {number}"
            try:
                question = _question_of(row, wanted, source, where)
            except RowFault as fault:
                faults.add(where, fault)
                continue
            seen = first.setdefault(question.messages, question)
            if seen is not question:
                report.duplicates += seen.answer == question.answer
                report.conflicting += seen.answer != question.answer
        if report.rows == rows_before:
            raise UserError(f"{table.name} holds no rows: give data with at least one row")
    remedy = "correct or remove such rows, or name other columns in data.prompt_column and data.answer_column"
    faults.raise_any(report.rows, remedy)
    return list(first.values())


def _question_of(row: Row | RowFault, wanted: Wanted, source: str, where: str) -> Question:
    if isinstance(row, RowFault):
        raise row
    stated_source = first_value(row, SOURCE_COLUMNS)
    return Question(
        messages=_messages(row, wanted.question),
        answer=valid_text(_answer(row, wanted.answer)),
        source=stated_source if isinstance(stated_source, str) and stated_source else source,
        where=where,
        subject=_label(row, SUBJECT_COLUMNS),
        level=_label(row, LEVEL_COLUMNS),
    )


def _label(row: Row, columns: tuple[str, ...]) -> str | None:
    """A short text or a number that sorts questions; None where the row has none.

    >>> _label({"level": 5.0}, ("level",)), _label({"level": " Level 5 "}, ("level",)), _label({}, ("level",))
    ('5', 'Level 5', None)
    """
    match first_value(row, columns):
        case bool():
            return None
        case int() | float() as number:
            return number_text(number) or None
        case str(text):
            return valid_text(text.strip()) or None
        case _:
            return None


def _messages(row: Row, columns: tuple[str, ...]) -> tuple[Message, ...]:
    value = first_value(row, columns)
    messages: tuple[Message, ...]
    match value:
        case None:
            raise RowFault(f"no question: {_why_none('prompt', row, columns)}")
        case str():
            messages = (Message("user", valid_text(value.strip())),)
        case [dict(), *_]:
            messages = tuple(_message(item) for item in value)
        case _:
            raise RowFault(f"the question is neither text nor chat messages: {value!r:.80}")
    if messages[-1].role != "user":
        raise RowFault(f"the last message is the {messages[-1].role}'s; a prompt ends with the user's")
    if not messages[-1].content.strip():
        raise RowFault("no question: its text is empty")
    return messages


def _message(item: object) -> Message:
    match item:
        case {"role": str(role), "content": str(content)}:
            return Message(role, valid_text(content))
        case _:
            raise RowFault(f'a chat message without text {{"role": ..., "content": ...}}: {item!r:.80}')


def _answer(row: Row, columns: tuple[str, ...]) -> str:
    for column in columns:
        if answer := reference_answer(value_at(row, column), worked=_is_worked(column)):
            return answer
    raise RowFault(f"no answer: {_why_none('answer', row, columns)}")


def _is_worked(column: str) -> bool:
    return column.rpartition(".")[2] == "solution"


def _why_none(key: str, row: Row, columns: tuple[str, ...]) -> str:
    present = [column for column in columns if value_at(row, column, absent=_ABSENT) is not _ABSENT]
    if not present:
        return absent_column(key, columns, row)
    column = present[0]
    value = value_at(row, column)
    if isinstance(value, str) and value.strip():
        return rf"{column} states none by a last line #### or by \boxed{{}}"
    return f"{column} is {'empty' if isinstance(value, str) else value}"


_ABSENT = object()


def _file_hashes(path: Path) -> list[tuple[str, str]]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    hashes = []
    for file in files:
        with file.open("rb") as content:
            hashes.append((str(file), hashlib.file_digest(content, "sha256").hexdigest()))
    return hashes
