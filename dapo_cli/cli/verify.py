"""`dapo verify`: judge the responses of a file, by one verifier or several."""

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.text import Text

from dapo_cli.cli.bars import bars
from dapo_cli.config.schema import RewardConfig
from dapo_cli.data.responses import Columns, Response, ResponseFile
from dapo_cli.errors import UserError
from dapo_cli.reward.modes import build_verifier, reward_of
from dapo_cli.reward.pool import VerifierPool
from dapo_cli.reward.worker_handle import TimedVerdict
from dapo_cli.tracking.files import json_line
from dapo_cli.types import Outcome, Verdict

if TYPE_CHECKING:
    from rich.console import Console

CHUNK_ROWS = 2048  # judged, written and forgotten together: bounds memory, and what an interrupt can lose
SHOWN_CHARACTERS = 36  # of an answer in a table


@dataclass
class Tally:
    """What one mode said of the file."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    judged: Counter[tuple[bool, bool]] = field(default_factory=Counter)  # (label, found right)
    seconds: float = 0.0

    def add(self, response: Response, timed: TimedVerdict) -> None:
        verdict = timed.verdict
        self.outcomes[verdict.outcome] += 1
        self.seconds += timed.seconds
        if verdict.outcome is Outcome.FAILED:
            self.causes[verdict.rule.partition(":")[0]] += 1
        if response.label is not None:
            self.judged[response.label, verdict.outcome is Outcome.RIGHT] += 1


Difference = tuple[Response, tuple[Verdict, ...]]


def verify(
    file: str,
    modes: Sequence[str],
    columns: Columns,
    overrides: Sequence[str],
    out: Path | None,
    differences_shown: int,
) -> None:
    """Judge every row of `file` by each of `modes`; the first one's verdicts go to `out`, a line a row.

    `overrides` are `reward.KEY=VALUE`, as in a recipe.

    Raises UserError before anything is judged, for a file with rows that cannot be used, a mode or an `out` that cannot
    serve.
    """
    from rich.console import Console

    modes = list(dict.fromkeys(modes))
    configs = [reward_of(mode, overrides) for mode in modes]
    responses = ResponseFile(Path(file).expanduser(), columns)
    rows = responses.check()
    tallies = [Tally() for _ in modes]
    num_different, shown = 0, list[Difference]()
    with ExitStack() as stack:
        output = stack.enter_context(_output(out, responses.path)) if out else None
        pools = [stack.enter_context(_ready(config, mode)) for config, mode in zip(configs, modes, strict=True)]
        bar, judged = stack.enter_context(bars()), 0
        for chunk in _chunks(responses):
            verdicts = [
                _judge(pool, chunk, partial(bar, mode, rows, judged)) for pool, mode in zip(pools, modes, strict=True)
            ]
            judged += len(chunk)
            for response, timed in zip(chunk, zip(*verdicts, strict=True), strict=True):
                for tally, one in zip(tallies, timed, strict=True):
                    tally.add(response, one)
                if len({one.verdict.outcome for one in timed}) > 1:
                    num_different += 1
                    if len(shown) < differences_shown:
                        shown.append((response, tuple(one.verdict for one in timed)))
                if output:
                    output.write(json_line(_record(timed[0])))
    console = Console()
    _print_summary(console, modes, tallies)
    if len(modes) > 1:
        _print_differences(console, modes, num_different, shown, responses.unit)
    if out:
        print(f"{rows:,} verdicts of {modes[0]} in {out}")


@contextmanager
def _ready(config: RewardConfig, mode: str) -> Iterator[VerifierPool]:
    with ExitStack() as stack:
        try:
            pool = stack.enter_context(build_verifier(config))
            pool.wait_until_ready()
        except UserError as error:
            raise UserError(f"--mode {mode}: {error}") from error
        yield pool


@contextmanager
def _output(out: Path, source: Path) -> Iterator[IO[bytes]]:
    """Lines go to OUT.partial, which takes OUT's name when all are there; after an interrupt it stays, for a look."""
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"-o {out}: is the file that is read; give another one")
    if out.is_dir():
        raise UserError(f"-o {out}: is a folder; name a file in it")
    out = out.resolve()  # the file behind a link
    written_at_once = out.exists() and not out.is_file()  # a pipe, /dev/stdout
    partial = out if written_at_once else out.with_name(f"{out.name}.partial")
    try:
        file = partial.open("wb")
    except OSError as error:
        raise UserError(f"-o {out}: cannot be written ({error.strerror}); give another file") from error
    with file:
        try:
            yield file
        except BaseException:
            if written_at_once:
                raise
            if file.tell():
                print(f"the verdicts so far are in {partial}", file=sys.stderr)
            else:
                partial.unlink()
            raise
    if not written_at_once:
        os.replace(partial, out)


