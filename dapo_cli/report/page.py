"""The report as one HTML page that needs nothing beside itself: no network, no script, figures inside."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2

from dapo_cli.report import captions
from dapo_cli.report.formats import NOTHING, Scale, scale_of
from dapo_cli.report.health import alarm_rows, health_line
from dapo_cli.report.provenance import changed_keys, environment, origins, warnings
from dapo_cli.report.results import TRAINING, PointResult, Results
from dapo_cli.report.statistics import Basis, Estimate
from dapo_cli.report.words import compared, headline, multiple_comparisons, scale_for, statements
from dapo_cli.tracking.manifest import shown

TEMPLATE_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Cell:
    """`told`: a difference that is distinguishable from 0, which alone is set bold."""

    text: str
    told: bool = False


@dataclass(frozen=True)
class Row:
    label: str
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    heads: list[str]
    rows: list[Row]


@dataclass(frozen=True)
class Changes:
    """Rows (key, value at the baseline, value here) of one point, or a note where there are none."""

    label: str
    rows: list[tuple[str, str, str]]
    note: str


def page(results: Results, figures: Sequence[tuple[str, bytes]]) -> bytes:
    """`figures`: (name, PNG) in the order shown; the names are keys of `captions.ALTERNATIVES`."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    study = results.study
    context: dict[str, Any] = {
        "title": study.name,
        "compared": compared(study),
        "warnings": warnings(study),
        "headline": headline(results),
        "results": results_table(results),
        "training": training_table(results),
        "statements": statements(results),
        "figures": [
            {
                "base64": base64.b64encode(png).decode(),
                "alt": captions.ALTERNATIVES[name],
                "caption": captions.figure(name, results),
            }
            for name, png in figures
        ],
        "changed": [_changes(result, results) for result in results.others],
        "origins": origins(study),
        "health": health_line(study.runs),
        "alarms": alarm_rows(study.runs),
        "environment": environment(study),
        "captions": captions.of_tables(results),
        "definitions": captions.definitions(results),
        "cautions": multiple_comparisons(results),
    }
    html = templates.get_template("report.html.j2").render(context)
    return html.replace(" %", "\u00a0%").encode()  # a number and its sign stay on one line


def results_table(results: Results) -> Table:
    """Point, mean with interval, seeds, differences, the metric at equal rollouts, and what the plan quotes."""
    scale, common = scale_for(results), results.common_rollouts
    at_common = not results.alone and any(result.at_common for result in results.points)
    heads = ["point", f"{scale.axis}: mean ± 95 % interval", "each seed"]
    heads += ["difference to the baseline"] * (not results.alone)
    heads += ["difference to the rung before"] * results.study.is_ladder
    heads += [f"mean at {common or 0:,.0f} rollouts"] * at_common
    references = [result.point.reference for result in results.points]
    quoted = any(value is not None for value in references)
    heads += ["published reference"] * quoted
    estimates = [result.estimate for result in results.points]
    columns = [_marked(scale.means(estimates), estimates), [Cell(_seeds(one, scale)) for one in results.points]]
    columns += [_differences([result.to_baseline for result in results.points], scale)] * (not results.alone)
    columns += [_differences([result.to_before for result in results.points], scale)] * results.study.is_ladder
    there = [result.at_common.mean if result.at_common else None for result in results.points]
    columns += [[Cell(scale.number(mean)) for mean in there]] * at_common
    columns += [[Cell(NOTHING if value is None else f"{value:g}") for value in references]] * quoted
    cells = zip(*columns, strict=True)
    return Table(heads, [Row(one.point.label, list(row)) for one, row in zip(results.points, cells, strict=True)])


def _seeds(result: PointResult, scale: Scale) -> str:
    """The value of each seed of the plan; a dash for one without."""
    found = {seed: one.value for seed, one in result.values.items()}
    return " ".join(scale.number(found.get(run.seed)) for run in result.point.runs)


def _differences(column: Sequence[Estimate | None], scale: Scale) -> list[Cell]:
    cells = _marked(scale.differences(column), column)
    told = [bool(found and found.distinguishable) for found in column]
    return [replace(cell, told=bold) for cell, bold in zip(cells, told, strict=True)]


def _marked(texts: Sequence[str], column: Sequence[Estimate | None]) -> list[Cell]:
    """An interval over prompts carries a mark: it is another statement than one over seeds."""
    marks = (" (p)" if found and found.basis is Basis.PROMPTS else "" for found in column)
    return [Cell(text + mark) for text, mark in zip(texts, marks, strict=True)]


def training_table(results: Results) -> Table:
    """How the training of each point went, by means over its finished runs."""
    scales = [scale_of(key, [result.training[key] for result in results.points]) for key in TRAINING]
    heads = ["point", *(scale.axis for scale in scales), "runs finished"]
    rows = []
    for result in results.points:
        values = [Cell(scale.number(result.training[key])) for scale, key in zip(scales, TRAINING, strict=True)]
        finished = f"{len(result.point.finished)} of {len(result.point.runs)}"
        rows.append(Row(result.point.label, [*values, Cell(finished)]))
    return Table(heads, rows)


def _changes(result: PointResult, results: Results) -> Changes:
    found = changed_keys(result.point, results.study)
    if found is None:
        return Changes(result.point.label, [], "unknown: no run of it, or of the baseline, has begun")
    rows = [(key, shown(before), shown(now)) for key, (before, now) in found.items()]
    return Changes(result.point.label, rows, "nothing")
