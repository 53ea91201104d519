"""All that preflight finds out about a recipe: the parts of one page. Weights are read for a probe alone."""

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from dapo_cli.config.load import LoadedRecipe
from dapo_cli.config.schema import HubData, Recipe, SingleLearner, TabularData
from dapo_cli.errors import UserError
from dapo_cli.inputs import check_lengths, open_model
from dapo_cli.preflight.answers import AnswerCheck, answer_finding, asking_finding, check_answers
from dapo_cli.preflight.batch import BatchPlan, plan_batch
from dapo_cli.preflight.cost import GpuFit, StepFlops, fit_finding, gpu_fits, step_flops
from dapo_cli.preflight.dapo_likeness import Likeness, likeness
from dapo_cli.preflight.data_check import (
    DataFigures,
    Overlap,
    Section,
    data_findings,
    overlap,
    overlap_finding,
    read_section,
    refused,
)
from dapo_cli.preflight.findings import Finding, Level, refusal
from dapo_cli.preflight.lints import is_hub_id, recipe_lints, worst_first
from dapo_cli.preflight.memory import Memory, Sequences, plan_memory, processes
from dapo_cli.preflight.model_lints import model_lints, sections
from dapo_cli.preflight.probe_lints import probe_lints
from dapo_cli.preflight.probe_result import Probe, ProbeSize
from dapo_cli.preflight.shape import ModelShape, shape_of_model
from dapo_cli.pretrained import Pretrained, context_of, open_sketch
from dapo_cli.reward.modes import build_verifier
from dapo_cli.tabular.table import Table
from dapo_cli.tracking.provenance import read_code


@dataclass
class Survey:
    """What is known of a recipe; None where it could not be looked at, and `skipped` says why."""

    recipe: Recipe
    likeness: Likeness
    plan: BatchPlan
    figures: list[DataFigures] = field(default_factory=list)
    answers: list[AnswerCheck] = field(default_factory=list)
    overlap: Overlap | None = None
    shape: ModelShape | None = None
    sequences: Sequences | None = None
    memory: Memory | None = None
    fits: list[GpuFit] = field(default_factory=list)
    flops: StepFlops | None = None
    probe: Probe | None = None
    findings: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def count(self, level: Level) -> int:
        return sum(finding.level is level for finding in self.findings)


def survey(loaded: LoadedRecipe, *, has_gpu: bool | None = None) -> Survey:
    """Look at all of it. What is on the hub and cannot be had now is left out and named; other faults are findings.
    `has_gpu` says whether the run has one, for another machine than this."""
    recipe = loaded.recipe
    found = Survey(recipe, likeness(recipe), plan_batch(recipe), findings=recipe_lints(recipe))
    _look_at_code(found)
    config, pretrained = _open(found)
    read = {} if isinstance(recipe.data, TabularData) else _read(found, pretrained)
    if "data" in read:
        figures = read["data"].figures
        lengths = figures.lengths
        found.plan = plan_batch(recipe, figures.kept or None, lengths.mean if lengths else None)
        _look_at_batch(found, figures.kept)
    if len(read) == 2:
        found.overlap = overlap(read["data"].questions, read["eval.data"].questions)
        if finding := overlap_finding(found.overlap):
            found.findings.append(finding)
    if pretrained is not None:
        found.findings += model_lints(recipe, pretrained)
    if config is not None:
        _look_at_lengths(found, config)
        _estimate(found, config, read.get("data"), _has_gpu() if has_gpu is None else has_gpu)
    found.findings = worst_first(found.findings)
    return found


def add_probe(found: Survey, size: ProbeSize) -> None:
    """Generate with the recipe's parts, where nothing that is known of it forbids; what goes wrong is a finding."""
    if found.count(Level.ERROR):
        found.skipped.append("the probe: first mend the errors")
        return
    from dapo_cli.preflight.probe import run_probe  # and with it all that trains

    try:
        found.probe = run_probe(found.recipe, size)
    except UserError as error:
        found.findings.append(refusal("probe", error))
    else:
        found.findings += probe_lints(found.recipe, found.probe)
    found.findings = worst_first(found.findings)


def _look_at_code(found: Survey) -> None:
    if read_code().record["dirty"]:
        problem = "it has changes that are in no commit; a run keeps them as a patch"
        remedy = "commit them for a run that is to be cited"
        found.findings.append(Finding(Level.WARNING, "code of dapo", "", problem, remedy))


def _open(found: Survey) -> tuple[Any, Pretrained | None]:
    """The model's configuration, and the model where there is more than that; neither of a table, and where the model
    cannot be had."""
    model = found.recipe.model
    try:
        sketch = open_sketch(model)
        opened = None if sketch else open_model(model, with_weights=False)
    except UserError as error:
        if is_hub_id(getattr(model, "path", "")):
            found.skipped.append(
                f"model, memory and FLOPs, and prompt lengths: {error}; for memory and FLOPs model.path may be a "
                "folder with its config.json alone"
            )
        else:
            found.findings.append(refusal("model", error))
        return None, None
    if isinstance(opened, Table):
        found.plan = plan_batch(found.recipe, len(opened.prompts()))
        found.skipped.append("data, memory and FLOPs: the model is a table, and its prompts are the rows")
        return None, None
    if opened is None:
        found.skipped.append(
            f"prompt lengths, chat template and end of sequence: {getattr(model, 'path', '')} is a config.json alone, "
            "which no run can start from"
        )
        return sketch, None
    return opened.config, opened


