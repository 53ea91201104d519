"""Memory of one process by formula: docs/scaling.md's tables, from shapes alone. Bytes throughout.

P, Q, R are the weights of the model, of one layer and of the root, N the processes, c the bytes of the compute type. A
step peaks in its update or in its generation; what stands between them counts in both.
"""

from dataclasses import dataclass

from dapo_cli.config.schema import (
    DeepspeedLearner,
    FsdpLearner,
    Precision,
    Recipe,
    TransformersRollout,
)
from dapo_cli.preflight.shape import ModelShape

DEEPSPEED_BUCKET = 2_000_000_000  # 5e8 float32 values, its default
GATHERED_WEIGHTS = 1_000_000_000  # stage 3 holds at most so many at a time, its default
# On a CPU the peak is that of the process: 450 MB after its imports (measured, docs/preflight.md), and some that the
# allocator keeps.
CPU_PROCESS = 500_000_000
SAMPLING_COPIES = 5  # of the next tokens' float32 logits: scaled, log-probs, probabilities, their running sum


@dataclass(frozen=True)
class Sequences:
    """What a micro-batch and a batch of decoding hold at most: the longest prompt and completion, in tokens; groups of
    an update and their samples; and `wanted`, the completions that a round or an evaluation asks for."""

    prompt: int
    completion: int
    update_groups: int
    samples: int
    wanted: int

    @property
    def longest(self) -> int:
        return self.prompt + self.completion

    def micro_batch(self, budget: int) -> tuple[int, int]:
        """(packed tokens M, tokens of whole rows T) of the largest micro-batch: sequences count with their prompts
        under the budget, but a prompt that several of them share is packed once."""
        count = min(max(1, budget // self.longest), self.update_groups * self.samples)
        prompts = min(count, self.update_groups)
        return count * self.completion + prompts * self.prompt, count * self.longest


@dataclass(frozen=True)
class Memory:
    """Bytes of one process. `kv_token` is what one token takes in the KV cache, `kv_cache` what
    all of `sequences` take there; None where vLLM decides."""

    standing: float
    updating: float
    reference: float
    engine: float
    activations: float
    logits: float
    kv_cache: float | None
    kv_token: float
    sampling: float
    sequences: int
    micro_batch_tokens: int
    process: float

    @property
    def update(self) -> float:
        """Peak of an update."""
        parts = (self.standing, self.updating, self.reference, self.engine, self.activations, self.logits)
        return sum(parts) + self.process

    @property
    def generate(self) -> float | None:
        """Peak of generation with the embedded engine; None where vLLM takes what it is given."""
        if self.kv_cache is None:
            return None
        return self.standing + self.reference + self.engine + self.kv_cache + self.sampling + self.process

    @property
    def peak(self) -> float:
        """Of the step."""
        return max(self.update, self.generate or 0.0)


def plan_memory(recipe: Recipe, shape: ModelShape, sequences: Sequences, *, on_cpu: bool = False) -> Memory:
    """The peak of one process of the run; on a CPU with what the process itself takes."""
    learner, rollout = recipe.learner, recipe.rollout
    size = 4 if learner.compute_dtype is Precision.float32 else 2
    standing, updating = _weights(recipe, shape, size)
    packed, rows = sequences.micro_batch(learner.micro_batch_tokens)
    plain = _shares_weights(recipe)
    kv_token = float(size * 2 * shape.kv_size * shape.layers)
    embedded = isinstance(rollout, TransformersRollout)
    decoded = min(rollout.max_batch_completions, sequences.wanted) if isinstance(rollout, TransformersRollout) else 0
    repeated = size * 2 * shape.hidden * sequences.longest  # one layer's keys and values for all heads
    return Memory(
        standing=standing,
        updating=updating,
        reference=_reference(recipe, shape, size),
        engine=float(size * shape.parameters) if embedded and not plain else 0.0,
        activations=_activations(recipe, shape, packed, rows),
        logits=8.0 * min(learner.logits_chunk_tokens, packed) * shape.vocabulary + _head_gradient(recipe, shape),
        kv_cache=decoded * (kv_token * sequences.longest + repeated) if embedded else None,
        kv_token=kv_token,
        sampling=4.0 * SAMPLING_COPIES * decoded * shape.vocabulary,
        sequences=decoded,
        micro_batch_tokens=packed,
        process=float(CPU_PROCESS) if on_cpu else 0.0,
    )


def processes(recipe: Recipe) -> int:
    return recipe.launch.nodes * recipe.launch.processes_per_node


def _shares_weights(recipe: Recipe) -> bool:
    """Whether the embedded engine decodes with the learner's own module."""
    learner = recipe.learner
    split = isinstance(learner, FsdpLearner | DeepspeedLearner)
    return not split and learner.compute_dtype is Precision.float32 and learner.lora_rank is None


def _weights(recipe: Recipe, shape: ModelShape, size: int) -> tuple[float, float]:
    """Weights, gradients and AdamW's moments: (between updates, more in an update)."""
    learner, n = recipe.learner, processes(recipe)
    whole, trained = float(shape.parameters), float(shape.adapters(learner) or shape.parameters)
    full = learner.lora_rank is None
    if isinstance(learner, FsdpLearner):
        own = 0.0 if learner.cpu_offload else (4 * whole + 8 * trained + (0 if full else 4 * trained)) / n
        around = (8 * shape.root + 12 * shape.layer) if size == 2 else (12 * shape.root + 20 * shape.layer)
        return own, (0.0 if learner.cpu_offload else 4 * trained / n) + around
    if isinstance(learner, DeepspeedLearner):
        return _zero(learner, whole, trained, n, size)
    cast = size * whole if size == 2 else 0.0
    frozen = 0.0 if full else 4 * whole
    return frozen + 12 * trained, 4 * trained + cast


def _zero(learner: DeepspeedLearner, whole: float, trained: float, n: int, size: int) -> tuple[float, float]:
    """By ZeRO's stage; what it divides by N is in host memory with offload."""
    low = size == 2
    moments = 0.0 if learner.offload_optimizer else 12 * trained / n
    if learner.zero_stage == 3:
        weights = 0.0 if learner.offload_parameters else (6 if low else 8) * whole / n
        return moments + weights + DEEPSPEED_BUCKET, size * min(whole, GATHERED_WEIGHTS)
    if learner.zero_stage == 2:
        return (2 if low else 4) * whole + moments, 4 * trained / n + DEEPSPEED_BUCKET
    return (6 if low else 4) * whole + moments, (2 if low else 4) * trained + DEEPSPEED_BUCKET


def _reference(recipe: Recipe, shape: ModelShape, size: int) -> float:
    """The starting weights of a KL term; adapters leave them in the policy."""
    learner, n = recipe.learner, processes(recipe)
    if recipe.algorithm.kl_coefficient == 0 or learner.lora_rank is not None:
        return 0.0
    if isinstance(learner, FsdpLearner):
        return 4.0 * shape.parameters / n
    if isinstance(learner, DeepspeedLearner):
        return size * shape.parameters / (n if learner.zero_stage == 3 else 1)
    return 4.0 * shape.parameters


def _activations(recipe: Recipe, shape: ModelShape, packed: int, rows: int) -> float:
    """A layer's own (A), its attention's rows (B), its input (D) and gradients under way (E)."""
    learner, h, f, k = recipe.learner, shape.hidden, shape.intermediate, shape.kv_size
    if learner.compute_dtype is Precision.float32:
        layer, attention, entry, gradients = 28 * h + 16 * f, 8 * h + 8 * k, 4 * h, 8 * h + 8 * f
    elif isinstance(learner, FsdpLearner | DeepspeedLearner):
        layer, attention, entry, gradients = 18 * h + 8 * f, 4 * h + 4 * k, 2 * h, 4 * h + 4 * f
    else:
        layer, attention, entry, gradients = 30 * h + 8 * f, 4 * h + 4 * k, 4 * h, 4 * h + 4 * f
    one = packed * layer + rows * attention
    kept = shape.layers * packed * entry + one if learner.activation_checkpointing else shape.layers * one
    return float(kept + packed * gradients)


def _head_gradient(recipe: Recipe, shape: ModelShape) -> float:
    """Float32, made with the logits; FSDP's is counted with its whole root, that of adapters does not exist."""
    if isinstance(recipe.learner, FsdpLearner) or recipe.learner.lora_rank is not None:
        return 0.0
    return 4.0 * shape.vocabulary * shape.hidden
