"""results.json, problems.csv and the curve of a run's checkpoints."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo_cli.errors import UserError
from dapo_cli.evaluation.metrics import LEVEL, RESAMPLES, ProblemScore, figures, parts, problem_figures
from dapo_cli.tracking.files import json_document, jsonable, write_atomically

QUANTILES = ("length_median", "length_p95", "length_max")  # figures without an interval
CURVE_FILE = "curve.csv"
QUESTION_CHARACTERS = 200  # of a question in problems.csv


def results_of(described: dict[str, Any], scores: Sequence[ProblemScore], seed: int) -> dict[str, Any]:
    """What is evaluated, its figures, and those of its parts (levels, subjects, sources) where it has any."""
    return {
        **described,
        "interval": {"level": LEVEL, "resamples": RESAMPLES, "over": "problems"},
        "figures": figures(scores, seed),
        "parts": {
            column: {value: {"problems": len(own), **figures(own, seed)} for value, own in by_value.items()}
            for column, by_value in parts(scores).items()
        },
    }


def sampling_words(settings: Mapping[str, Any]) -> str:
    """Of results or of a recipe's sampling.

    >>> sampling_words({"temperature": 1.0, "top_p": 0.7, "top_k": 0, "max_tokens": 20480})
    'temperature 1, top_p 0.7, at most 20,480 tokens'
    """
    top_k = f", top_k {settings['top_k']}" if settings.get("top_k") else ""
    return (
        f"temperature {settings['temperature']:g}, top_p {settings['top_p']:g}{top_k}, at most "
        f"{settings['max_tokens']:,} tokens"
    )


def write_results(results: dict[str, Any], scores: Sequence[ProblemScore], results_file: Path, table: Path) -> None:
    write_atomically(table, csv_bytes([problem_row(score) for score in scores]))
    write_atomically(results_file, json_document(results))


def read_results(file: Path) -> dict[str, Any]:
    """A stored results.json. Raises UserError for what is none."""
    try:
        results = json.loads(file.read_bytes())
        if not isinstance(results, dict):
            raise ValueError("it is no object")
        if not isinstance(results.get("mode"), str):
            raise ValueError("its mode is no text")
        found = results.get("figures")
        if not isinstance(found, dict) or not all(_is_figure(*each) for each in found.items()):
            raise ValueError("its figures are no numbers with intervals")
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: no results of an evaluation ({error}); restore the file, or remove it") from None
    return results


def _is_figure(name: str, figure: Any) -> bool:
    """A number, of a quantile, or {"value": …, "low": …, "high": …} whose bounds may be null."""
    if name in QUANTILES:
        return isinstance(figure, int | float)
    if not isinstance(figure, dict):
        return False
    bounds = [figure.get("low"), figure.get("high")]
    none = bounds == [None, None]
    return isinstance(figure.get("value"), int | float) and (none or all(isinstance(x, int | float) for x in bounds))


def problem_row(score: ProblemScore) -> dict[str, Any]:
    """A line of problems.csv: the problem's part of each figure by the figure's name, beside it counts."""
    return {
        "uid": score.uid,
        "source": score.source,
        "subject": score.subject,
        "level": score.level,
        **problem_figures(score),
        "num_samples": score.samples,
        "num_right": score.right,
        "num_truncated": score.truncated,
        "num_no_answer": score.no_answer,
        "num_verifier_failed": score.failed,
        "voted": " | ".join(score.voted),
        "answer": score.answer,
        "question": score.question[:QUESTION_CHARACTERS],
    }


def curve(series: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a checkpoint: its step, each figure, and the bounds of its interval as FIGURE_low and FIGURE_high."""
    rows = []
    for results in series:
        row: dict[str, Any] = {"step": results["step"]}
        for name, figure in results["figures"].items():
            if isinstance(figure, dict):
                row |= {name: figure["value"], f"{name}_low": figure["low"], f"{name}_high": figure["high"]}
            else:
                row[name] = figure
        rows.append(row)
    return rows


def write_curve(rows: list[dict[str, Any]], folder: Path) -> None:
    write_atomically(folder / CURVE_FILE, csv_bytes(rows))


def csv_bytes(rows: Sequence[dict[str, Any]]) -> bytes:
    """A header and a line a row; None is empty, as is what another row has alone."""
    text = io.StringIO(newline="")
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(jsonable(row) for row in rows)
    return text.getvalue().encode()