def _read(found: Survey, pretrained: Pretrained | None) -> dict[str, Section]:
    """The data sections that can be read."""
    read: dict[str, Section] = {}
    for name, data in sections(found.recipe).items():
        tokenizer = pretrained.tokenizer if pretrained else None
        if tokenizer is not None and data.chat_template and tokenizer.chat_template is None:
            tokenizer = None  # which the model's lints name
        try:
            section = read_section(name, data, tokenizer)
        except UserError as error:
            if isinstance(data, HubData) and "cannot be reached" in str(error):
                found.skipped.append(f"{name}: {refused(name, data, error).problem}")
            else:
                found.findings.append(refused(name, data, error))
            continue
        read[name] = section
        found.figures.append(section.figures)
        found.findings += data_findings(section, data)
    if read:
        _check_answers(found, read)
    return read


def _check_answers(found: Survey, read: dict[str, Section]) -> None:
    reward = found.recipe.reward
    try:
        with build_verifier(reward) as verifier:
            for name, section in read.items():
                data = sections(found.recipe)[name]
                check = check_answers(name, section.questions, data, reward, verifier)
                told = answer_finding(check, reward), asking_finding(name, section.questions, data, reward)
                found.answers.append(check)
                found.findings += [finding for finding in told if finding is not None]
    except UserError as error:  # a verifier of the user's own does not load
        found.findings.append(refusal("reward", error))


def _look_at_batch(found: Survey, prompts: int) -> None:
    groups = found.recipe.algorithm.groups_per_step
    if 0 < prompts < groups:
        problem = f"data gives {prompts:,} prompts, fewer than a step trains on"
        finding = Finding(Level.ERROR, "algorithm.groups_per_step", str(groups), problem, "lower it, or give more data")
        found.findings.append(finding)
    elif 0 < prompts < found.plan.prompts_tried:
        problem = (
            f"a step tries {found.plan.prompts_tried:,} prompts, and data has {prompts:,}: some come twice in a step"
        )
        finding = Finding(Level.WARNING, "data", "", problem, "give more data, or lower algorithm.groups_per_step")
        found.findings.append(finding)


def _look_at_lengths(found: Survey, config: Any) -> None:
    try:
        check_lengths(found.recipe, context_of(config))
    except UserError as error:
        found.findings.append(refusal("sampling.max_tokens", error))


def _estimate(found: Survey, config: Any, section: Section | None, has_gpu: bool) -> None:
    recipe, plan = found.recipe, found.plan
    try:
        shape = shape_of_model(config)
    except UserError as error:
        found.skipped.append(f"memory and FLOPs: {error}")
        return
    lengths = section.figures.lengths if section else None
    evaluation = recipe.eval.samples_per_prompt * next((f.kept for f in found.figures if f.section == "eval.data"), 0)
    found.shape = shape
    found.sequences = Sequences(
        prompt=lengths.longest if lengths else recipe.data.max_prompt_tokens,
        completion=recipe.sampling.max_tokens,
        update_groups=plan.update_groups,
        samples=plan.samples,
        wanted=max(plan.samples * -(-plan.prompts_tried // max(1, plan.rounds)), evaluation),
    )
    on_cpu = processes(recipe) == 1 and isinstance(recipe.learner, SingleLearner) and not has_gpu
    found.memory = plan_memory(recipe, shape, found.sequences, on_cpu=on_cpu)
    found.fits = gpu_fits(recipe, shape, found.memory, found.sequences)
    if finding := fit_finding(found.fits):
        found.findings.append(finding)
    found.flops = step_flops(recipe, shape, plan)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def as_json(found: Survey) -> dict[str, Any]:
    """The whole of it, for a program to read; figures as they are, derived ones with them."""
    plan, memory, flops = found.plan, found.memory, found.flops
    derived = ("update_completions", "completions_generated", "steps_per_epoch", "epochs", "mean_tokens")
    tokens = ("tokens_trained", "tokens_generated", "most_tokens_trained")
    peaks = {} if memory is None else {"update": memory.update, "generate": memory.generate, "peak": memory.peak}
    tree: dict[str, Any] = {
        "verdict": found.likeness.record,
        "batch": asdict(plan) | {name: getattr(plan, name) for name in (*derived, *tokens)},
        "data": [asdict(figures) for figures in found.figures],
        "answers": [asdict(check) for check in found.answers],
        "overlap": asdict(found.overlap) if found.overlap else None,
        "model": asdict(found.shape) if found.shape else None,
        "memory_bytes": asdict(memory) | peaks if memory else None,
        "gpus": [asdict(fit) | {"fits": fit.fits} for fit in found.fits],
        "flops_per_step": asdict(flops) | {"total": flops.total} if flops else None,
        "probe": asdict(found.probe) if found.probe else None,
        "findings": [asdict(finding) for finding in found.findings],
        "not_checked": found.skipped,
    }
    return _plain(tree)


def _plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree]
    return tree.value if isinstance(tree, Enum) else tree
