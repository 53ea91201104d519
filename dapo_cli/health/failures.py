"""Why verdicts failed, as metrics.jsonl counts it."""

from collections.abc import Mapping
from typing import Any

FAILURES = ("timeout", "memory", "crash", "error", "other")  # the pool's rules of a failed verdict; a user's own


def failures_by_cause(figures: Mapping[str, Any]) -> dict[str, int]:
    """Of a step's figures, the causes that there were.

    >>> failures_by_cause({"verifier/failed_timeout": 3, "verifier/failed_error": 0})
    {'timeout': 3}
    """
    counts = {cause: figures.get(f"verifier/failed_{cause}") for cause in FAILURES}
    return {cause: count for cause, count in counts.items() if count}


def named(failures: Mapping[str, int]) -> str:
    """
    >>> named({"timeout": 30, "error": 60})
    'timeout 30, error 60'
    """
    return ", ".join(f"{cause} {count}" for cause, count in failures.items())
