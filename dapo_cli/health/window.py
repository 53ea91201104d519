"""What the rules read out of the last steps' figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""A line of metrics.jsonl: `step` and the figures."""

RECENT = 2  # steps whose mean is "now": one alone is a draw of prompts
BEFORE = 2  # fewest steps that "now" is compared with


def number(record: Record, key: str) -> float | None:
    """None where there was nothing to measure. A figure that is not finite is a text in metrics.jsonl."""
    value = record.get(key)
    return None if value is None else float(value)


def numbers(records: Sequence[Record], key: str) -> list[float]:
    """Those that were measured."""
    return [value for record in records if (value := number(record, key)) is not None]


def average(records: Sequence[Record], key: str) -> float | None:
    values = numbers(records, key)
    return math.fsum(values) / len(values) if values else None


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def trailing(window: Sequence[Record], holds: Callable[[Record], bool]) -> list[Record]:
    """The latest steps without a gap for which something holds; empty where it does not for the last one."""
    found: list[Record] = []
    for record in reversed(window):
        if not holds(record):
            break
        found.insert(0, record)
    return found


@dataclass(frozen=True)
class Course:
    """The steps of a window that have a figure, in two parts: the last RECENT ones, and those before."""

    earlier: list[Record]
    recent: list[Record]

    @classmethod
    def of(cls, window: Sequence[Record], *keys: str) -> "Course | None":
        """None where too few steps have all of these figures, each a finite number, or the last one lacks one: there is
        nothing to say of now."""
        measured = [record for record in window if all(_finite(number(record, key)) for key in keys)]
        if len(measured) < BEFORE + RECENT or measured[-1] is not window[-1]:
            return None
        return cls(measured[:-RECENT], measured[-RECENT:])

    def change(self, key: str) -> tuple[float, float]:
        """The means of the earlier steps and of the recent ones."""
        before, now = average(self.earlier, key), average(self.recent, key)
        assert before is not None and now is not None
        return before, now

    def turned_after(self, key: str, extreme: Callable[[Sequence[float]], float]) -> int:
        """The step behind the last of the earlier ones that has their highest (`max`) or lowest (`min`) figure: there
        the way to now began."""
        found = extreme(numbers(self.earlier, key))
        return max(record["step"] for record in self.earlier if number(record, key) == found) + 1
