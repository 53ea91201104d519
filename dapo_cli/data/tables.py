"""Rows out of data files and data sets, each with its number, a batch at a time."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dapo_cli.config.suggest import closest
from dapo_cli.data.faults import RowFault
from dapo_cli.errors import UserError

if TYPE_CHECKING:
    import datasets
    import pyarrow

Row = dict[str, object]
NumberedRows = Iterable[tuple[int, Row | RowFault]]

BATCH_ROWS = 4096
SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")


@dataclass(frozen=True)
class Wanted:
    """Columns to look for, the better ones first; dots reach into structs. `optional` ones may all be absent."""

    question: tuple[str, ...]
    answer: tuple[str, ...]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows of one file or data set. Numbers count from 1: lines, as an editor shows them, where `unit` is "line".

    A row that cannot be read is a RowFault in its place, so that all of a file's faults are told at once.
    """

    name: str
    unit: str
    rows: NumberedRows


def open_table(path: Path, wanted: Wanted) -> Table:
    """A parquet, JSON, JSONL or CSV file, or a folder written by `datasets.save_to_disk`."""
    if path.is_dir():
        return saved_dataset(path, wanted)
    if not path.exists():
        raise UserError(f"data.paths: there is no file {path}{_nearest_file(path)}")
    if path.stat().st_size == 0:
        raise UserError(f"data.paths: {path} is empty: give a file with at least one row")
    match path.suffix.lower():
        case ".parquet":
            return parquet_table(path, wanted)
        case ".jsonl":
            return Table(str(path), "line", jsonl_rows(path))
        case ".json":
            return json_table(path)
        case ".csv":
            return csv_table(path, wanted)
        case suffix:
            raise UserError(
                f"data.paths: {path} is of an unknown kind ({suffix or 'no suffix'}): convert or rename it to one of "
                f"{', '.join(SUFFIXES)}, or give a folder written by datasets.save_to_disk"
            )


def jsonl_rows(path: Path) -> Iterator[tuple[int, Row | RowFault]]:
    # Read as bytes: only \n ends a line there, whereas text mode and str.splitlines know other line ends.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, _json_row(line)


def _json_row(line: bytes) -> Row | RowFault:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return RowFault(f"not UTF-8 ({error.reason} at byte {error.start + 1} of the line); save the file as UTF-8")
    except json.JSONDecodeError as error:
        return RowFault(f"not JSON: {error.msg} at column {error.colno}; a JSONL file holds one object per line")
    except RecursionError:
        return RowFault("not usable JSON: nested too deeply")
    return row if isinstance(row, dict) else RowFault(f"a JSON {type(row).__name__} where an object is expected")


def json_table(path: Path) -> Table:
    """A list of objects, an object whose one list of objects is the data (`{"data": [...]}`), or JSONL in disguise."""
    try:
        content = json.loads(_utf8_text(path))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return Table(str(path), "line", jsonl_rows(path))
        raise UserError(
            f"data.paths: {path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}; correct the file"
        ) from error
    except RecursionError as error:
        raise UserError(f"data.paths: {path} is not usable JSON: nested too deeply") from error
    lists = [content] if isinstance(content, list) else []
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list) and _objects(value)]
    if len(lists) != 1:
        raise UserError(
            f"data.paths: {path} holds no list of objects: write [{{...}}, {{...}}], or one "
            "object per line in a .jsonl file"
        )
    rows = [row if isinstance(row, dict) else RowFault(f"{row!r:.60} where an object is expected") for row in lists[0]]
    return Table(str(path), "item", list(enumerate(rows, start=1)))


def _objects(values: list) -> bool:
    return bool(values) and all(isinstance(value, dict) for value in values)


def csv_table(path: Path, wanted: Wanted) -> Table:
    text = _utf8_text(path)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    header = next(iter(_csv_records(text)), None)
    if header is None or isinstance(header[1], RowFault):
        raise UserError(f"data.paths: {path} has no readable header line: name the columns in its first line")
    names = header[1]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"data.paths: {path}: columns named twice: {', '.join(repeated)}; rename one of each")
    check_columns(str(path), names, wanted)
    return Table(str(path), "line", _csv_rows(text, names))


def _csv_rows(text: str, names: list[str]) -> Iterator[tuple[int, Row | RowFault]]:
    records = iter(_csv_records(text))
    next(records)
    for number, record in records:
        if isinstance(record, RowFault):
            yield number, record
        elif len(record) != len(names):
            yield (
                number,
                RowFault(f"{len(record)} fields where the header names {len(names)}; quote fields with commas"),
            )
        else:
            yield number, dict(zip(names, record, strict=True))


