"""`dapo selftest`: the table of differences between split and whole updates."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from dapo_cli.config.load import LoadedRecipe, load_recipe
from dapo_cli.config.schema import LaunchConfig, SingleLearner
from dapo_cli.distributed.launch import (
    check_launcher,
    launch,
    leave,
    report_result,
    reporting_failure,
    started_by_launcher,
)
from dapo_cli.errors import SelftestFailed
from dapo_cli.tracking.run_folder import RunFolder


def selftest(recipe: str, overrides: Sequence[str]) -> None:
    """Test, print the table and put it into the run folder. Raises SelftestFailed where something differs."""
    loaded = load_recipe(recipe, overrides)
    if started_by_launcher():
        with reporting_failure():
            single = isinstance(loaded.recipe.learner, SingleLearner)
            check_launcher(LaunchConfig(), single=single)
            rows = _test(loaded)
            if rows is not None and not report_result(rows):
                _conclude(loaded, rows)
            leave(0)
    config = loaded.recipe.launch
    rows = []
    for size in _sizes(config.processes_per_node) if config.nodes == 1 else [config.processes_per_node]:
        arguments = ["-m", "dapo_cli", "selftest", recipe, *overrides]
        found = launch(replace(config, processes_per_node=size), arguments, loaded.recipe.run.threads)
        rows += found or []
    if rows:
        _conclude(loaded, rows)


def _sizes(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


def _test(loaded: LoadedRecipe) -> list[dict[str, Any]] | None:
    """The rows of this world, on rank 0."""
    from dapo_cli.distributed.world import join_world
    from dapo_cli.pretrained import open_config
    from dapo_cli.selftest import selftest as rows_of

    world = join_world(with_group=not isinstance(loaded.recipe.learner, SingleLearner))
    rows = rows_of(loaded.recipe.learner, open_config(loaded.recipe.model), world)
    world.barrier()
    return [row.record() for row in rows] if world.is_main else None


def _conclude(loaded: LoadedRecipe, rows: list[dict[str, Any]]) -> None:
    from dapo_cli.selftest import FIGURES
    from dapo_cli.tracking.manifest import utc_now
    from dapo_cli.tracking.provenance import hardware, package_versions, read_code

    table = Table("ranks", "sequences", "micro-batch", *FIGURES, "", box=None, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for row in rows:
        figures = (f"{row[name]:.1e}" for name in FIGURES)
        verdict = "equal" if row["equal"] else "DIFFERS"
        table.add_row(str(row["ranks"]), str(row["sequences"]), str(row["micro_batch_tokens"]), *figures, verdict)
    console = Console()
    console.print(f"{rows[0]['learner']} beside one process: relative differences (log-probs in nats)")
    console.print(table)
    folder = RunFolder(loaded.recipe.run.dir)
    folder.write_selftest(
        {
            "time": utc_now(),
            "code": read_code().record,
            "packages": package_versions(),
            "hardware": hardware(),
            "rows": rows,
        }
    )
    print(f"written to {folder.selftest_file}")
    differing = sum(not row["equal"] for row in rows)
    if differing:
        raise SelftestFailed(f"{differing} of {len(rows)} updates differ by more than float rounding: see the table")
