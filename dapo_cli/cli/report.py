"""`dapo report`: runs side by side, as a page or on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from dapo_cli.report.health import alarm_lines, health_line
from dapo_cli.report.page import Row, Table, results_table, training_table
from dapo_cli.report.provenance import warnings
from dapo_cli.report.results import Results, compare_points
from dapo_cli.report.study import read_study
from dapo_cli.report.words import headline, multiple_comparisons, statements
from dapo_cli.report.write import check_out, write_report


def report(paths: Sequence[str], out: Path | None, baseline: str | None, metric: str) -> None:
    """Write the page to `out`, or print its tables. Raises UserError for what cannot be read, compared or written."""
    results = compare_points(read_study(paths, baseline), metric)
    if out is None:
        _print(results)
        return
    check_out(out)
    page, *others = write_report(results, out)
    print("\n".join(headline(results)))
    for warning in warnings(results.study):
        print(f"Warning: {warning}")
    print(f"{page} (whole by itself); {len(others)} figures and tables in {others[0].parent}/")


def _print(results: Results) -> None:
    from rich.console import Console

    console = Console()
    for table in (results_table(results), _turned(training_table(results))):
        print_table(table)
    parts = [headline(results), statements(results), multiple_comparisons(results)]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    lines += [f"Warning: {warning}" for warning in warnings(results.study)]
    if health := health_line(results.study.runs):
        lines += ["", f"Health: {health}"]
        lines += [f"  {line}" for run in results.study.runs for line in alarm_lines(run)]
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _turned(table: Table) -> Table:
    """A row a figure, a column a point: as wide as a terminal is."""
    places = range(1, len(table.heads))
    rows = [Row(table.heads[place], [row.cells[place - 1] for row in table.rows]) for place in places]
    return Table(["", *(row.label for row in table.rows)], rows)


def print_table(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, head in enumerate(table.heads):
        shown.add_column(Text(head), justify="right" if place else "left", vertical="top", overflow="fold")
    for row in table.rows:
        cells = [Text(cell.text, style="bold" if cell.told else "") for cell in row.cells]
        shown.add_row(Text(row.label), *cells)
    Console().print(shown)
