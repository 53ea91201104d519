"""Every key of a recipe: type, default, unit, meaning, and its section of the DAPO paper (arXiv:2503.14476).

Defaults live here and nowhere else. The comment above a field is its documentation: `dapo recipe keys` and the
reference page are generated from this file. Sections whose choice changes the keys (`data`, `rollout`, `reward`,
`learner`) are option groups: a recipe picks one in its `defaults` list, and each option is a subclass here. `model` is
one that a recipe may leave out: its field's default is the option taken then.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

# OmegaConf's mark of a value that a recipe must give. Spelled out, so that learners need no more than torch.
MISSING: Any = "???"


class Instruction(Enum):
    none = "none"
    authors = "authors"


class Advantage(Enum):
    group_std = "group_std"
    mean = "mean"
    leave_one_out = "leave_one_out"
    batch_std = "batch_std"
    smoothed = "smoothed"


class OnCap(Enum):
    train_short = "train_short"
    stop = "stop"


class Surplus(Enum):
    discard = "discard"
    carry = "carry"
    abort = "abort"


class Precision(Enum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Surrogate(Enum):
    clip = "clip"
    dynamic_clip = "dynamic_clip"
    cispo = "cispo"
    aspo = "aspo"


class RatioLevel(Enum):
    token = "token"
    sequence = "sequence"


class Aggregation(Enum):
    token_mean = "token_mean"
    prompt_mean = "prompt_mean"
    sequence_mean = "sequence_mean"
    sequence_sum = "sequence_sum"
    constant = "constant"


class CorrectionKind(Enum):
    none = "none"
    truncated = "truncated"
    masked = "masked"


class CorrectionLevel(Enum):
    token = "token"
    sequence = "sequence"


class HealthAction(Enum):
    """In the order of their severity: of alarms that begin in the same step, the severest one's is taken."""

    off = "off"
    note = "note"
    checkpoint = "checkpoint"
    pause = "pause"
    stop = "stop"
    rollback = "rollback"


class WandbMode(Enum):
    disabled = "disabled"
    offline = "offline"
    online = "online"


@dataclass
class RunConfig:
    # Run folder; relative to the working directory.
    dir: str = MISSING
    # Seed of everything random: prompt order, sampling noise, evaluation.
    seed: int = 0
    # Training steps (rollout steps in the paper's words).
    steps: int = MISSING
    # The run ends with the step in which so many completions have been judged, if not by run.steps before; null sets no
    # limit.
    budget_rollouts: int | None = None
    # The run ends with the step in which so many seconds of training have passed, evaluations and checkpoints left out,
    # if not by run.steps before; null sets no limit.
    budget_seconds: float | None = None
    # true refuses to start while the checkout that the code runs from has uncommitted changes; the files are named.
    require_clean: bool = False
    # CPU threads of this process; null leaves torch's own choice.
    threads: int | None = None
    # 1 generates a step's completions while the step before trains, by weights that are one step older; needs rollout
    # vllm_server and a correction.
    ahead: int = 0


@dataclass
class ModelConfig:
    pass


@dataclass
class PretrainedModel(ModelConfig):
    # Hugging Face folder, hub id, or `shipped:NAME` for a model inside this package.
    path: str = MISSING
    # Hub revision (branch, tag or commit); recorded as a commit hash in the manifest.
    revision: str | None = None


@dataclass
class TabularModel(ModelConfig):
    # Rows of the table, each a prompt: its logits are a policy over answers of one token.
    prompts: int = 512
    # Columns of the table, the answers of a prompt; one is right.
    answers: int = 20
    # Seed of the first logits; `${run.seed}` gives each seed of a run a table of its own.
    seed: int = 0
    # Standard deviation of the first logits, around 0.
    logit_std: float = 0.5
    # Added to the logit of one wrong answer of each prompt.
    wrong_bonus: float = 3.0
    # Least that the right answer's logit is shifted by; uniform up to shift_high.
    shift_low: float = -1.5
    # Most that the right answer's logit is shifted by.
    shift_high: float = 2.5


