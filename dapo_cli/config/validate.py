"""Rules that a type cannot say: ranges of single keys, and rules between keys. Imports no torch, reads no file."""

import re
from collections.abc import Iterator
from typing import Any

from dapo_cli.config.keys import shown
from dapo_cli.config.ranges import value_problems
from dapo_cli.config.schema import (
    ArithmeticData,
    CorrectionKind,
    DeepspeedLearner,
    GradNormSpike,
    HealthAction,
    Precision,
    PretrainedModel,
    RatioLevel,
    Recipe,
    SamplingConfig,
    SingleLearner,
    Surplus,
    Surrogate,
    TransformersRollout,
    VllmServerRollout,
    ZeroRewardColdStart,
)
from dapo_cli.config.tabular_rules import tabular_rules

LEAST_TEMPERATURE = 0.01  # vLLM's own bound


def problems(recipe: Recipe) -> list[str]:
    """Every broken rule, one line each: keys, values, remedy. Empty for a sound recipe."""
    rules = (
        _objective_rules,
        _batch_rules,
        _sampling_rules,
        _data_rules,
        _rollout_rules,
        _learner_rules,
        tabular_rules,
        _tracking_rules,
        _health_rules,
    )
    return [*value_problems(recipe, ""), *(problem for rule in rules for problem in rule(recipe))]


def section_problems(section: Any, name: str) -> list[str]:
    """The ranges of a section by itself; `name` is its place in a recipe."""
    return list(value_problems(section, f"{name}."))


def _objective_rules(recipe: Recipe) -> Iterator[str]:
    algorithm = recipe.algorithm
    if algorithm.ratio is RatioLevel.sequence and algorithm.surrogate is Surrogate.dynamic_clip:
        yield (
            "algorithm.ratio = sequence with algorithm.surrogate = dynamic_clip: its bounds come from one token's "
            "probability; set ratio to token, or surrogate to clip"
        )
    if algorithm.dual_clip is not None and algorithm.surrogate is Surrogate.cispo:
        yield (
            f"algorithm.dual_clip = {algorithm.dual_clip} with algorithm.surrogate = cispo: the weight's cap is "
            f"1 + clip_high, of either sign of the advantage; set dual_clip to null"
        )


def _batch_rules(recipe: Recipe) -> Iterator[str]:
    step, update = recipe.algorithm.groups_per_step, recipe.algorithm.groups_per_update
    if update > 0 and step % update:
        yield (
            f"algorithm.groups_per_step = {step} is not divisible by algorithm.groups_per_update = {update}: "
            f"a step must be whole updates; change one of them"
        )
    sampler = recipe.sampler
    reach = sampler.max_rounds * sampler.max_prompts_per_round
    if 0 < reach < step:
        yield (
            f"sampler.max_rounds x sampler.max_prompts_per_round = {sampler.max_rounds} x "
            f"{sampler.max_prompts_per_round} = {reach} prompts can never fill algorithm.groups_per_step = {step}; "
            f"raise one of the former or lower the latter"
        )
    if isinstance(recipe.rollout, TransformersRollout):
        most = recipe.rollout.max_batch_completions
        for name, samples in (
            ("algorithm.samples_per_prompt", recipe.algorithm.samples_per_prompt),
            ("eval.samples_per_prompt", recipe.eval.samples_per_prompt),
        ):
            if 0 < most < samples:
                yield (
                    f"rollout.max_batch_completions = {most} is below {name} = {samples}: the completions of one "
                    f"prompt are decoded together; raise the former or lower the latter"
                )
    if sampler.surplus is Surplus.carry and sampler.max_staleness == 0:
        yield (
            "sampler.surplus = carry with sampler.max_staleness = 0 would drop all that it carries; "
            "set max_staleness to at least 1, or surplus to discard"
        )
    solved, hopeless = sampler.skip_solved_above, sampler.skip_hopeless_below
    if solved is not None and hopeless is not None and hopeless >= solved:
        yield (
            f"sampler.skip_hopeless_below = {hopeless} is not below sampler.skip_solved_above = {solved}: every prompt "
            f"would be passed over; lower the former or raise the latter"
        )


def _too_cold(sampling: SamplingConfig, name: str) -> Iterator[str]:
    if 0 < sampling.temperature < LEAST_TEMPERATURE:
        yield (
            f"{name}.temperature = {sampling.temperature}: below {LEAST_TEMPERATURE:g} the logits that it divides "
            "overflow; raise it, or set 0 for greedy evaluation"
        )


def _sampling_rules(recipe: Recipe) -> Iterator[str]:
    sampling, cache = recipe.sampling, recipe.overlong.cache_tokens
    if recipe.overlong.penalty and cache >= sampling.max_tokens:
        yield (
            f"overlong.cache_tokens = {cache} must be below sampling.max_tokens = {sampling.max_tokens}, or every "
            f"completion is punished for its length; lower it, or switch the penalty off by overlong.penalty=false"
        )
    yield from _too_cold(sampling, "sampling")
    yield from _too_cold(recipe.eval.sampling, "eval.sampling")
    if sampling.temperature == 0:
        yield "sampling.temperature = 0: training needs samples that differ; set it above 0 (the paper: 1.0)"
    if sampling.top_p < 1:
        yield (
            f"sampling.top_p = {sampling.top_p}: a cut in training biases the importance ratio; set 1 "
            f"(eval.sampling.top_p may differ)"
        )
    if sampling.top_k > 0:
        yield (
            f"sampling.top_k = {sampling.top_k}: a cut in training biases the importance ratio; set 0 "
            f"(eval.sampling.top_k may differ)"
        )
    if recipe.eval.sampling.temperature == 0 and recipe.eval.samples_per_prompt > 1:
        yield (
            f"eval.samples_per_prompt = {recipe.eval.samples_per_prompt} with eval.sampling.temperature = 0 would give "
            f"the same completion each time; set samples_per_prompt to 1 or the temperature above 0"
        )


