"""What is doubtful by what a probe measured: thresholds, each with its key and remedy."""

from collections.abc import Iterator

from dapo_cli.config.schema import Instruction, Recipe, TabularModel
from dapo_cli.health.failures import failures_by_cause, named
from dapo_cli.preflight.findings import Finding, Level
from dapo_cli.preflight.probe_result import Probe
from dapo_cli.reward.modes import mode_name

MANY_TRUNCATED = 0.1  # of completions
MANY_WITHOUT_ANSWER = 0.2  # of those that ended by themselves
LOW_YIELD = 0.25  # four prompts generated for each one trained on; at 0.2 a step costs five times its batch
YIELD_APART = 1.5  # initial_yield over the measured rate, or the other way round


def probe_lints(recipe: Recipe, probe: Probe) -> list[Finding]:
    return [*_completions(recipe, probe), *_pass_rates(recipe, probe)]


def _completions(recipe: Recipe, probe: Probe) -> Iterator[Finding]:
    truncated = probe.figures["judged/truncated"] or 0.0
    if truncated > MANY_TRUNCATED and not isinstance(recipe.model, TabularModel):
        problem = f"{truncated:.0%} of the probe's completions are cut off there, and count as wrong"
        remedy = "raise it, and overlong.cache_tokens with it, or ask for shorter answers"
        yield Finding(Level.WARNING, "sampling.max_tokens", str(recipe.sampling.max_tokens), problem, remedy)
    mode = mode_name(recipe.reward)
    if (probe.no_answer or 0.0) > MANY_WITHOUT_ANSWER:
        problem = f"{probe.no_answer:.0%} of the probe's completions that ended by themselves state no answer it reads"
        asked = recipe.data.instruction is Instruction.authors
        remedy = "" if asked else "set data.instruction=authors, or "
        remedy += "choose the reward that reads what the model writes (docs/verifier.md)"
        yield Finding(Level.WARNING, "reward", mode, problem, remedy)
    if (probe.figures["verifier/failed_share"] or 0.0) > recipe.health.verifier_failures.failed_share:
        causes = named(failures_by_cause(probe.figures))
        problem = f"{probe.figures['verifier/failed']} of the probe's verdicts failed ({causes})"
        remedy = "raise reward.timeout_s or reward.memory_limit_mib, or mend the function"
        yield Finding(Level.WARNING, "reward", mode, problem, remedy)


def _pass_rates(recipe: Recipe, probe: Probe) -> Iterator[Finding]:
    accuracy, rate = probe.figures["judged/accuracy"], probe.informative.rate
    if accuracy == 0:
        problem = (
            f"none of the probe's {probe.prompts} prompts was solved in {probe.samples} tries: nothing to learn from"
        )
        remedy = "give easier data, a model that solves some of it, or see whether the reward reads its answers"
        yield Finding(Level.WARNING, "data", "", problem, remedy)
    elif accuracy == 1:
        problem = f"all of the probe's {probe.prompts} prompts were solved in each of {probe.samples} tries"
        yield Finding(Level.WARNING, "data", "", problem, "give harder data")
    elif recipe.sampler.dynamic and rate < LOW_YIELD and not probe.informative.lower_bound:
        problem = (
            f"{rate:.0%} of the probe's groups are informative: a step generates {probe.step.prompts:,.0f} prompts to "
            f"train on {probe.step.groups:,.0f}"
        )
        remedy = "give data nearer to what the model half solves, or raise algorithm.samples_per_prompt"
        yield Finding(Level.WARNING, "data", "", problem, remedy)
    yield from _initial_yield(recipe, probe)


def _initial_yield(recipe: Recipe, probe: Probe) -> Iterator[Finding]:
    """It sizes the first round alone, and the plan of this page."""
    found, expected = probe.informative, recipe.sampler.initial_yield
    if not recipe.sampler.dynamic or found.lower_bound or found.rate == 0 or found.low <= expected <= found.high:
        return
    if max(expected / found.rate, found.rate / expected) > YIELD_APART:
        problem = f"the probe finds {found.rate:.0%} of groups informative ({found.low:.0%} to {found.high:.0%})"
        yield Finding(Level.NOTE, "sampler.initial_yield", f"{expected:g}", problem, f"set {found.rate:.2g}")