@dataclass
class DataConfig:
    # Text around the question: none, or the paper authors' ("... The last line of your response should be of the form
    # Answer: ...").
    instruction: Instruction = Instruction.none
    # Wrap the prompt in the model's chat template.
    chat_template: bool = True
    # Longer prompts are dropped and counted; tokens, template included.
    max_prompt_tokens: int = 2048


@dataclass
class ArithmeticData(DataConfig):
    # Different prompts to make.
    prompts: int = 4096
    # Which side of the fixed split to draw from; the two never share a problem.
    held_out: bool = False
    # Seed of the problems; apart from run.seed, so that seeds of a run share their data.
    seed: int = 0
    # Fewest terms of a sum: the grade of difficulty; at least 2.
    min_terms: int = 2
    # Most terms of a sum.
    max_terms: int = 7


@dataclass
class FilesData(DataConfig):
    # Parquet, JSON, JSONL or CSV files, or one folder written by `datasets.save_to_disk`; relative to the working
    # directory.
    paths: list[str] = MISSING
    # Column of the question; null finds prompt, question or problem.
    prompt_column: str | None = None
    # Column of the reference answer; null finds answer, solution, ground_truth or reward_model.ground_truth.
    answer_column: str | None = None


@dataclass
class HubData(DataConfig):
    # Data set id on the Hugging Face hub.
    id: str = MISSING
    # Configuration (subset) name.
    config: str | None = None
    # Split name.
    split: str = "train"
    # Branch, tag or commit; recorded as a commit hash in the manifest.
    revision: str | None = None
    # Column of the question; null finds it as for data files.
    prompt_column: str | None = None
    # Column of the reference answer; null finds it as for data files.
    answer_column: str | None = None


@dataclass
class TabularData(DataConfig):
    pass


@dataclass
class SamplingConfig:
    # Divides the logits; 0 is greedy (evaluation only). Section 4.1: 1.0.
    temperature: float = 1.0
    # Nucleus share; below 1 the importance ratio is biased, so training requires 1.
    top_p: float = 1.0
    # Most likely tokens kept; 0 keeps all, and training requires 0.
    top_k: int = 0
    # L_max of Eq. 13: completions stop here; tokens, end of sequence included. Section 4.1: 20480.
    max_tokens: int = 20480


@dataclass
class RolloutConfig:
    pass


@dataclass
class TransformersRollout(RolloutConfig):
    # Completions decoded at a time; bounds the memory of the KV cache.
    max_batch_completions: int = 256


@dataclass
class TabularRollout(RolloutConfig):
    pass


@dataclass
class VllmRollout(RolloutConfig):
    # Prompts that the engine completes after each weight sync, to compare its log-probs with the learner's; 0 for none.
    canary_prompts: int = 4
    # Mean difference of these log-probs above which the run stops, in nats; null takes 1e-4 where both compute in
    # float32, else 0.05.
    canary_tolerance: float | None = None
    # Type the engine computes in; null takes learner.compute_dtype.
    dtype: Precision | None = None
    # Processes that share an engine, its weights split over them; colocated, it divides the number of ranks.
    tensor_parallel: int = 1
    # Completions decoded at a time.
    max_batch_completions: int = 256
    # KV cache of a process; MiB. null: on a GPU what gpu_memory_share leaves beside the weights, on a CPU 1024.
    kv_cache_mib: int | None = None
    # Share of a GPU's memory that the engine may take, above 0 to 1; null takes 0.5 colocated, 0.9 for a server.
    gpu_memory_share: float | None = None
    # Decode by CUDA graphs, on GPUs: faster, for a longer start and some memory.
    cuda_graphs: bool = True


@dataclass
class VllmColocatedRollout(VllmRollout):
    # Free the engine's weights and KV cache while the learner works, on GPUs.
    sleep: bool = True


