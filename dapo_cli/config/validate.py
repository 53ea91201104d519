"""Rules that a type cannot say: ranges of single keys, and rules between keys. Imports no torch, reads no file."""

import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from dapo_cli.config.keys import shown
from dapo_cli.config.schema import (
    ArithmeticData,
    CorrectionKind,
    DeepspeedLearner,
    Precision,
    PretrainedModel,
    RatioLevel,
    Recipe,
    RewardConfig,
    SingleLearner,
    Surplus,
    Surrogate,
    TransformersRollout,
    VllmServerRollout,
)
from dapo_cli.config.tabular_rules import tabular_rules


@dataclass(frozen=True)
class Range:
    """The numbers allowed; `above` and `below` leave out the bound itself."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        said = [f"{words} {bound}" for words, bound in bounds.items() if bound is not None]
        return " and ".join(said) or "a finite number"


POSITIVE = Range(above=0)
COUNT = Range(at_least=1)
COUNT_OR_OFF = Range(at_least=0)
SEED = Range(at_least=0, at_most=2**63 - 1)
FRACTION_BELOW_ONE = Range(at_least=0, below=1)

# Every number of the schema, by class and field. A test holds this table against schema.py.
RANGES: dict[str, Range] = {
    "RunConfig.seed": SEED,
    "RunConfig.steps": Range(at_least=1, at_most=10**9),
    "RunConfig.budget_rollouts": COUNT,
    "RunConfig.budget_seconds": POSITIVE,
    "RunConfig.threads": Range(at_least=1, at_most=1024),
    "RunConfig.ahead": Range(at_least=0, at_most=1),
    "TabularModel.prompts": Range(at_least=1, at_most=10**6),
    "TabularModel.answers": Range(at_least=2, at_most=10**5),
    "TabularModel.seed": SEED,
    "TabularModel.logit_std": COUNT_OR_OFF,
    "TabularModel.wrong_bonus": Range(),
    "TabularModel.shift_low": Range(),
    "TabularModel.shift_high": Range(),
    "DataConfig.max_prompt_tokens": COUNT,
    "ArithmeticData.prompts": Range(at_least=1, at_most=10**6),
    "ArithmeticData.seed": SEED,
    "ArithmeticData.min_terms": Range(at_least=2),
    "ArithmeticData.max_terms": Range(at_least=2),
    "SamplingConfig.temperature": COUNT_OR_OFF,
    "SamplingConfig.top_p": Range(above=0, at_most=1),
    "SamplingConfig.top_k": COUNT_OR_OFF,
    "SamplingConfig.max_tokens": COUNT,
    "TransformersRollout.max_batch_completions": COUNT,
    "VllmRollout.canary_prompts": COUNT_OR_OFF,
    "VllmRollout.canary_tolerance": POSITIVE,
    "VllmRollout.tensor_parallel": Range(at_least=1, at_most=1024),
    "VllmRollout.max_batch_completions": COUNT,
    "VllmRollout.kv_cache_mib": COUNT,
    "VllmRollout.gpu_memory_share": Range(above=0, at_most=1),
    "VllmServerRollout.silence_s": POSITIVE,
    "RewardConfig.workers": Range(at_least=1, at_most=256),
    "RewardConfig.timeout_s": POSITIVE,
    "RewardConfig.memory_limit_mib": Range(at_least=256),
    "RewardConfig.failed_reward": Range(at_least=-1, at_most=1),
    "RewardConfig.alarm_failed_share": Range(at_least=0, at_most=1),
    "OverlongConfig.cache_tokens": COUNT,
    "AlgorithmConfig.samples_per_prompt": Range(at_least=2),
    "AlgorithmConfig.groups_per_step": COUNT,
    "AlgorithmConfig.groups_per_update": COUNT,
    "AlgorithmConfig.passes": COUNT,
    "AlgorithmConfig.clip_low": FRACTION_BELOW_ONE,
    "AlgorithmConfig.clip_high": POSITIVE,
    "AlgorithmConfig.dual_clip": Range(above=1),
    "AlgorithmConfig.kl_coefficient": COUNT_OR_OFF,
    "CorrectionConfig.cap": POSITIVE,
    "CorrectionConfig.mask_low": FRACTION_BELOW_ONE,
    "CorrectionConfig.mask_high": Range(above=1),
    "SamplerConfig.max_rounds": COUNT,
    "SamplerConfig.max_prompts_per_round": COUNT,
    "SamplerConfig.oversample": Range(at_least=1),
    "SamplerConfig.initial_yield": Range(above=0, at_most=1),
    "SamplerConfig.yield_memory": FRACTION_BELOW_ONE,
    "SamplerConfig.max_staleness": COUNT_OR_OFF,
    "SamplerConfig.skip_solved_above": Range(above=0, at_most=1),
    "SamplerConfig.skip_hopeless_below": FRACTION_BELOW_ONE,
    "SamplerConfig.revisit_after": COUNT,
    "OptimizerConfig.lr": POSITIVE,
    "OptimizerConfig.warmup_steps": COUNT_OR_OFF,
    "OptimizerConfig.weight_decay": COUNT_OR_OFF,
    "OptimizerConfig.beta1": FRACTION_BELOW_ONE,
    "OptimizerConfig.beta2": FRACTION_BELOW_ONE,
    "OptimizerConfig.max_grad_norm": POSITIVE,
    "LearnerConfig.micro_batch_tokens": COUNT,
    "LearnerConfig.logits_chunk_tokens": COUNT,
    "LearnerConfig.lora_rank": Range(at_least=1, at_most=4096),
    "LearnerConfig.lora_alpha": POSITIVE,
    "DeepspeedLearner.zero_stage": Range(at_least=1, at_most=3),
    "LaunchConfig.processes_per_node": Range(at_least=1, at_most=1024),
    "LaunchConfig.nodes": Range(at_least=1, at_most=10**5),
    "LaunchConfig.max_restarts": COUNT_OR_OFF,
    "EvalConfig.every": COUNT_OR_OFF,
    "EvalConfig.samples_per_prompt": COUNT,
    "CheckpointConfig.every": COUNT,
    "CheckpointConfig.keep": COUNT,
    "TrackingConfig.rollouts_per_step": COUNT_OR_OFF,
}

# What to say beyond the range where the reason is not plain from the key's meaning.
REASONS = {
    "AlgorithmConfig.samples_per_prompt": "a group of one has no mean to differ from",
    "AlgorithmConfig.dual_clip": "null switches it off",
    "OverlongConfig.cache_tokens": "overlong.penalty=false switches the penalty off",
    "RewardConfig.memory_limit_mib": "null sets no limit; a worker with sympy takes about 200",
    "LearnerConfig.lora_rank": "null trains all weights",
    "RunConfig.budget_rollouts": "null sets no limit",
    "RunConfig.budget_seconds": "null sets no limit",
    "RunConfig.threads": "null leaves torch's choice",
    "SamplerConfig.oversample": "1 asks for exactly what the expected yield calls for",
}


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
    )
    return [*_value_problems(recipe, ""), *(problem for rule in rules for problem in rule(recipe))]


def section_problems(section: Any, name: str) -> list[str]:
    """The ranges of a section by itself; `name` is its place in a recipe."""
    return list(_value_problems(section, f"{name}."))


def reward_problems(reward: RewardConfig) -> list[str]:
    """The same for a reward section by itself."""
    return section_problems(reward, "reward")


def _value_problems(section: Any, prefix: str) -> Iterator[str]:
    for field in fields(section):
        value, name = getattr(section, field.name), prefix + field.name
        if is_dataclass(value):
            yield from _value_problems(value, f"{name}.")
        elif isinstance(value, str) and not value.strip():
            yield f"{name} = '': must not be empty"
        elif isinstance(value, list) and not value:
            yield f"{name} = []: must not be empty"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            table_key = range_key(type(section), field.name)
            if value not in RANGES[table_key]:
                reason = f" ({REASONS[table_key]})" if table_key in REASONS else ""
                yield f"{name} = {value}: must be {RANGES[table_key]}{reason}"


def range_key(owner: type, field_name: str) -> str:
    """The table's key of a field: the class that first declares it, so that options inherit their base's range."""
    declaring = [cls for cls in owner.__mro__ if field_name in inspect.get_annotations(cls)]
    return f"{declaring[-1].__name__}.{field_name}"


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


def _sampling_rules(recipe: Recipe) -> Iterator[str]:
    sampling, cache = recipe.sampling, recipe.overlong.cache_tokens
    if recipe.overlong.penalty and cache >= sampling.max_tokens:
        yield (
            f"overlong.cache_tokens = {cache} must be below sampling.max_tokens = {sampling.max_tokens}, or every "
            f"completion is punished for its length; lower it, or switch the penalty off by overlong.penalty=false"
        )
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
