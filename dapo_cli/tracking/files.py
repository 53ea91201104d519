"""Files that survive a kill at any moment: whole or not there; a line that was cut off can be told from a whole one."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from dapo_cli.errors import UserError


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`: whoever reads sees the old content or all of the new, also after a power cut.

    The temporary file has one fixed name beside the target, so that a leftover of a killed process is overwritten
    instead of gathering; one writer at a time is the caller's duty (`RunFolder.lock`).
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's content durable, or a folder's names: on POSIX a rename belongs to the folder, not to the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Add one JSON line and make it durable, so that no checkpoint outlives the lines of the steps before it. What a
    power cut or a full disk left half-written at the end is cut off first."""
    with open(path, "a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.truncate(sum(map(len, whole_lines(path))))
        file.write(json_line(record))
        file.flush()
        os.fsync(file.fileno())


def json_line(record: dict[str, Any]) -> bytes:
    """One line of strict JSON, keys in the record's order, floats with all their digits (`repr`).

    >>> json_line({"step": 1, "loss": float("nan"), "accuracy": None})
    b'{"step": 1, "loss": "NaN", "accuracy": null}\\n'
    """
    return json.dumps(jsonable(record), allow_nan=False, ensure_ascii=False).encode() + b"\n"


def json_document(record: dict[str, Any]) -> bytes:
    """As `json_line`, indented for people."""
    return json.dumps(jsonable(record), allow_nan=False, ensure_ascii=False, indent=2).encode() + b"\n"


def jsonable(value: Any) -> Any:
    """`value` in strict JSON's types. Python's own NaN and Infinity literals break every other reader, and null means
    "there was nothing to measure"; so they become the strings "NaN", "Infinity", "-Infinity", which `float()` reads.

    Lone surrogates, which a decoder may leave in a completion, are no UTF-8: they are written as `\\udc80`.
    """
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, Enum):
        return value.name  # as recipes spell it
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def whole_lines(path: Path, tail_bytes: int | None = None) -> list[bytes]:
    """The lines of a file that another process may be writing, with their ends, but for one that is not whole yet; none
    where there is no file. Of its last `tail_bytes` alone, the first may be the end of one."""
    return list(_each_line(path, tail_bytes))


def read_lines(path: Path, *needed: str) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, each with the keys `needed`; a half-written last line is no record yet.

    Raises UserError naming file and line where one is no record, or lacks a key.
    """
    return list(each_record(path, *needed))


def each_record(path: Path, *needed: str) -> Iterator[dict[str, Any]]:
    """As `read_lines`, one at a time: a long file need not be in memory."""
    for number, line in enumerate(_each_line(path), start=1):
        yield parsed(line, f"{path}, line {number}", needed)


def _each_line(path: Path, tail_bytes: int | None = None) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            if tail_bytes is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - tail_bytes))
            yield from (line for line in file if line.endswith(b"\n"))
    except (FileNotFoundError, NotADirectoryError):
        return


def parsed(line: bytes, where: str, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Raises UserError."""
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise UserError(f"{where}: no JSON record; restore the file")
    for key in needed:
        if key not in record:
            raise UserError(f"{where}: no {key}; restore the file")
    return record
