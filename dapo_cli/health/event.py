"""What the rules and the monitor say."""

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from dapo_cli.config.schema import HealthAction


@dataclass(frozen=True)
class Signs:
    """Why a rule alarms: the step since which its signs hold, a sentence with the numbers and what to do about them,
    and the numbers by themselves."""

    since: int
    message: str
    figures: dict[str, float | int | None]


class EventKind(Enum):
    began = "began"
    ended = "ended"
    rolled_back = "rolled_back"


@dataclass(frozen=True)
class HealthEvent:
    """A line of health.jsonl. `step` is the one it is about, `since` that of the alarm's first signs.

    Of a rollback, `figures` hold `to_step`, after which the run goes on, and `lr_factor`, by which its learning rate is
    multiplied from there on; all rollbacks before are in it.
    """

    step: int
    rule: str
    event: EventKind
    since: int
    action: HealthAction
    message: str
    figures: dict[str, float | int | None] = field(default_factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """In JSON's types, but for numbers that are not finite."""
        return asdict(self) | {"event": self.event.value, "action": self.action.value}


class RolledBack(Exception):
    """An alarm takes the run back to before its signs."""

    def __init__(self, event: HealthEvent) -> None:
        super().__init__(event.message)
        self.event = event
