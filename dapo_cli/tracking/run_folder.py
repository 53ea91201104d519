"""The run folder: where everything a run leaves has its place, who may write there, and how a resume rewinds it.

manifest.json                 what the run is; written before step 1
recipe.yaml                   the resolved recipe, ready for `dapo train`
code.patch                    the checkout's uncommitted changes, where there are any
requirements.lock             the environment: name==version of every installed distribution
metrics.jsonl                 one line a step; the same recipe gives the same bytes, so no clock is read here
timings.jsonl                 one line a step: seconds, tokens per second, memory
evals.jsonl                   one line an evaluation
health.jsonl                  one line for each alarm that began or ended, and each rollback
rollouts/step_000001.jsonl    a sample of the step's judged completions
checkpoints/step_000001/      all that a resume needs
export/                       the final Hugging Face folder
profile/step_000001_rank_0… a trace of torch's profiler, where tracking.profile_steps asks for it
selftest.json                 what `dapo selftest` found for this recipe, where it was asked
until_step_000003/            what held so far, where a resume changed it: manifest, recipe, patch, lock file, export
engine_rank_0.log             what vLLM says
paused                        why the run waits; removing it lets it go on
lock                          the process that writes here
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dapo_cli.errors import UserError
from dapo_cli.health.event import EventKind
from dapo_cli.tracking.files import json_document, json_line, parsed, sync, whole_lines, write_atomically
from dapo_cli.tracking.lock import hold_lock, make_folder

MANIFEST_KEYS = ("started", "recipe", "data", "model", "code", "packages", "hardware", "resumes")
STEP_FOLDER = re.compile(r"step_(\d+)")
ROLLOUTS_NAME = re.compile(r"step_(\d+)\.jsonl")


class RunFolder:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self.manifest_file = self.path / "manifest.json"
        self.recipe_file = self.path / "recipe.yaml"
        self.patch_file = self.path / "code.patch"
        self.requirements_file = self.path / "requirements.lock"
        self.metrics_file = self.path / "metrics.jsonl"
        self.timings_file = self.path / "timings.jsonl"
        self.evals_file = self.path / "evals.jsonl"
        self.health_file = self.path / "health.jsonl"
        self.paused_file = self.path / "paused"
        self.rollouts = self.path / "rollouts"
        self.checkpoints = self.path / "checkpoints"
        self.export = self.path / "export"
        self.profile = self.path / "profile"
        self.selftest_file = self.path / "selftest.json"
        self.lock_file = self.path / "lock"

    def engine_log(self, rank: int) -> Path:
        return self.path / f"engine_rank_{rank}.log"

    def rollouts_file(self, step: int) -> Path:
        return self.rollouts / f"step_{step:06d}.jsonl"

    @property
    def started(self) -> bool:
        """Whether a run lives here: `start` writes the manifest last, so the rest of a start is there with it."""
        return self.manifest_file.exists()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, by its steps or its budget: it exports its model last of all."""
        return self.export.exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the one process that writes here. The kernel lets go when the process dies, however it dies.

        Raises UserError naming the process that holds the folder, or where nothing can be written.
        """
        make_folder(self.path)
        with hold_lock(self.lock_file, "run.dir"):
            yield

    def start(self, manifest: dict[str, Any], recipe_yaml: str, patch: bytes, requirements: bytes = b"") -> None:
        """Lay the folder out for a new run. `patch` and `requirements` may be empty: then there is no such file.

        Raises UserError where the folder holds results and no manifest says whose.
        """
        make_folder(self.path)
        results = [path for path in (self.metrics_file, self.timings_file, self.evals_file) if path.exists()]
        results += [
            path for path in (self.rollouts, self.checkpoints, self.export) if path.exists() and any(path.iterdir())
        ]
        if results:
            raise UserError(
                f"run.dir={self.path}: holds {results[0].name} but no manifest.json; give a new run.dir, or remove that"
            )
        for folder in (self.rollouts, self.checkpoints):
            folder.mkdir(exist_ok=True)
        self.health_file.touch()  # empty, it says that there was no alarm
        write_atomically(self.recipe_file, recipe_yaml.encode())
        for file, content in ((self.patch_file, patch), (self.requirements_file, requirements)):
            file.unlink(missing_ok=True)  # of a start that was killed before its manifest
            if content:
                write_atomically(file, content)
        self.write_manifest(manifest)

    def change(self, manifest: dict[str, Any], recipe_yaml: str, patch: bytes, step: int) -> None:
        """Write down what holds from `step` on; what held until then, and what was exported, stays in
        until_step_000003/.

        A second change at the same step leaves that folder as it is: no step was made by what is replaced now.
        """
        before = self.until(step)
        if not before.manifest_file.exists():
            before.path.mkdir(exist_ok=True)
            for file in (self.patch_file, self.recipe_file, self.manifest_file):
                if file.exists():
                    write_atomically(before.path / file.name, file.read_bytes())
        if self.export.exists():  # of the run that was finished: this one is not
            shutil.rmtree(before.export, ignore_errors=True)  # of an earlier change at the same step
            self.export.rename(before.export)
        write_atomically(self.recipe_file, recipe_yaml.encode())
        self.patch_file.unlink(missing_ok=True)
        if patch:
            write_atomically(self.patch_file, patch)
        self.write_manifest(manifest)

    def until(self, step: int) -> "RunFolder":
        """What held until `step`, where a resume changed it there."""
        return RunFolder(self.path / f"until_step_{step:06d}")

    def change_requirements(self, requirements: bytes, step: int) -> None:
        """Write the environment down that holds from `step` on, where it is another; the old lock file stays in
        until_step_000003/."""
        old = self.requirements_file.read_bytes() if self.requirements_file.exists() else None
        if old == requirements:
            return
        before = self.until(step)
        if old is not None and not before.requirements_file.exists():
            before.path.mkdir(exist_ok=True)
            write_atomically(before.requirements_file, old)
        write_atomically(self.requirements_file, requirements)

    def write_selftest(self, record: dict[str, Any]) -> None:
        make_folder(self.path)
        write_atomically(self.selftest_file, json_document(record))

    def read_selftest(self) -> dict[str, Any] | None:
        return json.loads(self.selftest_file.read_bytes()) if self.selftest_file.exists() else None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        write_atomically(self.manifest_file, json_document(manifest))

    def read_manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads(self.manifest_file.read_bytes())
            missing = [key for key in MANIFEST_KEYS if key not in manifest]
            if missing:
                raise ValueError(f"it has no {missing[0]}")
            if not _are_rollbacks(manifest.get("rollbacks", [])):
                raise ValueError("rollbacks is no list of events of health.jsonl with figures.to_step and lr_factor")
            return manifest
        except FileNotFoundError:
            raise UserError(f"{self.path}: no run folder (it has no manifest.json)") from None
        except ValueError as error:
            raise UserError(
                f"{self.manifest_file}: unreadable ({error}); restore the file or give a new run.dir"
            ) from None

    def write_rollouts(self, step: int, records: list[dict[str, Any]]) -> None:
        self.rollouts.mkdir(exist_ok=True)
        write_atomically(self.rollouts_file(step), b"".join(map(json_line, records)))

    def rewind(self, step: int, rollbacks: Sequence[dict[str, Any]] = ()) -> None:
        """Cut what was written after the checkpoint of `step`, so that a run continued from there leaves the same bytes
        as one never interrupted: later lines, a line that a kill left half-written, later rollouts. Step 0 stands for
        "no checkpoint": all goes, the evaluation before the first step included.

        `rollbacks` are those of the manifest; health.jsonl keeps, or gets, a line for each.

        Cutting takes no disk space: a run that stopped on a full disk can be rewound there.
        Raises UserError where a line up to `step` is unreadable, or metrics.jsonl does not reach `step`.
        """
        for file in (self.timings_file, self.evals_file):
            cut_after(file, step)
        last_step = cut_after(self.metrics_file, step)
        if last_step != step:
            raise UserError(
                f"{self.metrics_file}: ends at step {last_step}, though there is a checkpoint of step {step}; "
                "restore the file, or give a new run.dir"
            )
        for file in self.rollouts.glob("step_*"):
            name = ROLLOUTS_NAME.fullmatch(file.name)
            if name is None or int(name[1]) > step:
                file.unlink()
        if self.rollouts.exists():
            sync(self.rollouts)
        self._rewind_health(step, rollbacks)

    def _rewind_health(self, step: int, rollbacks: Sequence[dict[str, Any]]) -> None:
        """A rollback's line is of a later step than those that follow it, so this file is not in the order of steps."""
        wanted = [json_line(record) for record in rollbacks]
        lines, kept = whole_lines(self.health_file), []
        for number, line in enumerate(lines, start=1):
            where = f"{self.health_file}, line {number}"
            event, event_step = parsed(line, where, ["event"])["event"], _step_of(line, where)
            if line in wanted if event == EventKind.rolled_back.value else event_step <= step:
                kept.append(line)
        kept += [line for line in wanted if line not in kept]
        if kept == lines[: len(kept)]:
            truncate(self.health_file, sum(map(len, kept)))
        else:
            write_atomically(self.health_file, b"".join(kept))


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints in a folder, oldest first; none where there is no folder."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := STEP_FOLDER.fullmatch(name)))


