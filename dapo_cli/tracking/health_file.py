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
    that ended it, None while it is on. `figures` maps the metrics' names that the rule read to their values
    when it was raised."""

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
        """`since step 9`, `steps 9 to 15`, `steps 9 to 15, rolled back`."""
        if self.ended is None:
            return f"since step {self.since}"
        return f"steps {self.since} to {self.ended}" + (", rolled back" if self.rolled_back else "")


def read_alarms(file: Path) -> list[Alarm] | None:
    """The alarms in the order in which they were raised; None where the run kept no such file.

    Raises UserError naming file and line where one is no event.
    """
    return alarms(read_lines(file, *NEEDED), str(file)) if file.exists() else None


def alarms(events: Sequence[dict[str, Any]], where: str) -> list[Alarm]:
    """One alarm for each rule's `began` and what ended it. A rule that is on stays one alarm if it begins again, as
    after a resume; an end without a beginning is an alarm by itself."""
    found: list[Alarm] = []
    on: dict[str, int] = {}  # rule -> its place in `found`
    for number, record in enumerate(events, start=1):
        event = _event(record, f"{where}, line {number}")
        rule, step = record["rule"], record["step"]
        place = on.get(rule)
        if place is None:
            place = on[rule] = len(found)
            found.append(Alarm(rule, record["since"], step, record["action"], record["message"], record["figures"]))
        if event is not EventKind.began:
            found[place] = replace(found[place], ended=step, rolled_back=event is EventKind.rolled_back)
            del on[rule]
    return found


def _event(record: dict[str, Any], where: str) -> EventKind:
    try:
        return EventKind(record["event"])
    except ValueError:
        known = ", ".join(event.value for event in EventKind)
        raise UserError(f"{where}: event is {record['event']!r}, none of {known}; restore the file") from None