@dataclass
class VllmServerRollout(VllmRollout):
    # Where `dapo serve RECIPE` runs: http://HOST:PORT of each server.
    servers: list[str] = MISSING
    # A server that says nothing for so long, not even that it is well, is given up; seconds.
    silence_s: float = 60.0


@dataclass
class RewardConfig:
    # Verifier worker processes.
    workers: int = 2
    # Hard limit for one verdict, after which its worker is killed and the outcome is `failed`; seconds.
    timeout_s: float = 5.0
    # Address space of one worker; a case that exceeds it counts as `failed`; MiB. null sets no limit.
    memory_limit_mib: int | None = 2048
    # Eq. 7's reward of a completion whose verification failed.
    failed_reward: float = -1.0


@dataclass
class MathReward(RewardConfig):
    pass


@dataclass
class AuthorsReward(RewardConfig):
    pass


@dataclass
class StrictBoxedReward(RewardConfig):
    pass


@dataclass
class PythonReward(RewardConfig):
    # Python file with your own verifier; relative to the working directory.
    path: str = MISSING
    # Function of that file, called with the texts (prompt, completion, answer); it returns a bool or a Verdict.
    function: str = "verify"


@dataclass
class OverlongConfig:
    # Add Eq. 13's soft penalty to the reward.
    penalty: bool = True
    # L_cache of Eq. 13: the soft penalty grows over the last so many tokens before max_tokens. Section 4.1: 4096.
    cache_tokens: int = 4096
    # Leave truncated completions out of the loss (section 3.4); they still count in the group's mean and deviation.
    filter_truncated: bool = False


@dataclass
class AlgorithmConfig:
    # G, completions of one prompt. Section 4.1: 16.
    samples_per_prompt: int = 16
    # Groups trained on in a step. Section 4.1: 512.
    groups_per_step: int = 512
    # Groups of one optimizer update. Section 4.1: 512 responses, which is 32 groups of 16.
    groups_per_update: int = 32
    # Times that a step's batch is gone through, its updates each time; pi_old stays that of before the first.
    passes: int = 1
    # A of Eq. 9: over the group's deviation (the paper); the mean alone subtracted (Dr. GRPO); the mean of the others
    # (RLOO); over the whole batch's deviation (ScaleRL); or smoothed over a prompt's visits (DCPO). docs/algorithms.md.
    advantage: Advantage = Advantage.group_std
    # How the ratio bounds a token's loss: clipped (Eq. 10), clipped by bounds that depend on pi_old (DCPO), as a capped
    # weight of log pi (CISPO), or flipped where the advantage is positive (ASPO). docs/algorithms.md has each formula.
    surrogate: Surrogate = Surrogate.clip
    # The ratio is each token's own (Eq. 8), or its completion's, exp of the mean of log r (GSPO, arXiv:2507.18071).
    ratio: RatioLevel = RatioLevel.token
    # How token losses make a mini-batch's loss: by their mean (Eq. 12); their mean within each prompt, or each
    # completion, then the mean of these; within each completion, summed for each prompt, then the mean over prompts
    # (DCPO); or their sum over completions x sampling.max_tokens (Dr. GRPO).
    aggregation: Aggregation = Aggregation.token_mean
    # epsilon_low of Eq. 10: the ratio is clipped to [1 - low, 1 + high]. Section 4.1: 0.2. cispo has no lower bound.
    clip_low: float = 0.2
    # epsilon_high of Eq. 10. Section 4.1: 0.28. With cispo a token's weight is capped at 1 + high.
    clip_high: float = 0.28
    # c of dual clip: bounds the loss of a negative advantage at c times its size; null is off. The authors' script: 10.
    # dynamic_clip's upper bound (DCPO: 10) and aspo's flipped ratio (ASPO: 3) are never above it, either.
    dual_clip: float | None = None
    # beta, times k3 to a reference model, the weights that the run started from; 0 keeps no such model (section 2.3).
    # GRPO (arXiv:2402.03300): 0.04.
    kl_coefficient: float = 0.0


