"""Which judged completions of a run to read by hand: a reward that was not earned shows first in an odd format."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dapo_cli.errors import UserError
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.metrics import repeated_ngram_share
from dapo_cli.tracking.run_folder import RunFolder

_STATEMENT = re.compile(r"\\boxed|\\fbox|answer|答案|####", re.IGNORECASE)
SHORT_CHARACTERS = 20  # of working before the answer, of text behind it
LITTLE_WORKING = f"little working (under {SHORT_CHARACTERS} characters)"
REPEATED_SHARE = 0.5  # of a completion's 4-grams of words


@dataclass(frozen=True)
class Finding:
    """A record of rollouts/, what is odd about its format, and how many of the records read share that format."""

    record: dict[str, Any]
    format: tuple[str, ...]
    alike: int


def judged_records(folder: RunFolder, outcome: str) -> list[dict[str, Any]]:
    """All stored completions with that outcome, by step. Raises UserError for a folder without any stored."""
    files = sorted(folder.rollouts.glob("step_*.jsonl"))
    if not files:
        raise UserError(
            f"{folder.path}: no stored completions (rollouts/step_000001.jsonl …); give a run folder, trained with "
            "tracking.rollouts_per_step above 0"
        )
    return [record for file in files for record in read_lines(file) if record["outcome"] == outcome]


def oddest(records: Sequence[dict[str, Any]], count: int) -> list[Finding]:
    """At most `count`, one of each format before a second of any: the rarest format first, of each the latest step.

    A policy that found a hole in the verifier uses it more and more, so the newest of a format shows the most.
    """
    formats = [odd_format(record) for record in records]
    how_many = Counter(formats)
    taken: Counter[tuple[str, ...]] = Counter()
    ranked = []
    for record, kind in sorted(zip(records, formats, strict=True), key=lambda pair: -pair[0]["step"]):
        ranked.append((taken[kind], how_many[kind], kind, record))
        taken[kind] += 1
    ranked.sort(key=lambda item: item[:3])
    return [Finding(record, kind, alike) for _, alike, kind, record in ranked[:count]]


def odd_format(record: dict[str, Any]) -> tuple[str, ...]:
    """How the answer was found and judged, and what is unusual about the completion around it."""
    text, extracted = record["completion"], record["extracted"] or ""
    words = [hash(word) for word in text.split()]
    behind = text.rpartition(extracted)[2] if extracted else ""
    signs = {
        "cut at the token limit": record["finish"] == "length",
        "several statements": len(_STATEMENT.findall(text)) > 1,
        LITTLE_WORKING: len(_STATEMENT.split(text, maxsplit=1)[0].strip()) < SHORT_CHARACTERS,
        "text behind the answer": len(re.sub(r"[\W_]+", "", behind)) > SHORT_CHARACTERS,
        "repetitive": repeated_ngram_share(words) > REPEATED_SHARE,
        "answer unlike the reference": extracted.strip() != record["answer"].strip(),
        "characters beyond ASCII": not text.isascii(),
    }
    return (record["rule"], *(sign for sign, present in signs.items() if present))
