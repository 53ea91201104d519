"""Responses to verify, out of a file of any layout that names its columns in a usual way."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dapo_cli.data.answers import reference_answer, valid_text
from dapo_cli.data.faults import Faults, RowFault
from dapo_cli.data.tables import Row, Table, Wanted, first_value, open_table, value_at
from dapo_cli.errors import UserError
from dapo_cli.types import Case

RESPONSE_COLUMNS = ("response", "completion", "output", "generation", "prediction")
ANSWER_COLUMNS = ("answer", "ground_truth", "reward_model.ground_truth", "reference", "gts")
PROMPT_COLUMNS = ("prompt", "question", "problem", "input")
LABEL_COLUMNS = ("correct", "is_correct")


_ABSENT = object()


class Response(NamedTuple):
    """`number` is the row's as its file counts; `label` whether it is right, None where the file does not say."""

    number: int
    case: Case
    label: bool | None


@dataclass(frozen=True)
class Columns:
    """Names given by the user; None finds the usual ones."""

    response: str | None = None
    answer: str | None = None
    prompt: str | None = None
    label: str | None = None

    def candidates(self) -> tuple[tuple[str, ...], ...]:
        """Of response, answer, prompt and label."""
        given = (self.response, self.answer, self.prompt, self.label)
        usual = (RESPONSE_COLUMNS, ANSWER_COLUMNS, PROMPT_COLUMNS, LABEL_COLUMNS)
        return tuple(names if name is None else (name,) for name, names in zip(given, usual, strict=True))


class ResponseFile:
    """Rows of a JSONL, JSON, CSV or parquet file (JSONL and parquet read row by row). Iterate after `check`."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self.path = path
        self.columns = columns
        self.unit = "row"  # what `number` counts: line, row or item

    def check(self) -> int:
        """How many rows there are. Raises UserError for a file that cannot be read, and naming rows that cannot."""
        faults, rows = Faults(), 0
        table = self._table()
        self.unit = table.unit
        for number, row in table.rows:
            rows += 1
            try:
                self._response(number, row)
            except RowFault as fault:
                faults.add(f"{table.name}, {table.unit} {number}", fault)
        if not rows:
            raise UserError(f"{self.path} holds no rows: give a file with at least one")
        faults.raise_any(
            rows,
            "correct or remove such rows, or name other columns with --response-column, --answer-column, "
            "--prompt-column and --label-column",
        )
        return rows

    def __iter__(self) -> Iterator[Response]:
        return (self._response(number, row) for number, row in self._table().rows)

    def _table(self) -> Table:
        response, answer, prompt, label = self.columns.candidates()
        try:
            return open_table(self.path, Wanted(response, answer, optional=(*prompt, *label)))
        except UserError as error:
            # The tables speak of a recipe's keys; here the file and its columns are options.
            message = str(error).removeprefix("data.paths: ").replace("data.paths=", "")
            for key, option in (("prompt", "response"), ("answer", "answer")):
                message = message.replace(f"data.{key}_column", f"--{option}-column")
            raise UserError(message) from error

    def _response(self, number: int, row: Row | RowFault) -> Response:
        if isinstance(row, RowFault):
            raise row
        response, answer, prompt, label = self.columns.candidates()
        for named in (self.columns.prompt, self.columns.label):
            if named is not None and value_at(row, named, absent=_ABSENT) is _ABSENT:
                raise RowFault(f"no column {named}; its columns are {', '.join(row)}")
        case = Case(
            prompt=_joined(first_value(row, prompt)),
            completion=_last_message(_present(row, response, "response")),
            answer=_reference(_present(row, answer, "answer")),
        )
        return Response(number, case, _label(first_value(row, label)))


def _present(row: Row, columns: tuple[str, ...], what: str) -> object:
    value = first_value(row, columns)
    if value is None:
        raise RowFault(f"no {what}: {' or '.join(columns)} is absent or null; its columns are {', '.join(row)}")
    return value


def _last_message(value: object) -> str:
    match value:
        case str(text) | [*_, {"content": str(text)}]:
            return valid_text(text)
        case _:
            raise RowFault(f"the response is neither text nor chat messages: {value!r:.80}")


def _joined(value: object) -> str:
    match value:
        case None:
            return ""
        case str(text):
            return valid_text(text)
        case [dict(), *_]:
            return "\n\n".join(_last_message([message]) for message in value)
        case _:
            raise RowFault(f"the prompt is neither text nor chat messages: {value!r:.80}")


def _reference(value: object) -> str:
    """As in training data; a text that holds more than a marked answer is the answer as it stands."""
    if isinstance(value, str) and value.strip() and not value.rpartition("\n")[2].lstrip().startswith("####"):
        return valid_text(value)
    if not (answer := reference_answer(value, worked=False)):
        raise RowFault(f"the answer is empty: {value!r:.80}")
    return valid_text(answer)


def _label(value: object) -> bool | None:
    match value:
        case None | bool():
            return value
        case int() | float() if value in (0, 1):
            return bool(value)
        case str() if value.strip().casefold() in ("true", "1", "false", "0"):
            return value.strip().casefold() in ("true", "1")
        case _:
            raise RowFault(f"the label is not true or false: {value!r:.80}")
