"""How figures are written for people: shares in percent, differences with their sign, aligned digits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapo_cli.report.results import is_share
from dapo_cli.report.statistics import Estimate

MINUS = "−"
NOTHING = "–"
FIGURE_SPACE = "\u2007"  # as wide as a digit
# heading of a metric where its own name would not do
NAMES = {
    "eval/accuracy": "held-out accuracy",
    "judged/accuracy": "training accuracy",
    "judged/reward": "training reward",
    "policy/entropy": "entropy",
    "length/mean": "completion length",
    "sampler/informative_rate": "informative groups",
    "rollouts": "rollouts spent",
    "seconds": "training time",
}
UNITS = {"policy/entropy": "nats", "length/mean": "tokens", "seconds": "s"}


@dataclass(frozen=True)
class Scale:
    """`factor` turns a figure as files hold it into one as shown, in `unit`; `digits` behind the point."""

    name: str
    factor: float
    digits: int
    unit: str

    @property
    def difference_unit(self) -> str:
        return "points" if self.unit == "%" else self.unit

    @property
    def axis(self) -> str:
        return f"{self.name},\u00a0{self.unit}" if self.unit else self.name

    def number(self, value: float | None, *, signed: bool = False) -> str:
        """For example `54.2`, `+2.0`, `−0.3`; a dash where there is none."""
        if value is None:
            return NOTHING
        shown = round(self.factor * value, self.digits) + 0.0  # no "-0.0"
        return f"{shown:{'+' if signed and shown else ''},.{self.digits}f}".replace("-", MINUS)

    def value(self, value: float | None) -> str:
        """With its unit."""
        return _with_unit(self.number(value), self.unit)

    def means(self, column: Sequence[Estimate | None]) -> list[str]:
        """A table's column, for example `54.2 ± 11.1` above `60.0 ±  3.1`."""
        parts = [(self.number(each.mean), self.number(each.half_width)) if each else None for each in column]
        return [NOTHING if cells is None else " ± ".join(cells) for cells in _padded(parts)]

    def differences(self, column: Sequence[Estimate | None]) -> list[str]:
        """A table's column, for example `+2.0 [−1.1,  +5.1]` above `+0.3 [−9.4, +10.0]`; `[–]` without an interval."""

        def signed(value: float | None) -> str:
            return self.number(value, signed=True)

        parts = [(signed(each.mean), signed(each.low), signed(each.high)) if each else None for each in column]
        texts = [NOTHING if cells is None else _bracketed(*cells) for cells in _padded(parts)]
        return [
            text if each is None or each.half_width is not None else f"{signed(each.mean)} [{NOTHING}]"
            for text, each in zip(texts, column, strict=True)
        ]


def _bracketed(mean: str, low: str, high: str) -> str:
    """Padding of the lower bound stands before the bracket."""
    bare = low.lstrip(FIGURE_SPACE)
    return f"{mean} {low[: len(low) - len(bare)]}[{bare}, {high}]"


def _padded(rows: Sequence[tuple[str, ...] | None]) -> list[tuple[str, ...] | None]:
    """Cells of one place as wide as the widest of them, so that digits stand below digits."""
    widths = [max(map(len, place)) for place in zip(*filter(None, rows), strict=True)]
    return [tuple(map(_to_width, row, widths)) if row else None for row in rows]


def _to_width(text: str, width: int) -> str:
    return text.rjust(width, FIGURE_SPACE)


def _with_unit(text: str, unit: str) -> str:
    return text + ("" if not unit or text == NOTHING else f" {unit}")


def scale_of(key: str, values: Iterable[float | None] = ()) -> Scale:
    """How a figure is shown; `values` decide how many digits three significant ones take."""
    name = NAMES.get(key, key)
    if is_share(key):
        return Scale(name, 100.0, 1, "%")
    known = [abs(value) for value in values if value is not None]
    largest = max(known, default=1.0)
    digits = (
        0
        if largest >= 100 or all(value == round(value) for value in known)
        else 1
        if largest >= 10
        else 2
        if largest >= 1
        else 3
    )
    return Scale(name, 1.0, digits, UNITS.get(key, ""))


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(number: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def quoted(names: Iterable[str]) -> list[str]:
    return [f"“{name}”" for name in names]
