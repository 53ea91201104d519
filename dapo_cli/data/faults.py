"""Rows that cannot be used, gathered so that all of a file are told at once."""

from dataclasses import dataclass, field

from dapo_cli.errors import UserError

FAULTS_NAMED = 5


class RowFault(ValueError):
    """What makes one row unusable, in words that follow "file, row 3: "."""


@dataclass
class Faults:
    """Rows that cannot be used: the first few in words, all of them by number."""

    named: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, where: str, fault: RowFault) -> None:
        self.count += 1
        if self.count <= FAULTS_NAMED:
            self.named.append(f"{where}: {fault}")

    def raise_any(self, rows: int, remedy: str) -> None:
        """Raises UserError where there is any, with how many of `rows` they are."""
        if self.count == 1:
            raise UserError(f"{self.named[0]}\n{remedy}")
        if self.count:
            unnamed = [f"... and {self.count - len(self.named)} more"] if self.count > len(self.named) else []
            lines = [f"{self.count} of {rows} rows cannot be used:", *self.named, *unnamed]
            raise UserError("\n  ".join(lines) + f"\n{remedy}")
