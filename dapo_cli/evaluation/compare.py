"""Two evaluations over the same problems: the paired difference of avg@k."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dapo_cli.errors import UserError
from dapo_cli.evaluation.metrics import bootstrap_intervals
from dapo_cli.evaluation.results import read_results
from dapo_cli.evaluation.store import EvaluationFolder, remedy_for
from dapo_cli.tracking.manifest import ABSENT, leaves, shown

NAMED = 5  # uids in a message
COUNTS = ("num_right", "num_samples")
COLUMNS = ("uid", "question", *COUNTS)  # that a comparison reads


@dataclass(frozen=True)
class Pair:
    """A problem and its avg@k in both evaluations."""

    uid: str
    question: str
    a: float
    b: float


@dataclass(frozen=True)
class Comparison:
    """`difference` is the mean of B - A over problems, `low` and `high` its 95 % bootstrap interval over problems
    (None for one problem, and where all agree: resamples of zeros tell nothing of other problems). `won` are the
    problems that B solves more often than A, most first; `lost` the others, most first. `only_a` and `only_b` count
    problems that were left out; `settings` says what was measured otherwise."""

    a: str
    b: str
    samples: tuple[int, int]
    problems: int
    mean_a: float
    mean_b: float
    difference: float
    low: float | None
    high: float | None
    won: list[Pair]
    lost: list[Pair]
    tied: int
    only_a: int
    only_b: int
    settings: list[str]


def compare(a: Path, b: Path, *, common: bool) -> Comparison:
    """`a` and `b` are folders of evaluations, or problems.csv files. Pairing takes out how hard each problem is, which
    two separate intervals both contain.

    Raises UserError where the problems differ, unless only the `common` ones are asked for.
    """
    first, second = _read(a), _read(b)
    shared = [uid for uid in first if uid in second]
    only_a, only_b = [uid for uid in first if uid not in second], [uid for uid in second if uid not in first]
    if (only_a or only_b) and not common:
        parts = [
            f"{len(uids)} only in {path} ({', '.join(uids[:NAMED])} …)"
            for path, uids in ((a, only_a), (b, only_b))
            if uids
        ]
        raise UserError(
            f"--compare: the evaluations are not of the same problems: {len(shared)} in both, {', '.join(parts)}; "
            "evaluate both on the same data, or give --common to compare on those in both"
        )
    if not shared:
        raise UserError(f"--compare: {a} and {b} have no problem in common")
    pairs = [Pair(uid, first[uid]["question"], _rate(first[uid]), _rate(second[uid])) for uid in shared]
    differences = [pair.b - pair.a for pair in pairs]
    interval = bootstrap_intervals({"difference": differences}, seed=0)["difference"] if any(differences) else None
    low, high = interval or (None, None)
    ranked = sorted(pairs, key=lambda pair: pair.a - pair.b)
    won = [pair for pair in ranked if pair.b > pair.a]
    lost = [pair for pair in reversed(ranked) if pair.b < pair.a]
    return Comparison(
        a=str(a),
        b=str(b),
        samples=(int(first[shared[0]]["num_samples"]), int(second[shared[0]]["num_samples"])),
        problems=len(pairs),
        mean_a=fmean(pair.a for pair in pairs),
        mean_b=fmean(pair.b for pair in pairs),
        difference=fmean(differences),
        low=low,
        high=high,
        won=won,
        lost=lost,
        tied=len(pairs) - len(won) - len(lost),
        only_a=len(only_a),
        only_b=len(only_b),
        settings=_different_settings(a, b),
    )


def _different_settings(a: Path, b: Path) -> list[str]:
    """A line for each setting of the two manifests that differs, or that one of them is missing."""
    ours, theirs = _settings(a), _settings(b)
    if ours is None or theirs is None:
        return [f"no manifest.json beside {a if ours is None else b}: whether the settings are the same is not known"]
    return [
        f"{key}: {shown(ours.get(key, ABSENT))} in A, {shown(theirs.get(key, ABSENT))} in B"
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key, ABSENT) != theirs.get(key, ABSENT)
    ]


def _settings(path: Path) -> dict[str, Any] | None:
    """Of an evaluation, and of one that was rescored: its mode is that of the table."""
    folder = EvaluationFolder(path if path.is_dir() else path.parent)
    if not folder.manifest_file.exists():
        return None
    manifest = folder.read_manifest()
    settings = dict(leaves(manifest["recipe"], ""))
    table = path if path.is_file() else folder.problems_file
    results = table.with_name(table.name.replace("problems.", "results.")).with_suffix(".json")
    if results.exists() and results != folder.results_file:
        settings = {key: value for key, value in settings.items() if not key.startswith("reward.")}
        settings["mode"] = read_results(results)["mode"]
    return settings | {"not_sent": manifest.get("not_sent")}


def _rate(row: dict[str, str]) -> float:
    return int(row["num_right"]) / int(row["num_samples"])


def _read(path: Path) -> dict[str, dict[str, str]]:
    """The lines of problems.csv by uid."""
    file = path / "problems.csv" if path.is_dir() else path
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return _rows(lines, file)
    except FileNotFoundError:
        remedy = "the evaluation there is not finished: run its command again"
        if not (path / "generations.jsonl").exists():
            remedy = remedy_for(path, "problems.csv")
        raise UserError(f"--compare {path}: there is no {file.name}; {remedy}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _no_table(str(file), error) from None


def _rows(lines: Iterable[str], file: Path) -> dict[str, dict[str, str]]:
    reader = csv.DictReader(lines)
    rows: dict[str, dict[str, str]] = {}
    places: dict[str, int] = {}
    for row in reader:
        try:
            _check(row)
            if (uid := row["uid"]) in places:
                raise ValueError(f"uid {uid} is that of line {places[uid]}, too")
        except ValueError as error:
            raise _no_table(f"{file}, line {reader.line_num}", error) from None
        rows[uid], places[uid] = row, reader.line_num
    return rows


def _check(row: dict[str, str | None]) -> None:
    """Raises ValueError for counts that no judged problem has."""
    if missing := [name for name in COLUMNS if row.get(name) is None]:
        raise ValueError(f"it has no {missing[0]}")
    right, samples = (int(row[name] or "") for name in COUNTS)
    if samples < 1 or not 0 <= right <= samples:
        raise ValueError(f"num_right={right} of num_samples={samples}: must be 0 to num_samples, of at least 1")


def _no_table(where: str, error: Exception) -> UserError:
    return UserError(f"--compare {where}: no table of judged problems ({error}); give the problems.csv of dapo eval")
