"""How figures are written for people: shares in percent, differences with their sign, aligned digits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapo_cli.algorithm.ledger import SHARES as LEDGER_SHARES
from dapo_cli.report.statistics import Estimate

MINUS = "−"
NOTHING = "–"
FIGURE_SPACE = "\u2007"  # as wide as a digit


@dataclass(frozen=True)
class Figure:
    """How a figure is called and what it is; `unit` is % for a share, which files hold as 0 to 1."""

    name: str
    unit: str
    definition: str


# Figures of any other key are shown as files hold them, under their keys. docs/metrics.md has all.
FIGURES = {
    "eval/accuracy": Figure(
        "held-out accuracy",
        "%",
        "share of right completions of the held-out prompts (avg@k), by the run's own verifier",
    ),
    "eval/hardest": Figure("accuracy on the hardest", "%", "of a table: over the rows that began under 3 %"),
    "eval/pass_at_k": Figure("held-out pass@k", "%", "share of the held-out prompts with a right completion among k"),
    "eval/truncated": Figure("held-out truncated", "%", "share of the held-out completions cut at their token limit"),
    "judged/accuracy": Figure("training accuracy", "%", "share of right completions of all that a step judged"),
    "judged/completed": Figure("completed", "%", "share of the judged completions that ended by themselves"),
    "judged/truncated": Figure("truncated", "%", "share of the judged completions cut at sampling.max_tokens"),
    "kept/accuracy": Figure("accuracy of the batch", "%", "share of right completions of those trained on"),
    "kept/completed": Figure("completed of the batch", "%", "share of those trained on that ended by themselves"),
    "kept/truncated": Figure("truncated of the batch", "%", "share of those trained on cut at sampling.max_tokens"),
    "judged/reward": Figure(
        "training reward", "", "mean of Eq. 7 + Eq. 13 of the DAPO paper over all judged rollouts of a step"
    ),
    "policy/entropy": Figure(
        "entropy", "nats", "mean entropy of the next-token distribution at completion tokens of the batch"
    ),
    "length/mean": Figure(
        "completion length", "tokens", "mean tokens of the judged completions, end of sequence included"
    ),
    "length/in_buffer": Figure("in Eq. 13's buffer", "%", "share of the judged completions that Eq. 13 penalizes"),
    "sampler/informative_rate": Figure(
        "informative groups", "%", "share of judged groups with some, but not all, completions right"
    ),
    "sampler/yield_estimate": Figure("expected yield", "%", "the running share of informative groups"),
    "rollouts": Figure(
        "rollouts spent", "", "judged completions so far, those of groups that were not trained on included"
    ),
    "seconds": Figure(
        "training time", "s", "seconds of the steps, evaluations and checkpoints left out; depends on the machine"
    ),
    "step": Figure("steps", "", "optimisation steps of Algorithm 1"),
    "policy/positive": Figure("tokens of A > 0", "%", "share of the loss tokens with positive advantage"),
    "policy/clip_high": Figure("clipped above", "%", "share of the loss tokens that the upper bound stops"),
    "policy/clip_high_of_positive": Figure(
        "clipped of A > 0", "%", "share of the tokens of A > 0 that the bound stops"
    ),
    "policy/clip_low": Figure("clipped below", "%", "share of the loss tokens that the lower bound stops"),
    "policy/clip_dual": Figure("clipped by dual_clip", "%", "share of the loss tokens that algorithm.dual_clip stops"),
    "mismatch/ess": Figure("effective sample size", "%", "of the importance weights, as a share of the tokens"),
    "mismatch/corrected": Figure("corrected tokens", "%", "share of the tokens whose weight was cut or masked"),
    "repetition/ngram_share": Figure("repetition", "%", "share of a completion's 4-grams that occurred before in it"),
    "verifier/failed_share": Figure(
        "failed verdicts", "%", "share of the verdicts that are the verifier's own failures"
    ),
    "ledger/never_solved": Figure("never solved", "%", "share of the prompts seen without any right completion"),
    **{
        f"ledger/{name}": Figure(f"ledger/{name}", "%", "share of the prompts seen in this bin of their last pass rate")
        for name in LEDGER_SHARES
    },
}


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
    figure = FIGURES.get(key) or Figure(key, "", "")
    if figure.unit == "%":
        return Scale(figure.name, 100.0, 1, "%")
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
    return Scale(figure.name, 1.0, digits, figure.unit)


def quoted(names: Iterable[str]) -> list[str]:
    return [f"“{name}”" for name in names]
