"""The report's files: one page that carries all, and beside it its figures and tables for papers and other tools."""

from pathlib import Path

from dapo_cli.errors import UserError
from dapo_cli.report import captions
from dapo_cli.report.figures import curves_figure, ledger_figure, outcome_figure
from dapo_cli.report.page import page
from dapo_cli.report.results import Results
from dapo_cli.report.runs import ROLLOUTS, STEP
from dapo_cli.report.tables import curves_csv, results_csv
from dapo_cli.tracking.files import write_atomically


def check_out(out: Path) -> None:
    """Raises UserError where the report could not be written."""
    if out.is_dir():
        raise UserError(f"-o {out}: is a folder; give a file, {out / 'report.html'}")
    try:
        files_folder(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"-o {out}: cannot write there ({error.strerror}); give another place") from None


def files_folder(out: Path) -> Path:
    """report.html has report_files/ beside it."""
    return out.with_name(f"{out.stem}_files")


def write_report(results: Results, out: Path) -> list[Path]:
    """Write the page to `out`, and PNG and CSV files beside it; returns all of them, the page first."""
    figures = [
        (captions.OUTCOME, outcome_figure(results)),
        (captions.OVER_STEPS, curves_figure(results, STEP)),
        (captions.OVER_ROLLOUTS, curves_figure(results, ROLLOUTS)),
    ]
    if difficulty := ledger_figure(results):
        figures.append((captions.DIFFICULTY, difficulty))
    folder = files_folder(out)
    contents = {
        out: page(results, figures),
        folder / "results.csv": results_csv(results),
        folder / "curves.csv": curves_csv(results.study),
        **{folder / f"{name}.png": png for name, png in figures},
    }
    for path, content in contents.items():
        try:
            write_atomically(path, content)
        except OSError as error:
            raise UserError(f"-o {out}: cannot write {path} ({error.strerror})") from None
    return list(contents)
