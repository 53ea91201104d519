"""What the records of timings.jsonl add up to."""

import math
from collections.abc import Iterable
from typing import Any

NO_TRAINING = ("evaluate", "checkpoint")  # phases of a step that no run is charged for: how often they come is a choice


def training_seconds(timings: Iterable[dict[str, Any]]) -> float:
    """Of steps, by their records of timings.jsonl."""
    return math.fsum(
        record["seconds/step"] - sum(record.get(f"seconds/{phase}", 0.0) for phase in NO_TRAINING) for record in timings
    )
