"""`dapo audit`: judged completions of a run, for reading by hand."""

from pathlib import Path
from typing import TYPE_CHECKING

from dapo_cli.cli.verify import shortened
from dapo_cli.errors import UserError
from dapo_cli.tracking.audit import Finding, judged_records, oddest
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.types import Outcome

if TYPE_CHECKING:
    from rich.text import Text

SHOWN_CHARACTERS = 1200  # of a completion; its end, where the answer is


def audit(run: Path, samples: int, outcome: str) -> None:
    """Print `samples` stored completions of that outcome, the oddest format first."""
    from rich.console import Console
    from rich.panel import Panel

    outcomes = [item.value for item in Outcome]
    if outcome not in outcomes:
        raise UserError(f"--outcome {outcome}: one of {', '.join(outcomes)}")
    records = judged_records(RunFolder(run), outcome)
    findings = oddest(records, samples)
    console = Console()
    for finding in findings:
        console.print(Panel(_body(finding), title=_title(finding), title_align="left"))
    formats = len({finding.format for finding in findings})
    console.print(
        f"{len(findings)} of {len(records):,} stored completions judged {outcome}, in {formats} formats, rarest first",
        highlight=False,
    )


def _title(finding: Finding) -> "Text":
    from rich.text import Text

    record = finding.record
    return Text(f"step {record['step']} · {record['uid']} · sample {record['sample']}")


def _body(finding: Finding) -> "Text":
    from rich.text import Text

    record = finding.record
    completion = record["completion"]
    cut = len(completion) - SHOWN_CHARACTERS
    body = Text()
    body.append(f"{' · '.join(finding.format)} ({finding.alike:,} alike)\n", style="yellow")
    body.append(f"reference {shortened(record['answer'])}   read {shortened(record['extracted'])}", style="green")
    body.append(f"   reward {record['reward']:+.2f}\n\n", style="green")
    body.append(record["prompt"].strip()[-SHOWN_CHARACTERS // 4 :], style="dim")
    body.append("\n\n" + (f"[{cut:,} characters before]\n" if cut > 0 else "") + completion[-SHOWN_CHARACTERS:].strip())
    return body
