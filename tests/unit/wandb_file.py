"""What wandb stored of a run on disk: its log is that of LevelDB, with one protocol buffer a record."""

import json
import time
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7  # bytes; a fragment's header is a checksum (4), its length (2) and its kind (1)
FULL, LAST = 1, 4  # kinds of a fragment that end a record


def stored_records(file: Path, *, timeout_s: float = 20.0) -> list[Any]:
    """All records of a run that was finished: wandb's service closes the file shortly after `finish` returns."""
    deadline = time.monotonic() + timeout_s
    while not (records := read_records(file)) or not records[-1].HasField("exit"):
        assert time.monotonic() < deadline, f"{file} has no end"
        time.sleep(0.02)
    return records


def read_records(file: Path) -> list[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, place = file.read_bytes(), HEADER  # the file's own header is as long
    records, parts = [], b""
    while place + HEADER <= len(data):
        if (left := BLOCK - place % BLOCK) < HEADER:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        place += HEADER
        parts += data[place : place + length]
        place += length
        if kind in (FULL, LAST):
            records.append(Record.FromString(parts))
            parts = b""
    return records


def history(records: list[Any]) -> list[dict[str, Any]]:
    """The logged figures, a dict a call; nested ones under their dotted names."""
    rows = [record.history.item for record in records if record.HasField("history")]
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]


def artifacts(records: list[Any], kind: str) -> list[dict[str, Path]]:
    """Name -> local file, for each logged artifact of that type."""
    found = [record.artifact for record in records if record.HasField("artifact") and record.artifact.type == kind]
    return [{entry.path: Path(entry.local_path) for entry in artifact.manifest.contents} for artifact in found]
