"""The rules step by step: alarms begin once, are said once while they last, and end; and what is done about them.

No clock is read: a run that goes on from files says what an uninterrupted one says. One rank alone judges, for all:
figures that differ by a rounding on unlike processors could lie on either side of a threshold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapo_cli.config.schema import HealthAction, HealthConfig
from dapo_cli.health.event import EventKind, HealthEvent
from dapo_cli.health.rules import RULES
from dapo_cli.health.window import Record
from dapo_cli.wording import counted

SEVERITY = list(HealthAction)


@dataclass(frozen=True)
class Response:
    """What a step's alarms ask for: the severest action that can be taken, its reason, whether the step's checkpoint is
    to stay for good, and of a rollback its event."""

    action: HealthAction = HealthAction.note
    reason: str = ""
    for_good: bool = False
    rolled_back: HealthEvent | None = None

    @property
    def saves(self) -> bool:
        """Whether the step gets a checkpoint that it might not have else."""
        return self.action in (HealthAction.checkpoint, HealthAction.pause, HealthAction.stop)


class Health:
    """Alarms that are on, each with the step of its first signs, and the window of the last steps' figures.

    `records` are the lines of metrics.jsonl so far, `events` those of health.jsonl, `rollbacks` the manifest's.
    """

    def __init__(
        self,
        config: HealthConfig,
        records: Sequence[Record] = (),
        events: Sequence[Mapping[str, Any]] = (),
        rollbacks: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.config = config
        self.rules = {name: rule for name, rule in config.rules().items() if rule.action is not HealthAction.off}
        self.window = list(records[-config.window :])
        self.rollbacks = list(rollbacks)
        self.on: dict[str, int] = {}
        for event in events:
            if event["event"] == EventKind.began.value:
                self.on[event["rule"]] = event["since"]
            elif event["event"] == EventKind.ended.value:
                self.on.pop(event["rule"], None)

    @property
    def lr_factor(self) -> float:
        """What the rollbacks of the run so far have made of its learning rate, as a factor."""
        return self.rollbacks[-1]["figures"]["lr_factor"] if self.rollbacks else 1.0

    def feed(self, step: int, metrics: Mapping[str, Any]) -> list[HealthEvent]:
        """Take in a step's figures; returns the alarms that begin or end with it, in the recipe's order."""
        self.window = [*self.window, {"step": step, **metrics}][-self.config.window :]
        found = [self._judge(step, name) for name in self.rules]
        # Of rules that a resume has switched off.
        found += [self._ended(step, name, "its rule is off now.") for name in [*self.on] if name not in self.rules]
        return [event for event in found if event is not None]

    def _judge(self, step: int, name: str) -> HealthEvent | None:
        rule = self.rules[name]
        signs, since = RULES[name](self.window, rule), self.on.get(name)
        if signs is not None and since is None:
            self.on[name] = signs.since
            return HealthEvent(step, name, EventKind.began, signs.since, rule.action, signs.message, signs.figures)
        if signs is None and since is not None:
            return self._ended(step, name, f"its signs, there since step {since}, are gone.")
        return None

    def _ended(self, step: int, name: str, message: str) -> HealthEvent:
        return HealthEvent(step, name, EventKind.ended, self.on.pop(name), self.config.rules()[name].action, message)

    def respond(self, events: Sequence[HealthEvent], saved: Sequence[int]) -> Response:
        """What to do about a step's events; `saved` are the steps of the checkpoints that there are, its own not yet
        among them.

        A rollback goes to the newest checkpoint of before the first signs of all alarms that ask for one. It is a stop
        where there is none, or where the run has had its rollbacks.
        """
        began = [event for event in events if event.event is EventKind.began]
        if not began:
            return Response()
        first = max(began, key=lambda event: (SEVERITY.index(event.action), -event.since))
        reason = f"{first.rule}: {first.message}"
        for_good = any(event.action is HealthAction.checkpoint for event in began)
        if first.action is not HealthAction.rollback:
            return Response(first.action, reason, for_good)
        good = [step for step in saved if step < first.since]
        if not good:
            why = f"No checkpoint of before step {first.since} is there to roll back to."
            return Response(HealthAction.stop, f"{reason} {why}", for_good)
        if len(self.rollbacks) >= self.config.max_rollbacks:
            why = f"The run has been rolled back {counted(len(self.rollbacks), 'time')} (health.max_rollbacks)."
            return Response(HealthAction.stop, f"{reason} {why}", for_good)
        return Response(first.action, reason, rolled_back=self._rolled_back(first, max(good)))

    def _rolled_back(self, alarm: HealthEvent, to_step: int) -> HealthEvent:
        factor = self.lr_factor * self.config.rollback_lr_factor
        number = len(self.rollbacks) + 1
        message = (
            f"{alarm.message} Rolled back to step {to_step}; the run goes on at {factor:g} times its learning rate "
            f"(rollback {number} of {self.config.max_rollbacks} at most)."
        )
        figures = alarm.figures | {"to_step": to_step, "lr_factor": factor, "rollbacks": number}
        return HealthEvent(alarm.step, alarm.rule, EventKind.rolled_back, alarm.since, alarm.action, message, figures)
