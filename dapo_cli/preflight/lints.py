"""What is doubtful in a recipe by itself: no file is opened, no model loaded, no torch imported."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from dapo_cli.config.keys import shown
from dapo_cli.config.schema import (
    AuthorsReward,
    CorrectionKind,
    HubData,
    Instruction,
    Precision,
    PretrainedModel,
    Recipe,
    StrictBoxedReward,
    TabularModel,
)
from dapo_cli.config.shipped import MODEL_PREFIX
from dapo_cli.data.hub import COMMIT
from dapo_cli.preflight.findings import Finding, Level

PAPER_UPDATES = 16  # of a step, section 4.1
SMALL_BUFFER, LARGE_BUFFER = 0.05, 0.5  # of L_max; the paper's is 0.2
FEW_SAMPLES = 4


def recipe_lints(recipe: Recipe) -> list[Finding]:
    """Worst first."""
    rules: tuple[Callable[[Recipe], Iterator[Finding]], ...] = (
        _overlong,
        _answer_form,
        _precision,
        _updates,
        _sampler,
        _schedule,
        _revisions,
        _evaluation,
    )
    return worst_first([finding for rule in rules for finding in rule(recipe)])


def worst_first(findings: list[Finding]) -> list[Finding]:
    order = list(Level)
    return sorted(findings, key=lambda finding: order.index(finding.level))


def _overlong(recipe: Recipe) -> Iterator[Finding]:
    overlong, most = recipe.overlong, recipe.sampling.max_tokens
    share = overlong.cache_tokens / most
    key, value = "overlong.cache_tokens", f"{overlong.cache_tokens}"
    remedy = f"set it to about {max(1, round(most / 5)):,}, a fifth of sampling.max_tokens, as in the paper"
    if overlong.penalty and share < SMALL_BUFFER:
        problem = (
            f"the last {share:.1%} of sampling.max_tokens = {most:,}: hardly a completion ends there, so that the "
            "penalty falls on truncated ones alone"
        )
        yield Finding(Level.WARNING, key, value, problem, remedy)
    if overlong.penalty and share > LARGE_BUFFER:
        problem = (
            f"more than half of sampling.max_tokens = {most:,}: ordinary completions are punished for their length"
        )
        yield Finding(Level.WARNING, key, value, problem, remedy)
    if not (overlong.penalty or overlong.filter_truncated or isinstance(recipe.model, TabularModel)):
        problem = "a completion that is cut off counts as a wrong one, however good its reasoning (section 3.4)"
        yield Finding(Level.NOTE, "overlong.penalty", "false", problem, "switch it or overlong.filter_truncated on")


def _answer_form(recipe: Recipe) -> Iterator[Finding]:
    if isinstance(recipe.reward, StrictBoxedReward) and recipe.data.instruction is Instruction.authors:
        problem = (
            r"the instruction asks for a line `Answer: ...`, but reward strict_boxed reads the last \boxed{} alone"
        )
        remedy = r"choose reward=authors or reward=math, or ask for \boxed{} in the questions with instruction none"
        yield Finding(Level.ERROR, "data.instruction", "authors", problem, remedy)
    evaluated = recipe.eval.data
    if (
        isinstance(recipe.reward, AuthorsReward)
        and evaluated is not None
        and evaluated.instruction is not recipe.data.instruction
    ):
        problem = f"training has {recipe.data.instruction.value}, and reward authors reads `Answer: ...` alone"
        value = evaluated.instruction.value
        yield Finding(Level.WARNING, "eval.data.instruction", value, problem, "set both alike")


def _precision(recipe: Recipe) -> Iterator[Finding]:
    dtype = recipe.learner.compute_dtype
    if dtype is Precision.float32 or isinstance(recipe.model, TabularModel):
        return
    if recipe.correction.kind is CorrectionKind.none:
        problem = (
            f"learner and engine round differently in {dtype.value}, and with correction.kind = none the loss takes "
            "the engine's samples for the learner's own"
        )
        remedy = "set correction.kind=truncated, or watch mismatch/ in the metrics"
        yield Finding(Level.WARNING, "learner.compute_dtype", dtype.value, problem, remedy)
    if not recipe.learner.fp32_head:
        problem = f"logits are computed in {dtype.value}, where most of the mismatch comes from (arXiv:2506.13585)"
        yield Finding(Level.NOTE, "learner.fp32_head", "false", problem, "true costs little on large models")


def _updates(recipe: Recipe) -> Iterator[Finding]:
    algorithm = recipe.algorithm
    updates = algorithm.passes * algorithm.groups_per_step // algorithm.groups_per_update
    key, value = "algorithm.groups_per_update", str(algorithm.groups_per_update)
    if updates > PAPER_UPDATES:
        problem = (
            f"{updates} updates a step, of which the first alone is on-policy and the last is {updates - 1} updates "
            f"off; the paper makes {PAPER_UPDATES}"
        )
        yield Finding(Level.WARNING, key, value, problem, "raise it")
    elif updates > 1:
        problem = f"{updates} updates a step, of which the first alone is on-policy (the paper: {PAPER_UPDATES})"
        yield Finding(Level.NOTE, key, value, problem)
    if algorithm.samples_per_prompt < FEW_SAMPLES:
        samples = algorithm.samples_per_prompt
        best = chance_informative(0.5, samples)
        problem = f"at best {best:.0%} of groups have both right and wrong answers (the paper: 16 samples)"
        yield Finding(Level.WARNING, "algorithm.samples_per_prompt", str(samples), problem, "raise it")


def _sampler(recipe: Recipe) -> Iterator[Finding]:
    sampler, wanted = recipe.sampler, recipe.algorithm.groups_per_step
    if not (sampler.dynamic and sampler.refill):
        return
    reach = sampler.max_rounds * sampler.max_prompts_per_round * sampler.initial_yield
    if reach < wanted:
        problem = (
            f"{sampler.max_rounds} rounds of {sampler.max_prompts_per_round:,} prompts give {reach:,.0f} informative "
            f"groups at the expected yield, but a step wants {wanted:,}: every step ends short or stops the run"
        )
        remedy = "raise sampler.max_rounds or sampler.max_prompts_per_round"
        yield Finding(Level.WARNING, "sampler.max_rounds", str(sampler.max_rounds), problem, remedy)
    elif sampler.max_rounds == 1:
        least = wanted / sampler.max_prompts_per_round
        problem = (
            f"a step is short as soon as fewer than {max(least, sampler.initial_yield):.0%} of groups are informative"
        )
        yield Finding(Level.WARNING, "sampler.max_rounds", "1", problem, "raise it")


def _schedule(recipe: Recipe) -> Iterator[Finding]:
    warmup, steps = recipe.optimizer.warmup_steps, recipe.run.steps
    if warmup >= steps:
        problem = f"the learning rate grows over all run.steps = {steps:,} and is never constant"
        yield Finding(Level.WARNING, "optimizer.warmup_steps", str(warmup), problem, f"set {max(0, steps // 10)} or so")


def _revisions(recipe: Recipe) -> Iterator[Finding]:
    loose = []
    if isinstance(recipe.model, PretrainedModel) and is_hub_id(recipe.model.path):
        loose += [] if COMMIT.fullmatch(recipe.model.revision or "") else ["model.revision"]
    for name, data in (("data", recipe.data), ("eval.data", recipe.eval.data)):
        if isinstance(data, HubData) and not COMMIT.fullmatch(data.revision or ""):
            loose.append(f"{name}.revision")
    if loose:
        problem = "no commit hash: what the hub gives may change from one start to the next"
        yield Finding(Level.WARNING, ", ".join(loose), "", problem, "set the hash of 40 digits that its page shows")


def is_hub_id(path: str) -> bool:
    """Whether `model.path` names a model of the hub; a folder that is there goes first.

    >>> is_hub_id("Qwen/Qwen2.5-7B"), is_hub_id("shipped:tiny-arithmetic"), is_hub_id("./models/mine")
    (True, False, False)
    """
    if path.startswith(MODEL_PREFIX) or Path(path).is_dir():
        return False
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path) is not None


def _evaluation(recipe: Recipe) -> Iterator[Finding]:
    evaluation = recipe.eval
    if evaluation.data is None and not isinstance(recipe.model, TabularModel):
        problem = "nothing is measured on problems that are not trained on"
        yield Finding(Level.NOTE, "eval.data", shown(None), problem, "give held-out data")


def chance_informative(pass_rate: float, samples: int) -> float:
    """P(0 < correct < G) of Eq. 11 for a prompt that is solved with probability `pass_rate`.

    >>> chance_informative(0.5, 4)
    0.875
    """
    return 1 - math.pow(pass_rate, samples) - math.pow(1 - pass_rate, samples)
