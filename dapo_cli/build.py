"""Recipe -> parts: one `match` a group, the only registry."""

import torch

from dapo_cli.algorithm.objective import Clip
from dapo_cli.algorithm.sampler import DynamicSampler
from dapo_cli.canary import Canary
from dapo_cli.checkpoint import Checkpoints
from dapo_cli.config.schema import (
    HealthAction,
    HealthConfig,
    Recipe,
    RolloutConfig,
    TransformersRollout,
    VllmColocatedRollout,
    VllmRollout,
    VllmServerRollout,
    WandbMode,
)
from dapo_cli.data.stream import PromptStream
from dapo_cli.distributed.world import World
from dapo_cli.errors import UserError
from dapo_cli.inputs import Inputs, longest_sequence
from dapo_cli.learner.base import BaseLearner, Objective
from dapo_cli.learner.dtypes import DTYPES
from dapo_cli.learner.kinds import make_learner, reads_weights, weights_device
from dapo_cli.pretrained import Pretrained, load_weights, without_weights
from dapo_cli.protocols import RolloutEngine, Tracker
from dapo_cli.reward.modes import build_verifier
from dapo_cli.reward.overlong import SoftOverlong
from dapo_cli.rollout.transformers_engine import TransformersEngine
from dapo_cli.rounds import Batches, Rounds
from dapo_cli.tabular.lab import TabularLab
from dapo_cli.tabular.table import Table
from dapo_cli.tracking.console import console_tracker
from dapo_cli.tracking.file_tracker import FileTracker
from dapo_cli.tracking.manifest import Manifest
from dapo_cli.tracking.profiler import StepProfiler
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.trackers import Trackers
from dapo_cli.train import Parts
from dapo_cli.types import Prompt


def build_parts(recipe: Recipe, inputs: Inputs, folder: RunFolder, world: World) -> Parts:
    """Collective: every rank must call."""
    _check_engines(recipe.rollout, world)
    verifier = build_verifier(recipe.reward, inputs.reward_function)  # first: its workers start while the weights load
    _make_deterministic(recipe.run.seed, world)
    learner = _build_learner(recipe, inputs.pretrained, world)
    engine = _build_engine(recipe, inputs.pretrained, learner, folder, world)
    sampler = DynamicSampler(
        recipe.sampler, recipe.algorithm.groups_per_step, PromptStream(inputs.prompts, recipe.run.seed)
    )
    rounds_world = world.branch() if recipe.run.ahead else world
    shaper = SoftOverlong(recipe.overlong, recipe.sampling.max_tokens)
    return Parts(
        recipe=recipe,
        world=world,
        engine=engine,
        canary=_build_canary(recipe, inputs.prompts, engine, learner, world),
        learner=learner,
        verifier=verifier,
        batches=Batches(Rounds(recipe, rounds_world, engine, sampler, verifier, shaper)),
        sampler=sampler,
        checkpoints=Checkpoints(folder.checkpoints, recipe.checkpoint.keep, world, _reach_back(recipe.health)),
        profiler=StepProfiler(folder.profile, recipe.tracking.profile_steps or (), world.rank),
        eval_prompts=inputs.eval_prompts,
        exact_evaluation=learner.evaluate if isinstance(learner, TabularLab) else None,
        paused_file=folder.paused_file,
    )


def _reach_back(health: HealthConfig) -> int | None:
    """Steps that a rollback may go back: the signs of its alarm began within the window."""
    return health.window if any(rule.action is HealthAction.rollback for rule in health.rules().values()) else None


def _check_engines(config: RolloutConfig, world: World) -> None:
    if isinstance(config, VllmColocatedRollout) and world.size % config.tensor_parallel:
        raise UserError(
            f"rollout.tensor_parallel={config.tensor_parallel} does not divide the {world.size} processes of the run: "
            "an engine takes a whole group of ranks; change one of them"
        )


