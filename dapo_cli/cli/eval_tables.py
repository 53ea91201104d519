"""The tables that `dapo eval` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dapo_cli.evaluation.results import QUANTILES, sampling_words

if TYPE_CHECKING:
    from dapo_cli.evaluation.compare import Comparison, Pair
    from dapo_cli.evaluation.rescore import Rescored

NOTHING = "-"
SHOWN_PROBLEMS = 10  # won and lost, each
SHOWN_CHARACTERS = 60  # of a question
COUNTS = ("length_mean", *QUANTILES)  # in tokens; all else are shares


def figures_table(results: dict[str, Any], tokens_per_s: float | None) -> Table:
    """Every figure of one evaluation with its interval."""
    table = _table(_title(results), "", "95 % interval")
    for name, figure in results["figures"].items():
        if name == "pass@1" or name in QUANTILES:
            continue  # avg@k by another name; told beside the mean
        if name == "verifier_failed" and not figure["value"]:
            continue
        table.add_row(_words(name), _value(name, figure), _interval(name, figure))
    figures = results["figures"]
    quantiles = " / ".join(f"{figures[name]:,.0f}" for name in QUANTILES)
    table.add_row("length: median / 95 % / most", quantiles, "")
    table.add_row("tokens/s", NOTHING if tokens_per_s is None else f"{tokens_per_s:,.0f}", "")
    return table


def parts_table(column: str, values: dict[str, Any], results: dict[str, Any]) -> Table:
    """Figures by level, subject or source."""
    shown = _main_figures(results)
    table = _table(f"by {column}", "n", *(_words(name, short=True) for name in shown))
    for value, figures in values.items():
        cells = [_with_interval(name, figures.get(name)) for name in shown]
        table.add_row(Text(value), f"{figures['problems']:,}", *cells)
    return table


def curve_table(series: Sequence[dict[str, Any]]) -> Table:
    """A line a checkpoint."""
    shown = _main_figures(series[-1])
    table = _table(_title(series[-1], of_step=False), *(_words(name, short=True) for name in shown))
    for results in series:
        table.add_row(
            f"step {results['step']}", *(_with_interval(name, results["figures"].get(name)) for name in shown)
        )
    return table


def rescored_table(found: "Sequence[Rescored]") -> Table:
    """A line a mode, the stored one first."""
    first = found[0]
    shown = _main_figures(first.now)
    table = _table(_title(first.now, of_mode=False), *(_words(name, short=True) for name in shown))
    rows = [each.now for each in found]
    if first.before is not None:
        rows.insert(0, {**first.before, "mode": f"{first.before['mode']} (stored)"})
    for results in rows:
        cells = [_with_interval(name, results["figures"].get(name)) for name in shown]
        table.add_row(Text(results["mode"]), *cells)
    return table


def comparison_table(found: "Comparison") -> list[Any]:
    """What was measured otherwise, the difference in words and figures, then the problems that make it."""
    interval = "" if found.low is None else f"  [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"  # type: ignore[operator]
    table = _table(f"{found.problems:,} problems", "avg@k", "k")
    table.add_row(Text(f"A {found.a}"), f"{found.mean_a:.1%}", str(found.samples[0]))
    table.add_row(Text(f"B {found.b}"), f"{found.mean_b:.1%}", str(found.samples[1]))
    table.add_row("B - A, in points", f"{100 * found.difference:+.1f}{interval}", "")
    parts: list[Any] = [Text(f"differs: {line}") for line in found.settings]
    parts += [table, _verdict(found)]
    if found.only_a or found.only_b:
        parts.append(f"left out: {found.only_a:,} problems only in A, {found.only_b:,} only in B")
    parts += [_pairs(name, pairs) for name, pairs in (("won by B", found.won), ("lost by B", found.lost)) if pairs]
    return parts


def _verdict(found: "Comparison") -> str:
    counts = f"B won {len(found.won):,}, lost {len(found.lost):,}, tied {found.tied:,}"
    if found.tied == found.problems:
        return f"{counts}; all problems agree: an interval would have no width, which is no certainty of other problems"
    if found.low is None or found.high is None:
        return f"{counts}; one problem shows no spread"
    if found.low <= 0 <= found.high:
        return f"{counts}; the interval holds 0: these problems do not tell A and B apart"
    return f"{counts}; {'B' if found.low > 0 else 'A'} is better, as far as these problems tell"


def _pairs(title: str, pairs: "Sequence[Pair]") -> Table:
    table = _table(f"{title}: {len(pairs):,}", "A", "B", "question")
    table.columns[3].justify = "left"
    for pair in pairs[:SHOWN_PROBLEMS]:
        question = " ".join(pair.question.split())[:SHOWN_CHARACTERS]
        table.add_row(pair.uid, f"{pair.a:.1%}", f"{pair.b:.1%}", Text(question, overflow="ellipsis", no_wrap=True))
    if len(pairs) > SHOWN_PROBLEMS:
        table.add_row(f"and {len(pairs) - SHOWN_PROBLEMS:,} more", "", "", "(--json names all)")
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), title=Text(title, style="bold"))
    table.title_justify = "left"
    table.add_column("", overflow="fold", min_width=7)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _title(results: dict[str, Any], *, of_step: bool = True, of_mode: bool = True) -> str:
    step = f", step {results['step']}" if of_step and results.get("step") is not None else ""
    mode = f", {results['mode']}" if of_mode else ""
    name = f"{results.get('model', 'model')} on {results.get('data', 'data')}"
    head = f"{name}{step} ({results['problems']:,} problems x {results['k']}{mode})"
    return f"{head}\n{sampling_words(results)}"


def _main_figures(results: dict[str, Any]) -> list[str]:
    k = results["k"]
    wanted = [f"avg@{k}", *([f"pass@{k}", f"cons@{k}"] if k > 1 else []), "truncated", "no_answer", "length_mean"]
    return [name for name in wanted if name in results["figures"]]


def _words(name: str, *, short: bool = False) -> str:
    """`short` for the head of a column."""
    long = {"no_answer": "no answer", "verifier_failed": "verifier failed", "length_mean": "length, tokens"}
    words = {**long, "truncated": "cut", "length_mean": "tokens"} if short else long
    return words.get(name, name)


def _value(name: str, figure: dict[str, Any]) -> str:
    return f"{figure['value']:,.1f}" if name in COUNTS else f"{figure['value']:.1%}"


def _interval(name: str, figure: dict[str, Any]) -> str:
    if figure["low"] is None:
        return NOTHING
    if name in COUNTS:
        return f"{figure['low']:,.1f} – {figure['high']:,.1f}"
    return f"{100 * figure['low']:.1f} – {100 * figure['high']:.1f}"


def _with_interval(name: str, figure: dict[str, Any] | None) -> str:
    """The interval for accuracies alone: a line has no room for more."""
    if figure is None:
        return NOTHING
    spread = f" ({_interval(name, figure)})" if name.startswith("avg@") and figure["low"] is not None else ""
    return _value(name, figure) + spread