def cut_after(path: Path, step: int) -> int:
    """Truncate a file of JSON lines, ordered by their `step`, behind the last line of `step` or before (to nothing for
    step 0); returns the step of the last line left, 0 where none is."""
    if not path.exists():
        return 0
    kept_bytes, last_step = 0, 0
    for number, line in enumerate(whole_lines(path) if step else [], start=1):
        line_step = _step_of(line, f"{path}, line {number}")
        if line_step > step:
            break
        kept_bytes, last_step = kept_bytes + len(line), line_step
    truncate(path, kept_bytes)
    return last_step


def truncate(path: Path, size: int) -> None:
    """Cut a file, where there is one, to its first `size` bytes; takes no disk space."""
    if path.exists() and size < path.stat().st_size:
        with open(path, "r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())


def _step_of(line: bytes, where: str) -> int:
    step = parsed(line, where, ["step"])["step"]
    if not isinstance(step, int):
        raise UserError(f"{where}: step is {step!r}, no number; restore the file")
    return step


def _are_rollbacks(records: Any) -> bool:
    """Whether these are the lines of rollbacks that a run goes on with."""
    return isinstance(records, list) and all(
        isinstance(record, dict)
        and record.get("event") == EventKind.rolled_back.value
        and isinstance(record.get("step"), int)
        and {"rule", "since", "action", "message"} <= record.keys()
        and isinstance(record.get("figures"), dict)
        and isinstance(record["figures"].get("to_step"), int)
        and isinstance(record["figures"].get("lr_factor"), int | float)
        for record in records
    )
