"""A survey as one page of text."""

import textwrap

from dapo_cli.preflight.batch import batch_lines
from dapo_cli.preflight.dapo_likeness import Likeness, Role
from dapo_cli.preflight.data_check import DataFigures
from dapo_cli.preflight.findings import Level
from dapo_cli.preflight.memory import processes
from dapo_cli.preflight.probe_result import Probe
from dapo_cli.preflight.survey import Survey
from dapo_cli.tracking.console import clock_time

WIDTH = 110
H100_FLOPS = 989e12  # dense bfloat16, NVIDIA's data sheet
ASSUMED_MFU = 0.3
PASS_RATES = ("none", "up to 1/4", "up to 1/2", "up to 3/4", "more", "all")  # of a prompt's completions
PHASES = {"rollout": "generate", "verify": "verify", "score": "score", "update": "update", "sync": "sync"}


def page_lines(name: str, found: Survey) -> list[str]:
    """The page; findings come last, where a terminal shows them."""
    sections = {
        "Is it DAPO?": likeness_lines(found.likeness),
        "A step": batch_lines(found.plan, found.recipe),
        "Data": [line for figures in found.figures for line in data_lines(figures)] + _answer_lines(found),
        "Memory of a process, by formula (docs/preflight.md)": _memory_lines(found),
        "Work": _flops_lines(found),
        "A probe, by the starting weights": _probe_lines(found),
        "Not checked": found.skipped,
        "Findings": _finding_lines(found),
    }
    lines = textwrap.wrap(f"{name}: {found.likeness.line}", WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False)
    for title, body in sections.items():
        if body:
            lines += ["", title, *(row for line in body for row in _wrapped(line))]
    return [*lines, "", _summary(found)]


def _wrapped(text: str) -> list[str]:
    """Under its title; what goes on, and the further lines of a message, stand deeper."""
    first, *others = text.splitlines()
    rows = textwrap.wrap(
        first, WIDTH, initial_indent="  ", subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False
    )
    for line in others:
        rows += textwrap.wrap(
            line.strip(), WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
        )
    return rows


def likeness_lines(verdict: Likeness) -> list[str]:
    """A line for each part of the algorithm, and one for all sizes that differ."""
    parts = [trait for trait in verdict.traits if trait.role is not Role.SIZE]
    width = max(len(trait.name) for trait in parts)
    lines = []
    for trait in parts:
        paper = f" (paper: {trait.paper})" if trait.departs else ""
        lines.append(f"{trait.name:<{width}}  {trait.status.value:<9}  {trait.value}{paper}")
    sizes = [trait for trait in verdict.traits if trait.role is Role.SIZE and trait.departs]
    if sizes:
        lines.append("other sizes: " + ", ".join(f"{each.name} {each.value} (paper: {each.paper})" for each in sizes))
    return lines


def data_lines(figures: DataFigures) -> list[str]:
    """Counts and lengths of one section."""
    lines = [
        f"{figures.section}: {figures.source}: {figures.rows:,} rows, {figures.duplicates:,} duplicates, "
        f"{figures.conflicting:,} conflicting, {figures.too_long:,} too long, {figures.kept:,} kept; "
        f"{figures.not_integers:.1%} of answers are not integers"
    ]
    if figures.lengths is not None:
        lengths = figures.lengths
        lines.append(
            f"{figures.section}: prompts of {lengths.p50:,} tokens (median), {lengths.p95:,} (95th percentile), "
            f"{lengths.most:,} (longest)"
        )
    return lines


def _answer_lines(found: Survey) -> list[str]:
    lines = [
        f"{check.section}: {check.checked - check.unread:,} of {check.checked:,} gold answers checked"
        f"{'' if check.checked == check.of else f' (of {check.of:,})'} verify against themselves, stated by "
        f"`{check.form}`"
        for check in found.answers
    ]
    if found.overlap is not None:
        both = found.overlap
        lines.append(
            f"in both: {both.exact:,} of {both.of:,} questions letter by letter, {both.normalised:,} but for case, "
            "space and punctuation"
        )
    return lines


def _memory_lines(found: Survey) -> list[str]:
    memory, shape, sequences = found.memory, found.shape, found.sequences
    if memory is None or shape is None or sequences is None:
        return []
    number = processes(found.recipe)
    parts = {
        "weights and moments": memory.standing,
        "gradients and gathered weights": memory.updating,
        "reference model": memory.reference,
        "engine's copy": memory.engine,
        f"activations of {memory.micro_batch_tokens:,} packed tokens": memory.activations,
        "logits": memory.logits,
        "the process": memory.process,
    }
    said = " + ".join(f"{_size(value)} {name}" for name, value in parts.items() if value)
    lines = [
        f"{shape.parameters:,} parameters on {number} process{'es' if number > 1 else ''}",
        f"update: {_size(memory.update)} = {said}",
    ]
    cache = (
        f"{memory.kv_token / 1e3:,.1f} kB a token, {_size(memory.kv_token * sequences.longest)} for "
        f"{sequences.prompt:,} + {sequences.completion:,} tokens"
    )
    if memory.generate is not None and memory.kv_cache is not None:
        lines.append(
            f"generation: {_size(memory.generate)}, of which {_size(memory.kv_cache)} is the KV cache of "
            f"{memory.sequences:,} completions at L_max ({cache})"
        )
    else:
        lines.append(f"generation: vLLM takes its share of a GPU; KV cache {cache}")
    fits = [f"{fit.gb} GB: {'yes' if fit.fits else 'no'} ({fit.sequences:,})" for fit in found.fits]
    return [*lines, f"fits a GPU of (whole sequences that its KV cache holds): {', '.join(fits)}"]


