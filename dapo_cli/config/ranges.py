"""The numbers that single keys may hold. Imports no torch, reads no file."""

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


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
    "HealthConfig.window": Range(at_least=4, at_most=1000),
    "HealthConfig.rollback_lr_factor": Range(above=0, at_most=1),
    "HealthConfig.max_rollbacks": COUNT,
    "EntropyCollapse.entropy_left": Range(above=0, below=1),
    "EntropyCollapse.zero_variance_rise": FRACTION_BELOW_ONE,
    "EntropyCollapse.max_accuracy": Range(above=0, at_most=1),
    "EntropyExplosion.entropy_growth": Range(above=1),
    "EntropyExplosion.ngram_rise": FRACTION_BELOW_ONE,
    "ResamplingSpiral.informative_rate": FRACTION_BELOW_ONE,
    "ResamplingSpiral.steps": COUNT,
    "LengthRunaway.mean_penalty": FRACTION_BELOW_ONE,
    "LengthRunaway.in_buffer_rise": Range(above=0, at_most=1),
    "LengthRunaway.steps": COUNT,
    "VerifierFailures.failed_share": FRACTION_BELOW_ONE,
    "MismatchDrift.mean_abs": POSITIVE,
    "MismatchDrift.kl": POSITIVE,
    "MismatchDrift.steps": COUNT,
    "GradNormSpike.factor": Range(above=1),
    "GradNormSpike.steps": COUNT,
    "ZeroRewardColdStart.steps": COUNT,
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


def value_problems(section: Any, prefix: str) -> Iterator[str]:
    """Each number out of its range and each empty text or list, a line each; `prefix` is the section's place."""
    for field in fields(section):
        value, name = getattr(section, field.name), prefix + field.name
        if is_dataclass(value):
            yield from value_problems(value, f"{name}.")
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
