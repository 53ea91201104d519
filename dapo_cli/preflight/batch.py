"""The arithmetic of a step: groups, completions, updates, epochs and tokens, and the same in words."""

import math
from dataclasses import dataclass

from dapo_cli.algorithm.sampler import round_size
from dapo_cli.config.schema import Recipe, Surplus, TabularData

# Mean length of a completion as a share of sampling.max_tokens. Only a run can tell it: what derives from it says so.
ASSUMED_LENGTH = 0.5


@dataclass(frozen=True)
class BatchPlan:
    """Of one step unless said otherwise. `prompts_tried`, `rounds` and `epochs` are at the expected yield
    (`sampler.initial_yield`); `groups` are those trained on."""

    groups: int
    samples: int
    completions: int
    updates: int
    update_groups: int
    passes: int
    steps: int
    rounds: int
    prompts_tried: int
    expected_yield: float
    prompts: int | None
    max_tokens: int
    prompt_tokens: float

    @property
    def update_completions(self) -> int:
        return self.update_groups * self.samples

    @property
    def completions_generated(self) -> int:
        return self.prompts_tried * self.samples

    @property
    def steps_per_epoch(self) -> float | None:
        return self.prompts / self.prompts_tried if self.prompts else None

    @property
    def epochs(self) -> float | None:
        return self.steps * self.prompts_tried / self.prompts if self.prompts else None

    @property
    def most_tokens_trained(self) -> int:
        """Completion tokens, if all are as long as they may be."""
        return self.completions * self.max_tokens

    @property
    def mean_tokens(self) -> float:
        """Assumed mean length of a completion, 1 or more."""
        return max(1.0, ASSUMED_LENGTH * self.max_tokens)

    @property
    def tokens_trained(self) -> float:
        """Completion tokens, at the assumed mean length."""
        return self.completions * self.mean_tokens

    @property
    def tokens_generated(self) -> float:
        """Completion tokens, at the assumed mean length."""
        return self.completions_generated * self.mean_tokens


def plan_batch(recipe: Recipe, prompts: int | None = None, prompt_tokens: float | None = None) -> BatchPlan:
    """`prompts` are those of the training data and `prompt_tokens` their mean length where known; else the most that
    the recipe lets through is taken."""
    algorithm = recipe.algorithm
    rounds, tried = _rounds(recipe, prompts)
    kept = algorithm.groups_per_step
    if recipe.sampler.dynamic and not recipe.sampler.refill:
        kept = max(1, round(kept * recipe.sampler.initial_yield))
    update_groups = min(algorithm.groups_per_update, kept)
    return BatchPlan(
        groups=kept,
        samples=algorithm.samples_per_prompt,
        completions=kept * algorithm.samples_per_prompt,
        updates=math.ceil(kept / algorithm.groups_per_update) * algorithm.passes,
        update_groups=update_groups,
        passes=algorithm.passes,
        steps=recipe.run.steps,
        rounds=rounds,
        prompts_tried=tried,
        expected_yield=recipe.sampler.initial_yield if recipe.sampler.dynamic else 1.0,
        prompts=prompts,
        max_tokens=recipe.sampling.max_tokens,
        prompt_tokens=recipe.data.max_prompt_tokens if prompt_tokens is None else prompt_tokens,
    )


def _rounds(recipe: Recipe, prompts: int | None) -> tuple[int, int]:
    """Rounds and prompts of a step if each round yields what is expected, by the sampler's own rule."""
    sampler, wanted = recipe.sampler, recipe.algorithm.groups_per_step
    cap = min(sampler.max_prompts_per_round, prompts or sampler.max_prompts_per_round)
    if not (sampler.dynamic and sampler.refill):
        rounds = min(sampler.max_rounds, math.ceil(wanted / cap))
        return rounds, min(wanted, rounds * cap)
    missing, tried, rounds = float(wanted), 0, 0
    while missing > 0 and rounds < sampler.max_rounds:
        size = round_size(math.ceil(missing), sampler.initial_yield, sampler.oversample, cap)
        tried, rounds, missing = tried + size, rounds + 1, missing - size * sampler.initial_yield
    if missing <= 0 and sampler.surplus is not Surplus.discard:
        tried = math.ceil(wanted / sampler.initial_yield)  # what is beyond the batch serves later steps
    return rounds, tried


def batch_lines(plan: BatchPlan, recipe: Recipe) -> list[str]:
    """The plan in words."""
    per_pass = plan.updates // plan.passes
    updates = f"{per_pass} update{'s' if per_pass > 1 else ''} of {plan.update_completions:,} completions"
    passes = f", {plan.passes} times over" if plan.passes > 1 else ""
    expected = " expected" if recipe.sampler.dynamic and not recipe.sampler.refill else ""
    lines = [
        f"{plan.groups:,} groups{expected} x {plan.samples} = {plan.completions:,} completions a step, in {updates} "
        f"({plan.update_groups:,} groups){passes}; {plan.steps:,} steps",
        f"generated for them: {plan.prompts_tried:,} prompts x {plan.samples} = {plan.completions_generated:,} "
        f"completions in {plan.rounds} round{'s' if plan.rounds > 1 else ''}, if {plan.expected_yield:.0%} of groups "
        "are informative" + (" (sampler.initial_yield)" if recipe.sampler.dynamic else " (all are trained on)"),
    ]
    if plan.steps_per_epoch is not None and plan.epochs is not None and plan.prompts is not None:
        lines.append(
            f"an epoch of {plan.prompts:,} prompts lasts {plan.steps_per_epoch:.3g} steps; the run goes over the data "
            f"{plan.epochs:.3g} times"
        )
    if isinstance(recipe.data, TabularData):
        return lines
    lines.append(
        f"completion tokens a step: {plan.tokens_trained:,.0f} trained on and {plan.tokens_generated:,.0f} generated "
        f"at a mean of {plan.mean_tokens:,.0f} (assumed: {ASSUMED_LENGTH:.0%} of sampling.max_tokens); at most "
        f"{plan.most_tokens_trained:,} trained on"
    )
    return lines
