"""The folder of one evaluation: one set of weights on one data set.

manifest.json       what is evaluated, and how; written before the first completion
generations.jsonl   a line a completion, a problem's lines together; in the order of the data once all are there
results.json        all figures; the same manifest gives the same bytes, so no clock is read here
problems.csv        a line a problem
timings.jsonl       a line each time that the evaluation went on: completions, tokens, seconds
engine.log          what vLLM says
code.patch          the checkout's uncommitted changes, where there are any
lock                the process that writes here
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dapo_cli.errors import UserError
from dapo_cli.evaluation.records import Generation
from dapo_cli.tracking.files import append_line, json_document, json_line, read_lines, whole_lines, write_atomically
from dapo_cli.tracking.lock import hold_lock, make_folder
from dapo_cli.tracking.manifest import Manifest, differences, resumed

Rows = list[Generation]
MANIFEST_KEYS = ("recipe", "data", "model", "code", "packages", "resumes")


class EvaluationFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_file = path / "manifest.json"
        self.generations_file = path / "generations.jsonl"
        self.results_file = path / "results.json"
        self.problems_file = path / "problems.csv"
        self.timings_file = path / "timings.jsonl"
        self.patch_file = path / "code.patch"
        self.engine_log = path / "engine.log"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the one process that writes here. Raises UserError naming the one that does, or where none can write."""
        make_folder(self.path, "-o")
        with hold_lock(self.path / "lock", "-o"):
            yield

    @property
    def begun(self) -> bool:
        """Whether any completion is there: a start that failed before it binds nobody."""
        return self.generations_file.exists() and self.generations_file.stat().st_size > 0

    def check(self, manifest: Manifest, *, allow_changes: bool) -> list[str]:
        """How the evaluation in the folder differs from this one: empty for none there, or the same.

        `allow_changes` lets code and packages differ, never what is measured. Raises UserError for other differences,
        and for generations that no manifest explains.
        """
        if not self.begun:
            return []
        if not self.manifest_file.exists():
            raise UserError(f"-o {self.path}: holds generations.jsonl but no manifest.json; give another folder")
        recorded = self.read_manifest()
        changes = [line.replace("in the run folder", "in the folder") for line in differences(recorded, manifest)]
        measured = differences(recorded, {**manifest, "code": recorded["code"], "packages": recorded["packages"]})
        if changes and (measured or not allow_changes):
            remedy = "" if measured else ", or --allow-changes to go on with other code all the same"
            raise UserError(
                "\n  ".join([f"-o {self.path} holds an evaluation that differs:", *changes])
                + f"\nGive another -o for a new one{remedy}."
            )
        return changes

    def begin(self, manifest: Manifest, patch: bytes, changes: Sequence[str]) -> None:
        """Write down what holds from here on: of a new evaluation, or of one that goes on after `changes`."""
        if self.begun:
            done = len(read_lines(self.timings_file))
            manifest = resumed(self.read_manifest(), manifest, done, changes)
        if changes or not self.begun:
            self.patch_file.unlink(missing_ok=True)
            if patch:
                write_atomically(self.patch_file, patch)
        write_atomically(self.manifest_file, json_document(manifest))

    def record_not_sent(self, names: Sequence[str]) -> None:
        """Write down which settings a server refused to hear of, and so has as it likes."""
        if names and (manifest := self.read_manifest()).get("not_sent") != list(names):
            write_atomically(self.manifest_file, json_document({**manifest, "not_sent": names}))

    def read_manifest(self) -> Manifest:
        try:
            manifest = json.loads(self.manifest_file.read_bytes())
            if missing := [key for key in MANIFEST_KEYS if not isinstance(manifest, dict) or key not in manifest]:
                raise ValueError(f"it has no {missing[0]}")
        except (OSError, ValueError) as error:
            where = f"{self.manifest_file}: unreadable ({error})"
            raise UserError(f"{where}; restore the file, or give another -o") from None
        return manifest

    def recover(self, samples: int) -> dict[str, Rows]:
        """The whole problems of generations.jsonl, by uid; what a kill left half-written at its end is cut off."""
        if not self.generations_file.exists():
            return {}
        problems, whole_bytes = read_generations(self.generations_file, samples)
        if whole_bytes < self.generations_file.stat().st_size:
            with open(self.generations_file, "r+b") as file:
                file.truncate(whole_bytes)
                os.fsync(file.fileno())
        return problems

    def append(self, problems: Iterable[Rows]) -> None:
        """Add whole problems, and make them durable."""
        with open(self.generations_file, "ab") as file:
            file.write(b"".join(json_line(row.to_row()) for rows in problems for row in rows))
            file.flush()
            os.fsync(file.fileno())

    def put_in_order(self, problems: Sequence[Rows]) -> None:
        """All problems in the order of the data, whatever order they were finished in."""
        content = b"".join(json_line(row.to_row()) for rows in problems for row in rows)
        if self.generations_file.read_bytes() != content:
            write_atomically(self.generations_file, content)

    def add_timing(self, timing: dict[str, Any]) -> None:
        append_line(self.timings_file, timing)

    def tokens_per_s(self) -> float | None:
        """Of generating, over all times that the evaluation went on."""
        timings = read_lines(self.timings_file, "generate_s", "tokens")
        seconds = sum(timing["generate_s"] for timing in timings)
        return sum(timing["tokens"] for timing in timings) / seconds if seconds else None


def remedy_for(path: Path, name: str) -> str:
    """What to give in the place of `path`, which is no evaluation's folder with a file `name`."""
    inside = sorted(str(each.parent) for each in path.rglob(name)) if path.is_dir() else []
    return f"give one of {', '.join(inside)}" if inside else "give the folder of an evaluation"


def read_generations(path: Path, samples: int | None = None) -> tuple[dict[str, Rows], int]:
    """The problems of a generations file by uid, each with all its rows, and the bytes that these take.

    `samples` is the number of rows of a problem; None takes that of the first. A last problem that is not whole is left
    out. Raises UserError naming the line where anything else is broken.
    """
    problems: dict[str, Rows] = {}
    rows: Rows = []
    whole_bytes = position = 0
    lines = whole_lines(path)
    for number, line in enumerate(lines, start=1):
        position += len(line)
        try:
            found = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # blocks that a power cut left unwritten
                break
            raise _no_completion(path, number, error) from None
        try:
            row = Generation.from_row(found)
        except ValueError as error:
            raise _no_completion(path, number, error) from None
        if samples is None and rows and row.sample_index == 0 and row.uid != rows[0].uid:
            samples, whole_bytes = len(rows), position - len(line)
            problems[rows[0].uid], rows = rows, []
        if row.sample_index != len(rows) or row.uid in problems or (rows and row.uid != rows[0].uid):
            wanted = f"completion {len(rows)} of {rows[0].uid}" if rows else "the first completion of another problem"
            raise UserError(f"{path}, line {number}: {wanted} should be here; restore the file")
        rows.append(row)
        if len(rows) == samples:
            problems[row.uid], rows, whole_bytes = rows, [], position
    if samples is None and rows:  # of one problem
        problems[rows[0].uid], whole_bytes = rows, position
    return problems, whole_bytes


def _no_completion(path: Path, number: int, error: ValueError) -> UserError:
    return UserError(f"{path}, line {number}: no judged completion ({error}); restore the file")
