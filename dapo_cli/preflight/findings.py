"""What preflight says of a recipe: one form for everything that is wrong, doubtful or worth knowing."""

from dataclasses import dataclass
from enum import Enum

from dapo_cli.errors import UserError


class Level(Enum):
    """ERROR: the run would be refused, or its numbers mean nothing. WARNING: it runs, and probably not as meant.
    NOTE: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing to know: the key and value that it is about, what follows from them, what to do (empty: nothing)."""

    level: Level
    key: str
    value: str
    problem: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """`key = value: problem; remedy`, on one line."""
        place = f"{self.key} = {self.value}" if self.value else self.key
        return f"{place}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


def refusal(key: str, error: UserError) -> Finding:
    """What `dapo train` would end with, as a finding."""
    return Finding(Level.ERROR, key, "", str(error))


def shown_number(value: float) -> str:
    """A number as the page writes it: whole with commas, else three digits.

    >>> shown_number(8192), shown_number(0.28), shown_number(1e-6)
    ('8,192', '0.28', '1e-06')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"