def _flops_lines(found: Survey) -> list[str]:
    flops = found.flops
    if flops is None:
        return []
    whole = flops.total * found.plan.steps
    hours = whole / (ASSUMED_MFU * H100_FLOPS) / 3600
    scale = f", {hours:,.0f} H100 hours at {ASSUMED_MFU:.0%} of its peak (generating reaches less)" if hours > 1 else ""
    return [
        f"{_flops(flops.total)} a step at the assumed lengths: {_flops(flops.generate)} to generate, "
        f"{_flops(flops.score)} to score, {_flops(flops.update)} to update",
        f"{_flops(whole)} for {found.plan.steps:,} steps{scale}",
    ]


def _probe_lines(found: Survey) -> list[str]:
    probe, plan = found.probe, found.plan
    if probe is None:
        return []
    figures, informative = probe.figures, probe.informative
    counts = [round((share or 0.0) * probe.prompts) for share in probe.pass_rates.values()]
    no_answer = "" if probe.no_answer is None else f", {probe.no_answer:.1%} of the others state no answer"
    size = f"{'at least ' if informative.lower_bound else ''}{informative.rate:.0%} of groups of {informative.size}"
    return [
        f"{probe.prompts:,} prompts x {probe.samples} completions, the first of the training stream: "
        f"{figures['judged/accuracy']:.1%} are right, {figures['judged/truncated']:.1%} truncated{no_answer}; "
        f"{figures['verifier/failed']:,} verdicts failed",
        "prompts by the share of right completions: "
        + ", ".join(f"{name} {count:,}" for name, count in zip(PASS_RATES, counts, strict=True)),
        f"{size} are informative (95% interval {informative.low:.0%} to {informative.high:.0%}; assumed: "
        f"{plan.expected_yield:.0%})",
        f"completions of {figures['length/mean']:,.0f} tokens (mean; assumed: {plan.mean_tokens:,.0f}), "
        f"{figures['length/p50']:,.0f} (median), {figures['length/p95']:,.0f} (95th percentile), "
        f"{figures['length/max']:,} (longest)",
        *_step_lines(probe, plan.samples),
        f"generated {probe.tokens:,} tokens in {probe.generating_s:.1f} s, {probe.tokens_per_s or 0.0:,.0f} tokens/s",
        *(_time_lines(probe, plan.steps, processes(found.recipe)) if probe.step.groups else []),
    ]


def _step_lines(probe: Probe, samples: int) -> list[str]:
    step = probe.step
    if not step.groups:
        return ["no group was informative, so rounds and seconds of a step cannot be told"]
    return [
        f"a step at this yield: {step.prompts:,.1f} prompts x {samples} = {step.prompts * samples:,.0f} "
        f"completions in {step.rounds:.2f} rounds, to train on {step.groups:,.1f} groups"
    ]


def _time_lines(probe: Probe, steps: int, number: int) -> list[str]:
    parts = " + ".join(f"{seconds:.3g} {PHASES[phase]}" for phase, seconds in probe.seconds.items())
    if probe.step_seconds is None:
        return [
            f"seconds a step: {parts}, if each of {number:,} processes generates as fast as this one; score and "
            "update, which they share, were not measured"
        ]
    return [
        f"seconds a step: {parts} = {probe.step_seconds:.3g}",
        f"{steps:,} steps: {clock_time(probe.step_seconds * steps)} without evaluations and checkpoints, if yield, "
        "lengths and speed stay as they are",
    ]


def _finding_lines(found: Survey) -> list[str]:
    return [f"{finding.level.value}: {finding.text}" for finding in found.findings]


def _summary(found: Survey) -> str:
    counts = {level: found.count(level) for level in Level}
    said = [f"{count} {level.value}{'s' if count > 1 else ''}" for level, count in counts.items() if count]
    return ", ".join(said) or "nothing found"


def _size(value: float) -> str:
    """In units of 10^9 or 10^6 bytes.

    >>> _size(15_200_000_000), _size(14_500_000), _size(152_000)
    ('15.2 GB', '14.5 MB', '0.152 MB')
    """
    if value >= 1e9:
        return f"{value / 1e9:,.1f} GB"
    return f"{value / 1e6:.3g} MB"


def _flops(value: float) -> str:
    for unit, size in (("ZFLOP", 1e21), ("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12)):
        if value >= size:
            return f"{value / size:,.3g} {unit}"
    return f"{value / 1e9:,.3g} GFLOP"
