"""`dapo diff`: two runs side by side."""

import sys
from pathlib import Path

from dapo_cli.report.diff import diff_lines, diff_runs
from dapo_cli.tracking.files import json_document


def diff(one: Path, other: Path, as_json: bool) -> None:
    found = diff_runs(one, other)
    if as_json:
        sys.stdout.write(json_document(found.tree()).decode())
    else:
        print("\n".join(diff_lines(found)))