def _csv_records(text: str) -> Iterator[tuple[int, list[str] | RowFault]]:
    """Each record with the line that it begins on; blank lines are left out."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, RowFault(f"not CSV: {error}")
            return
        if record:
            yield number, record


def parquet_table(path: Path, wanted: Wanted) -> Table:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"data.paths: {path} is not a readable parquet file ({error}): fetch or write it anew"
        ) from error
    columns = check_columns(str(path), column_names(file.schema_arrow), wanted)
    return Table(str(path), "row", _numbered(str(path), file.iter_batches(batch_size=BATCH_ROWS, columns=columns)))


def saved_dataset(folder: Path, wanted: Wanted) -> Table:
    import datasets

    datasets.disable_progress_bars()
    try:
        dataset = datasets.load_from_disk(str(folder))
    except FileNotFoundError as error:
        files = sorted(str(file) for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        remedy = f"name its files: data.paths=[{','.join(files[:3])}]" if files else "name a data file"
        raise UserError(f"data.paths: {folder} was not written by datasets.save_to_disk: {remedy}") from error
    except Exception as error:  # a damaged folder fails in as many ways as there are files in it
        raise UserError(f"data.paths: {folder} cannot be read ({error}): fetch or save it anew") from error
    if isinstance(dataset, datasets.DatasetDict):
        splits = ", ".join(str(folder / split) for split in dataset)
        raise UserError(f"data.paths: {folder} holds several splits: give one of {splits}")
    return dataset_table(dataset, str(folder), wanted)


def dataset_table(dataset: "datasets.Dataset", name: str, wanted: Wanted) -> Table:
    schema = dataset.features.arrow_schema
    columns = check_columns(name, column_names(schema), wanted)
    roots = dict.fromkeys(column if column in schema.names else column.partition(".")[0] for column in columns)
    batches = dataset.select_columns(list(roots)).with_format("arrow").iter(batch_size=BATCH_ROWS)
    return Table(name, "row", _numbered(name, batches))


def _numbered(name: str, batches: Iterable["pyarrow.RecordBatch | pyarrow.Table"]) -> Iterator[tuple[int, Row]]:
    import pyarrow

    number = 0
    try:
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{name} is damaged after row {number} ({error}): fetch or write it anew") from error


def column_names(schema: "pyarrow.Schema") -> list[str]:
    """Columns, and the fields of struct columns by their dotted names."""
    import pyarrow

    def names(field: "pyarrow.Field", prefix: str) -> Iterator[str]:
        yield prefix + field.name
        if pyarrow.types.is_struct(field.type):
            for child in field.type:
                yield from names(child, f"{prefix}{field.name}.")

    return [name for field in schema for name in names(field, "")]


def check_columns(table: str, names: list[str], wanted: Wanted) -> list[str]:
    """The wanted columns that exist; a UserError where the question or the answer has none."""
    for key, candidates in (("prompt", wanted.question), ("answer", wanted.answer)):
        if not set(candidates) & set(names):
            raise UserError(f"{table}: {absent_column(key, candidates, names)}")
    return [column for column in (*wanted.question, *wanted.answer, *wanted.optional) if column in names]


def absent_column(key: str, candidates: tuple[str, ...], names: Iterable[str]) -> str:
    """Words for: none of `candidates` is among the columns `names`; `key` is "prompt" or "answer"."""
    names = list(names)
    near = next((name for candidate in candidates if (name := closest(candidate, names))), None)
    hint = f" (did you mean {near}?)" if near else ""
    return (
        f"no column {' or '.join(candidates)}{hint}; name the right one in data.{key}_column; "
        f"its columns are {', '.join(names) or 'none'}"
    )


def first_value(row: Row, columns: tuple[str, ...]) -> object:
    return next((value for column in columns if (value := value_at(row, column)) is not None), None)


def value_at(row: Row, column: str, absent: object = None) -> object:
    """The value of a column, or of a field of a struct by its dotted name."""
    if column in row:
        return row[column]
    head, _, rest = column.partition(".")
    inner = row.get(head)
    return value_at(inner, rest, absent) if rest and isinstance(inner, dict) else absent


def _utf8_text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"data.paths: {path}, line {line}: not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from error


def _nearest_file(path: Path) -> str:
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    if near := closest(path.name, siblings):
        return f"; did you mean {path.parent / near}?"
    return "; paths are relative to the working directory, " + str(Path.cwd())