def _chunks(responses: Iterable[Response]) -> Iterator[list[Response]]:
    source = iter(responses)
    while chunk := list(itertools.islice(source, CHUNK_ROWS)):
        yield chunk


def _judge(pool: VerifierPool, chunk: Sequence[Response], tell: Callable[[int], None]) -> list[TimedVerdict]:
    timed = pool.verify_timed([response.case for response in chunk], tell)
    tell(len(chunk))  # repeated cases are judged once
    return timed


def _record(timed: TimedVerdict) -> dict[str, Any]:
    verdict = timed.verdict
    return {
        "correct": verdict.outcome is Outcome.RIGHT,
        "outcome": verdict.outcome.value,
        "extracted": verdict.extracted,
        "rule": verdict.rule,
        "seconds": round(timed.seconds, 6),
    }


def _print_summary(console: "Console", modes: Sequence[str], tallies: Sequence[Tally]) -> None:
    """A row a mode: outcomes, and beside labels how often they are met and which way they are missed."""
    from rich.table import Table

    labelled = any(tally.judged for tally in tallies)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    table.add_column("mode", min_width=14, overflow="fold")
    headings = ["rows", "right", "wrong", "failed", "ms each"]
    headings += ["labels", "accuracy", "false+", "false-"] if labelled else []
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for mode, tally in zip(modes, tallies, strict=True):
        rows = tally.outcomes.total()
        cells = [f"{count:,}" for count in (rows, *(tally.outcomes[outcome] for outcome in Outcome))]
        cells.append(f"{1000 * tally.seconds / rows:.3g}")
        if labelled:
            labels, judged = tally.judged.total(), tally.judged
            cells += [f"{labels:,}", f"{(judged[True, True] + judged[False, False]) / labels:.2%}"]
            cells += [f"{judged[False, True]:,}", f"{judged[True, False]:,}"]
        table.add_row(Text(Path(mode).name), *cells)
    console.print(table)
    for mode, tally in zip(modes, tallies, strict=True):
        if tally.causes:
            causes = ", ".join(f"{cause} {count:,}" for cause, count in tally.causes.most_common())
            console.print(Text(f"{mode}: failed by {causes}", style="yellow"))


def _print_differences(
    console: "Console", modes: Sequence[str], num_different: int, shown: Sequence[Difference], unit: str
) -> None:
    from rich.table import Table

    console.print(f"\n{num_different:,} responses on which the modes differ")
    if not shown:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in (unit, "answer", "label", *modes):
        table.add_column(Text(heading))
    for response, verdicts in shown:
        label = {None: "", True: "right", False: "wrong"}[response.label]
        cells = [f"{verdict.outcome.value} {shortened(verdict.extracted)} ({verdict.rule})" for verdict in verdicts]
        row = (str(response.number), shortened(response.case.answer), label, *cells)
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    console.print(table)
    if num_different > len(shown):
        console.print(f"... and {num_different - len(shown):,} more; --differences {num_different} shows all")


def shortened(text: str | None) -> str:
    """On one line, the middle left out where it is long; a dash for None."""
    if text is None:
        return "-"
    line = " ".join(text.split())
    half = SHOWN_CHARACTERS // 2
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:half]} … {line[-half:]}"