def _make_deterministic(seed: int, world: World) -> None:
    """Our own draws are keyed; the seed is for models that draw from the global state. On a CPU, gradients of repeated
    indices would else be added up by threads in any order."""
    torch.manual_seed(seed)
    if world.device.type == "cpu":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _build_learner(recipe: Recipe, pretrained: Pretrained | Table, world: World) -> BaseLearner:
    objective = objective_of(recipe)
    config = recipe.learner
    if isinstance(pretrained, Table):
        return TabularLab(world, pretrained, objective, recipe.optimizer, config)
    if reads_weights(config, world):
        model = load_weights(pretrained, recipe.model, device=weights_device(config, world))
    else:
        model = without_weights(pretrained.config)
    return make_learner(config, recipe.optimizer, objective, model, world)


def objective_of(recipe: Recipe) -> Objective:
    """What the learner makes of a recipe's algorithm."""
    algorithm = recipe.algorithm
    return Objective(
        clip=Clip(algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip, algorithm.surrogate),
        temperature=recipe.sampling.temperature,
        filter_truncated=recipe.overlong.filter_truncated,
        correction=recipe.correction,
        ratio=algorithm.ratio,
        aggregation=algorithm.aggregation,
        max_tokens=recipe.sampling.max_tokens,
        kl_coefficient=algorithm.kl_coefficient,
    )


def _build_engine(
    recipe: Recipe, pretrained: Pretrained | Table, learner: BaseLearner, folder: RunFolder, world: World
) -> RolloutEngine:
    if isinstance(learner, TabularLab):
        return learner
    assert isinstance(pretrained, Pretrained)
    match recipe.rollout:
        case TransformersRollout(max_batch_completions=max_batch_completions):
            if learner.holds_plain_model:
                model = learner.model
            else:
                dtype = DTYPES[recipe.learner.compute_dtype]
                model = load_weights(pretrained, recipe.model, device=world.device, dtype=dtype)
            return TransformersEngine(model, pretrained.tokenizer, max_batch_completions)
        case VllmColocatedRollout() as config:
            from dapo_cli.rollout.vllm_colocated import VllmColocatedEngine

            return VllmColocatedEngine(
                config,
                pretrained,
                world,
                dtype=config.dtype or recipe.learner.compute_dtype,
                max_tokens=longest_sequence(recipe),
                log_file=folder.engine_log(world.rank),
            )
        case VllmServerRollout() as config:
            from dapo_cli.rollout.vllm_server import VllmServerEngine

            return VllmServerEngine(config, pretrained, world)
        case _:
            raise AssertionError(f"no engine for {type(recipe.rollout).__name__}")


def _build_canary(
    recipe: Recipe, prompts: list[Prompt], engine: RolloutEngine, learner: BaseLearner, world: World
) -> Canary | None:
    """None for an engine that is the learner's own model, or a plain copy of it."""
    config = recipe.rollout
    if not isinstance(config, VllmRollout) or not config.canary_prompts:
        return None
    precisions = {recipe.learner.compute_dtype, config.dtype or recipe.learner.compute_dtype}
    number = max(config.canary_prompts, len(config.servers) if isinstance(config, VllmServerRollout) else 0)
    chosen = [prompts[place % len(prompts)] for place in range(number)]  # each server gets one at least
    return Canary(
        engine,
        learner,
        world,
        chosen,
        recipe.sampling,
        max_tokens=longest_sequence(recipe),
        tolerance=config.canary_tolerance,
        precisions=precisions,
    )


def build_tracker(recipe: Recipe, folder: RunFolder, manifest: Manifest) -> Tracker:
    """The trackers of rank 0; other ranks have none (`Trackers([])`)."""
    trackers: list[Tracker] = [
        FileTracker(folder, recipe.tracking.rollouts_per_step),  # first: others read what it wrote
        console_tracker(recipe.run.steps),
    ]
    if recipe.tracking.wandb is not WandbMode.disabled:
        from dapo_cli.tracking.wandb_tracker import WandbTracker

        trackers.append(WandbTracker(folder, manifest, recipe.tracking))
    return Trackers(trackers)
