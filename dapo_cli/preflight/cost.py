"""FLOPs of a step, counted as `learner.flops` counts them, and what GPUs of several sizes have room for."""

from dataclasses import dataclass

from dapo_cli.config.schema import Precision, Recipe, TransformersRollout, VllmColocatedRollout, VllmRollout
from dapo_cli.learner.flops import UPDATE, UPDATE_OF_ADAPTERS
from dapo_cli.preflight.batch import BatchPlan
from dapo_cli.preflight.findings import Finding, Level
from dapo_cli.preflight.memory import Memory, Sequences
from dapo_cli.preflight.shape import ModelShape
from dapo_cli.rollout.vllm_settings import ALONE_GPU_SHARE, COLOCATED_GPU_SHARE

GPU_GB = (24, 48, 80, 141)
USABLE = 0.9  # of a GPU; the rest is for CUDA, NCCL and fragmentation, as docs/scaling.md plans


@dataclass(frozen=True)
class StepFlops:
    """Model FLOPs of one step over all processes, at the plan's mean lengths."""

    generate: float
    score: float
    update: float

    @property
    def total(self) -> float:
        return self.generate + self.score + self.update


def step_flops(recipe: Recipe, shape: ModelShape, plan: BatchPlan) -> StepFlops:
    """Prompts are read once a group; a reference model scores once more."""
    prompt, mean = plan.prompt_tokens, plan.mean_tokens
    pairs = (prompt + mean) * (prompt + mean + 1) / 2

    def forward(groups: int, completions: int) -> float:
        per_token = shape.flops_token + shape.flops_head
        return groups * prompt * shape.flops_token + completions * (mean * per_token + pairs * shape.flops_pair)

    once = forward(plan.groups, plan.completions)
    backward = UPDATE if recipe.learner.lora_rank is None else UPDATE_OF_ADAPTERS
    return StepFlops(
        generate=forward(plan.prompts_tried, plan.completions_generated),
        score=once * (2 if recipe.algorithm.kl_coefficient > 0 else 1),
        update=once * backward * plan.passes,
    )


@dataclass(frozen=True)
class GpuFit:
    """Of a GPU with so many GB (10^9 bytes): what does not fit beside what CUDA needs, and how many whole sequences the
    KV cache has room for."""

    gb: int
    lacking: tuple[str, ...]
    sequences: int

    @property
    def fits(self) -> bool:
        return not self.lacking


def gpu_fits(recipe: Recipe, shape: ModelShape, memory: Memory, sequences: Sequences) -> list[GpuFit]:
    """For GPUs of several sizes."""
    return [_fit(recipe, shape, memory, sequences, gb) for gb in GPU_GB]


def _fit(recipe: Recipe, shape: ModelShape, memory: Memory, sequences: Sequences, gb: int) -> GpuFit:
    usable = USABLE * gb * 1e9
    rollout = recipe.rollout
    beside_cuda = f"of {usable / 1e9:,.0f} GB beside CUDA"
    update = memory.update - memory.process
    lacking = [f"an update takes {update / 1e9:,.0f} GB, {beside_cuda}"] if update > usable else []
    if isinstance(rollout, TransformersRollout):
        beside = memory.standing + memory.reference + memory.engine + memory.sampling
        room = int(max(0.0, usable - beside) // (memory.kv_token * sequences.longest))
        generate = (memory.generate or 0.0) - memory.process
        if generate > usable:
            lacking.append(f"generation takes {generate / 1e9:,.0f} GB, {beside_cuda}")
        return GpuFit(gb, tuple(lacking), room)
    assert isinstance(rollout, VllmRollout), "a table has no memory to plan"
    colocated = isinstance(rollout, VllmColocatedRollout)
    share = rollout.gpu_memory_share or (COLOCATED_GPU_SHARE if colocated else ALONE_GPU_SHARE)
    size = 4 if (rollout.dtype or recipe.learner.compute_dtype) is Precision.float32 else 2
    learner_size = 4 if recipe.learner.compute_dtype is Precision.float32 else 2
    kv_token = memory.kv_token * size / learner_size
    spare = share * gb * 1e9 * rollout.tensor_parallel - size * shape.parameters
    count = int(max(0.0, spare) // (kv_token * sequences.longest))
    if count == 0:
        lacking.append(f"the KV cache has no room for a whole sequence of {sequences.longest:,} tokens")
    held = (memory.standing + memory.reference) / 1e9
    if colocated and share * gb + held > gb:
        lacking.append(
            f"vLLM's share of {share * gb:,.1f} GB and the {held:,.1f} GB that the learner holds while it generates "
            f"are more than {gb} GB"
        )
    return GpuFit(gb, tuple(lacking), count)


def fit_finding(fits: list[GpuFit]) -> Finding | None:
    """A process that fits none of these GPUs, with what does not fit the largest."""
    if any(fit.fits for fit in fits):
        return None
    largest = fits[-1]
    problem = f"a process does not fit a GPU of {largest.gb} GB: by formula {'; '.join(largest.lacking)}"
    remedy = (
        "take more processes (launch) with learner=fsdp_bf16, rollout=vllm_colocated with more "
        "rollout.tensor_parallel, or lower learner.micro_batch_tokens, rollout.gpu_memory_share or sampling.max_tokens"
    )
    return Finding(Level.WARNING, "memory", "", problem, remedy)