def _data_rules(recipe: Recipe) -> Iterator[str]:
    match recipe.model:
        case PretrainedModel(path=path, revision=str(revision)) if path.startswith("shipped:"):
            yield f"model.revision = {revision}: a shipped model has no revisions; delete it"
    for name, data in (("data", recipe.data), ("eval.data", recipe.eval.data)):
        if isinstance(data, ArithmeticData) and data.min_terms > data.max_terms:
            yield f"{name}.min_terms = {data.min_terms} is above {name}.max_terms = {data.max_terms}; lower it"
    match recipe.data, recipe.eval.data:
        case ArithmeticData(held_out=train), ArithmeticData(held_out=evaluation) if train == evaluation:
            yield (
                f"data.held_out and eval.data.held_out are both {shown(train)}: the run would train on its evaluation "
                f"set; change one of them"
            )


def _rollout_rules(recipe: Recipe) -> Iterator[str]:
    rollout = recipe.rollout
    servers = rollout.servers if isinstance(rollout, VllmServerRollout) else []
    for url in dict.fromkeys(servers):
        if not re.fullmatch(r"https?://([\w.-]+|\[[\da-fA-F:]+\]):\d{1,5}/?", url):
            yield f"rollout.servers has {url}: must be http://HOST:PORT, for example http://node1:8000"
        if servers.count(url) > 1:
            yield f"rollout.servers has {url} more than once: each server takes part once; leave the others out"
    if recipe.run.ahead == 0:
        return
    if not isinstance(rollout, VllmServerRollout):
        yield "run.ahead = 1: only rollout=vllm_server generates while the learner works; choose it, or set 0"
    if recipe.correction.kind is CorrectionKind.none:
        yield (
            "run.ahead = 1 with correction.kind = none: completions come from weights one step old, which the loss has "
            "to correct for; set correction.kind=truncated"
        )
    if recipe.sampler.surplus is Surplus.carry:
        yield (
            "run.ahead = 1 with sampler.surplus = carry: the next batch is begun before this one's surplus is known; "
            "set surplus to discard or abort"
        )


def _tracking_rules(recipe: Recipe) -> Iterator[str]:
    for step in recipe.tracking.profile_steps or ():
        if not 1 <= step <= recipe.run.steps:
            yield f"tracking.profile_steps has {step}: steps are 1 to run.steps = {recipe.run.steps}"


def _health_rules(recipe: Recipe) -> Iterator[str]:
    health = recipe.health
    rolling = [name for name, rule in health.rules().items() if rule.action is HealthAction.rollback]
    for name, rule in health.rules().items():
        # A cold start is read from the record of all prompts, not from the window.
        steps = 0 if isinstance(rule, ZeroRewardColdStart) else getattr(rule, "steps", 0)
        needed = steps + 1 if isinstance(rule, GradNormSpike) else steps
        if needed > health.window:
            yield (
                f"health.{name}.steps = {steps} needs a window of {needed} steps, but health.window = {health.window}: "
                "lower the former or raise the latter"
            )
    if "zero_reward_cold_start" in rolling:
        yield (
            "health.zero_reward_cold_start.action = rollback: its signs are there from the first step on, before which "
            "there is no checkpoint; set pause or stop"
        )
    if rolling and recipe.run.ahead:
        yield (
            f"health.{rolling[0]}.action = rollback with run.ahead = {recipe.run.ahead}: the completions of a step "
            "ahead come from the weights that would be left; set run.ahead=0, or the action to stop"
        )
    if rolling and recipe.checkpoint.every >= recipe.run.steps > 0:
        yield (
            f"health.{rolling[0]}.action = rollback with checkpoint.every = {recipe.checkpoint.every} and run.steps = "
            f"{recipe.run.steps}: there would be no checkpoint to go back to; lower checkpoint.every"
        )


def _learner_rules(recipe: Recipe) -> Iterator[str]:
    launch, learner = recipe.launch, recipe.learner
    processes = launch.nodes * launch.processes_per_node
    if processes > 1 and isinstance(learner, SingleLearner):
        yield (
            f"launch.nodes x launch.processes_per_node = {processes} processes, but learners single and tabular are "
            f"one process; choose learner=fsdp or learner=deepspeed"
        )
    if launch.nodes > 1 and launch.rendezvous is None:
        yield (
            f"launch.nodes = {launch.nodes} without launch.rendezvous: nodes find each other there; set it to "
            f"HOST:PORT of one of them, the same on all"
        )
    host, _, port = (launch.rendezvous or "host:1").rpartition(":")
    if not re.fullmatch(r"[\w.-]+|\[[\da-fA-F:]+\]", host) or not port.isdecimal() or not 0 < int(port) < 65_536:
        yield f"launch.rendezvous = {launch.rendezvous}: must be HOST:PORT, for example node1:29400"
    if isinstance(learner, DeepspeedLearner):
        if learner.compute_dtype is Precision.float16:
            yield "learner.compute_dtype = float16: learner deepspeed computes in float32 or bfloat16; choose one"
        if learner.offload_parameters and learner.zero_stage < 3:
            yield (
                f"learner.offload_parameters = true with learner.zero_stage = {learner.zero_stage}: only stage 3 "
                f"splits the weights; set it to 3, or offload_parameters to false"
            )