@dataclass
class CorrectionConfig:
    # Weight each token's loss by the learner's probability over the engine's: not at all (the paper), truncated at
    # `cap`, or masked where it is outside of mask_low to mask_high.
    kind: CorrectionKind = CorrectionKind.none
    # The weight is each token's own, or that of its whole completion.
    level: CorrectionLevel = CorrectionLevel.token
    # Most a truncated weight may be. TIS (Yao et al. 2025): 2.
    cap: float = 2.0
    # Masked: weights below leave the loss. IcePop (Zhao et al. 2025): 0.5.
    mask_low: float = 0.5
    # Masked: weights above leave the loss. IcePop: 5.
    mask_high: float = 5.0


@dataclass
class SamplerConfig:
    # Eq. 11: keep only groups with 0 < correct < G. False trains on every group.
    dynamic: bool = True
    # Try more prompts in place of groups that Eq. 11 drops. False trains on what is left of groups_per_step prompts
    # (ScaleRL's zero-variance filtering).
    refill: bool = True
    # Rounds of generation in one step at most.
    max_rounds: int = 10
    # Prompts of one round at most. The authors' script: 1536, three times the batch.
    max_prompts_per_round: int = 1536
    # A round asks for this many times the prompts that the expected yield calls for.
    oversample: float = 1.1
    # Expected share of informative groups before the first round, 0 to 1.
    initial_yield: float = 0.5
    # Weight of past rounds in the running yield after each round, 0 to 1.
    yield_memory: float = 0.7
    # At max_rounds with too few groups: train on what there is (exact normaliser), or stop the run resumably.
    on_cap: OnCap = OnCap.train_short
    # Groups beyond the batch: thrown away (the paper), trained on in the next steps, or aborted as soon as those before
    # them fill it; then their prompts come again.
    surplus: Surplus = Surplus.discard
    # Carried groups older than this are dropped and counted; steps.
    max_staleness: int = 1
    # A prompt whose last pass rate was this or above is passed over for a while; null passes over none. ScaleRL: 0.9.
    skip_solved_above: float | None = None
    # A prompt whose last pass rate was this or below is passed over for a while; null passes over none.
    skip_hopeless_below: float | None = None
    # Epochs for which such a prompt is passed over before it comes again.
    revisit_after: int = 3


@dataclass
class OptimizerConfig:
    # AdamW's learning rate after warm-up, plain gradient descent's with learner tabular. Section 4.1: 1e-6.
    lr: float = 1e-6
    # Linear warm-up, in steps (not updates). Section 4.1: 20.
    warmup_steps: int = 20
    # Decoupled weight decay; 0 with learner tabular. The authors' script: 0.1.
    weight_decay: float = 0.1
    # AdamW's decay of the running mean of gradients.
    beta1: float = 0.9
    # AdamW's decay of the running mean of squared gradients.
    beta2: float = 0.999
    # Gradients are scaled down to this global norm. The authors' script: 1.0.
    max_grad_norm: float = 1.0


@dataclass
class LearnerConfig:
    # Tokens of one micro-batch: bounds the memory of activations.
    micro_batch_tokens: int = 16384
    # Tokens whose logits exist at a time: bounds logits memory to this many rows of the vocabulary.
    logits_chunk_tokens: int = 512
    # Type of the forward and backward pass; weights, their updates and reductions over ranks stay float32.
    compute_dtype: Precision = Precision.float32
    # Compute logits in float32 whatever compute_dtype is (ScaleRL, arXiv:2510.13786).
    fp32_head: bool = False
    # Keep only each layer's input for the backward pass and compute the rest again: less memory, about a third more
    # time.
    activation_checkpointing: bool = False
    # Liger's fused kernels for norms, rotary embedding and MLP; on GPUs only.
    liger_kernels: bool = False
    # Train low-rank adapters of this rank instead of all weights; null trains all.
    lora_rank: int | None = None
    # Adapters count by lora_alpha / lora_rank.
    lora_alpha: int = 32


