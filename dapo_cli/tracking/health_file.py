"""What health.jsonl tells of a run: its alarms, each with the steps over which it was on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dapo_cli.errors import UserError
from dapo_cli.health.event import EventKind
from dapo_cli.tracking.files import read_lines

NEEDED = ("step", "rule", "event", "since", "action", "message", "figures")


@dataclass(frozen=True)
class Alarm:
    """`since` is the first step of what the rule looks for, `raised` the step that gave the alarm, `ended` the one
    that ended it, None while it is on. `figures` are those that the rule read when it was raised, by the names of their
    metrics."""

    rule: str
    since: int
    raised: int
    action: str
    message: str
    figures: dict[str, Any]
    ended: int | None = None
    rolled_back: bool = False

    @property
    def on(self) -> bool:
        return self.ended is None

    @property
    def steps(self) -> str:
        """`since step 9`, `steps 9 to 15`, `step 4`, `steps 9 to 15, rolled back`."""
        if self.ended is None:
            return f"since step {self.since}"
        steps = f"step {self.since}" if self.since == self.ended else f"steps {self.since} to {self.ended}"
        return steps + (", rolled back" if self.rolled_back else "")


def read_alarms(file: Path) -> list[Alarm] | None:
    """The alarms in the order in which they were raised; None where the run kept no such file.

    Raises UserError naming file and line where one is no event.
    """
    return alarms(read_lines(file, *NEEDED), str(file)) if file.exists() else None


def alarms(events: Sequence[dict[str, Any]], where: str) -> list[Alarm]:
    """One alarm for each `began`, with the rule's next `ended`, and one for each rollback: that raised an alarm which
    the steps that were kept know nothing of."""
    found: list[Alarm] = []
    on: dict[str, int] = {}  # rule -> its place in `found`
    for number, record in enumerate(events, start=1):
        place = f"{where}, line {number}"
        event, rule, step = _event(record, place), record["rule"], record["step"]
        if event is not EventKind.rolled_back and (event is EventKind.began) == (rule in on):
            before = "was on already" if rule in on else "was not on"
            raise UserError(f"{place}: {rule} {event.value}, but it {before}; restore the file")
        if event is EventKind.ended:
            begun = on.pop(rule)
            found[begun] = replace(found[begun], ended=step)
            continue
        alarm = Alarm(rule, record["since"], step, record["action"], record["message"], record["figures"])
        if event is EventKind.began:
            on[rule] = len(found)
        else:
            alarm = replace(alarm, ended=step, rolled_back=True)
        found.append(alarm)
    return found


def _event(record: dict[str, Any], where: str) -> EventKind:
    try:
        return EventKind(record["event"])
    except ValueError:
        known = ", ".join(event.value for event in EventKind)
        raise UserError(f"{where}: event is {record['event']!r}, none of {known}; restore the file") from None