@dataclass
class SingleLearner(LearnerConfig):
    pass


@dataclass
class TabularLearner(SingleLearner):
    pass


@dataclass
class FsdpLearner(LearnerConfig):
    # Keep weights, gradients and optimizer state in host memory between uses.
    cpu_offload: bool = False


@dataclass
class DeepspeedLearner(LearnerConfig):
    # What ZeRO splits over ranks: 1 optimizer state, 2 gradients too, 3 weights too.
    zero_stage: int = 2
    # Keep optimizer state, and update weights, in host memory.
    offload_optimizer: bool = False
    # Keep weights in host memory between uses; stage 3 only.
    offload_parameters: bool = False


@dataclass
class LaunchConfig:
    # Processes on each node, one a GPU; more than one, or more nodes, need learner fsdp or deepspeed.
    processes_per_node: int = 1
    # Nodes; the same command is started once on each.
    nodes: int = 1
    # HOST:PORT of one of the nodes, the same on all, by which they find each other; needed for more than one node.
    rendezvous: str | None = None
    # Times that all processes are started again, from the last checkpoint, after one of them failed.
    max_restarts: int = 0


@dataclass
class EvalConfig:
    # Held-out prompts (an option group, `data@eval.data: ...`); null never evaluates. A table is evaluated without: its
    # accuracy is a sum over its answers.
    data: DataConfig | None = None
    # Steps between evaluations, besides the first and the last; 0 for those two alone.
    every: int = 0
    # k, completions of one prompt; the figure is avg@k.
    samples_per_prompt: int = 1
    sampling: SamplingConfig = field(default_factory=SamplingConfig)


@dataclass
class CheckpointConfig:
    # Steps between checkpoints; 1 loses at most the current step.
    every: int = 1
    # Newest checkpoints kept.
    keep: int = 2


@dataclass
class TrackingConfig:
    # Judged completions stored in rollouts/ per step.
    rollouts_per_step: int = 16
    # Steps whose trace by torch's profiler goes into profile/, one file a rank; null for none.
    profile_steps: list[int] | None = None
    # Weights & Biases: not at all, into a local folder, or live.
    wandb: WandbMode = WandbMode.disabled
    # Weights & Biases project.
    wandb_project: str = "dapo"


@dataclass
class HealthRule:
    # What an alarm does when it begins: off never looks; note says it; checkpoint also saves the step, for good (but
    # for a rollback to before it); pause saves and waits until the file `paused` in the run folder is removed; stop
    # saves and ends the run, which the same command goes on with; rollback returns to the last checkpoint of before
    # the signs. docs/health.md.
    action: HealthAction = HealthAction.note


@dataclass
class EntropyCollapse(HealthRule):
    # Alarm where policy/entropy falls to this share of what it was in the window, while zero_variance_rise holds, too.
    # Learning lowers it as well: within a window of the quickstart to 0.56 at least.
    entropy_left: float = 0.5
    # Least rise of the share of judged groups that are all right or all wrong, 0 to 1: they teach nothing.
    zero_variance_rise: float = 0.1
    # Above this judged/accuracy there is no alarm: a policy that has solved its data may be sure.
    max_accuracy: float = 0.9


@dataclass
class EntropyExplosion(HealthRule):
    # Alarm where policy/entropy grows to so many times what it was in the window, while ngram_rise holds, too.
    entropy_growth: float = 1.5
    # Least rise of repetition/ngram_share in the window, 0 to 1: text that repeats itself, not exploration.
    ngram_rise: float = 0.02


@dataclass
class ResamplingSpiral(HealthRule):
    # Alarm where sampler/informative_rate is at most this: at 0.2 five prompts are generated for each one used.
    informative_rate: float = 0.2
    # Steps in a row for which it must be: one step with a hard draw of prompts is none.
    steps: int = 3


@dataclass
class LengthRunaway(HealthRule):
    # Alarm where the mean of Eq. 13 takes more than this off the reward, for `steps` in a row; 1 is a right answer's.
    mean_penalty: float = 0.1
    # Alarm, too, where length/in_buffer rises by this within the window, 0 to 1; without Eq. 13, judged/truncated.
    in_buffer_rise: float = 0.1
    # Steps in a row for which the penalty must be above mean_penalty: a first step of a base model may well be.
    steps: int = 3


@dataclass
class VerifierFailures(HealthRule):
    # Alarm where more than this share of a step's verdicts failed, 0 to 1: each of them is a reward that says nothing.
    failed_share: float = 0.01


@dataclass
class MismatchDrift(HealthRule):
    # Alarm where mismatch/mean_abs is above this, nats: as rollout.canary_tolerance, engines that round apart stay
    # below.
    mean_abs: float = 0.05
    # Alarm, too, where mismatch/kl is above this, nats: it feels few tokens that are far apart, as the mean does not.
    kl: float = 0.02
    # Steps in a row for which one of them must be.
    steps: int = 2


@dataclass
class GradNormSpike(HealthRule):
    # Alarm where policy/grad_norm is above so many times its median over the steps before, in the window. Sound runs of
    # the quickstart reach 4.5 times late, where few groups are left to learn from.
    factor: float = 6.0
    # Least steps before that have a norm above 0.
    steps: int = 3


@dataclass
class ZeroRewardColdStart(HealthRule):
    # Alarm where no completion of the first so many steps was right.
    steps: int = 3


@dataclass
class HealthConfig:
    # Latest steps that the rules look at, this one included.
    window: int = 10
    # A rollback multiplies the learning rate by this, for the rest of the run: the same steps would fail the same way.
    rollback_lr_factor: float = 0.5
    # Rollbacks of a run at most; the next one is a stop.
    max_rollbacks: int = 2
    entropy_collapse: EntropyCollapse = field(default_factory=EntropyCollapse)
    entropy_explosion: EntropyExplosion = field(default_factory=EntropyExplosion)
    resampling_spiral: ResamplingSpiral = field(default_factory=ResamplingSpiral)
    length_runaway: LengthRunaway = field(default_factory=LengthRunaway)
    verifier_failures: VerifierFailures = field(default_factory=VerifierFailures)
    mismatch_drift: MismatchDrift = field(default_factory=MismatchDrift)
    grad_norm_spike: GradNormSpike = field(default_factory=GradNormSpike)
    zero_reward_cold_start: ZeroRewardColdStart = field(default_factory=ZeroRewardColdStart)

    def rules(self) -> dict[str, HealthRule]:
        """Every rule by its name."""
        return {name: rule for name, rule in vars(self).items() if isinstance(rule, HealthRule)}


@dataclass
class Recipe:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=PretrainedModel)
    data: DataConfig = MISSING
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    rollout: RolloutConfig = MISSING
    reward: RewardConfig = MISSING
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    learner: LearnerConfig = MISSING
    eval: EvalConfig = field(default_factory=EvalConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


# Option groups: group -> option -> schema. Anything a recipe may pick in its `defaults` list.
OPTIONS: dict[str, dict[str, type]] = {
    "model": {"pretrained": PretrainedModel, "tabular": TabularModel},
    "data": {"arithmetic": ArithmeticData, "files": FilesData, "hub": HubData, "tabular": TabularData},
    "rollout": {
        "tabular": TabularRollout,
        "transformers": TransformersRollout,
        "vllm_colocated": VllmColocatedRollout,
        "vllm_server": VllmServerRollout,
    },
    "reward": {
        "math": MathReward,
        "authors": AuthorsReward,
        "strict_boxed": StrictBoxedReward,
        "python": PythonReward,
    },
    "learner": {
        "single": SingleLearner,
        "fsdp": FsdpLearner,
        "deepspeed": DeepspeedLearner,
        "tabular": TabularLearner,
    },
}
