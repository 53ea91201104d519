"""All that `dapo eval` is going to do, checked before any weight is loaded: its evaluations and their folders."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dapo_cli.config.schema import (
    Precision,
    PythonReward,
    RewardConfig,
    RolloutConfig,
    SamplingConfig,
    TransformersRollout,
)
from dapo_cli.errors import UserError
from dapo_cli.evaluation.data_set import DataSet, read_data_sets
from dapo_cli.evaluation.engines import compute_dtype, rollout_section
from dapo_cli.evaluation.options import SERVER, TRANSFORMERS, VLLM, Draw, Options
from dapo_cli.evaluation.results import sampling_words
from dapo_cli.evaluation.store import EvaluationFolder
from dapo_cli.evaluation.subject import Subject, open_subject
from dapo_cli.reward.modes import mode_name, reward_of
from dapo_cli.reward.user_function import UserFunction, read_user_function
from dapo_cli.tracking.files import json_line
from dapo_cli.tracking.manifest import Manifest, build_manifest, without_paths
from dapo_cli.tracking.provenance import Code, read_code

EVALS = Path("evals")
HASH_CHARACTERS = 8
FREE_REWARD_KEYS = ("workers", "failed_reward")  # which change no verdict


@dataclass(frozen=True)
class Task:
    """One evaluation: one set of weights on one data set, in a folder of its own. `tokens_asked` is what max_tokens was
    before the model's context bounded it."""

    data: DataSet
    step: int | None
    draw: Draw
    tokens_asked: int
    folder: EvaluationFolder
    manifest: Manifest


@dataclass(frozen=True)
class EvaluationPlan:
    """`roots` are the folders of the data sets by name: an evaluation's own, or that of its checkpoints' folders."""

    options: Options
    subject: Subject
    reward: RewardConfig
    user_function: UserFunction | None
    rollout: RolloutConfig | None
    dtype: Precision
    code: Code
    tasks: Sequence[Task]
    roots: dict[str, Path]

    @property
    def longest_sequence(self) -> int:
        """Tokens of prompt and completion together."""
        return max(task.data.longest_prompt + task.draw.sampling.max_tokens for task in self.tasks)

    def notes(self) -> list[str]:
        """Where the figures are not quite of what was asked for, or not what the run itself would measure."""
        found = []
        own = self.subject.recipe.eval.sampling if self.subject.recipe and not self.options.data else None
        for task in self.tasks:
            if own not in (None, task.draw.sampling):
                found.append(
                    f"{task.data.name}: sampled by {sampling_words(asdict(task.draw.sampling))}; the run's own "
                    f"evaluations by its eval.sampling, {sampling_words(asdict(own))}"
                )
            data, tokens = task.data, task.draw.sampling.max_tokens
            if tokens < task.tokens_asked:
                found.append(
                    f"{data.name}: --max-tokens {task.tokens_asked} lowered to {tokens}, the model's context without "
                    f"the longest prompt ({data.longest_prompt} tokens)"
                )
            if data.too_long:
                found.append(
                    f"{data.name}: {data.too_long} problems left out, longer than "
                    f"data.max_prompt_tokens={data.config.max_prompt_tokens}"
                )
        return list(dict.fromkeys(found))


def make_plan(options: Options) -> EvaluationPlan:
    """Raises UserError for whatever cannot serve."""
    options.check()
    subject = open_subject(options)
    reward = reward_of(options.mode, options.of_section("reward"), subject.run.recipe_file if subject.run else None)
    function = read_user_function(reward.path, reward.function) if isinstance(reward, PythonReward) else None
    rollout, dtype, code = rollout_section(options, subject), compute_dtype(options, subject), read_code()
    fixed = _engine_settings(rollout, dtype) | _reward_settings(reward)
    tasks, roots = [], {}
    sets = read_data_sets(options, subject)
    for data in sets:
        draw = _draw(data, options, subject)
        settings = {"k": draw.samples, **asdict(draw.sampling), "seed": options.seed, "limit": options.limit}
        settings |= {"prompts": data.prompt_settings, **fixed}
        records = [data.record, *([function.record] if function else [])]
        root = roots[data.name] = _root(options, subject, data.name, [settings, *records], alone=len(sets) == 1)
        for step in subject.steps:
            folder = root
            if options.all_checkpoints and step is not None:
                folder = root / subject.checkpoints.path(step).name
            manifest = build_manifest(
                recipe=settings,
                origins={},
                code=code,
                data=records,
                model=subject.record(step),
                seeds={"evaluation": options.seed},
            )
            tasks.append(Task(data, step, draw, options.max_tokens, EvaluationFolder(folder), manifest))
    return EvaluationPlan(options, subject, reward, function, rollout, dtype, code, tasks, roots)


def _draw(data: DataSet, options: Options, subject: Subject) -> Draw:
    """max_tokens as the context leaves them beside the longest prompt."""
    tokens = options.max_tokens
    context = subject.pretrained.context if subject.pretrained else None
    if context is not None:
        tokens = min(tokens, context - data.longest_prompt)
        if tokens < 1:
            added = ", with the authors' instruction that a bare model is given" if data.instruction_lengthens else ""
            without = "ask without it by --instruction none, " if added else ""
            raise UserError(
                f"--data {data.name}: its longest prompt has {data.longest_prompt} tokens{added}, and the model's "
                f"context is {context}: {without}leave such prompts out by data.max_prompt_tokens={context // 2}, or "
                "take another model"
            )
    top_k = subject.recipe.eval.sampling.top_k if subject.recipe else 0  # no option of its own
    sampling = SamplingConfig(options.temperature, options.top_p, top_k, tokens)
    return Draw(options.samples, sampling, f"{options.seed}/eval")


def _engine_settings(rollout: RolloutConfig | None, dtype: Precision) -> dict[str, Any]:
    if rollout is None:
        return {"engine": SERVER, "dtype": None, "rollout": None}
    engine = TRANSFORMERS if isinstance(rollout, TransformersRollout) else VLLM
    return {"engine": engine, "dtype": dtype.name, "rollout": asdict(rollout)}


def _reward_settings(reward: RewardConfig) -> dict[str, Any]:
    kept = {name: value for name, value in asdict(reward).items() if name not in (*FREE_REWARD_KEYS, "path")}
    return {"mode": mode_name(reward), "reward": kept}


def _root(options: Options, subject: Subject, data: str, measured: list[dict[str, Any]], *, alone: bool) -> Path:
    """Where a data set's results go: -o, a folder in it where there are several sets, else a name with a hash of what
    is `measured`, so that other settings go to another folder and the same ones go on."""
    if options.out is not None:
        return options.out if alone else options.out / data
    name, identity = subject.name, [*measured, subject.record(None)]
    if subject.run is not None:
        identity.append({"started": subject.run.read_manifest()["started"]})
        if not options.all_checkpoints:
            name += f"-step{subject.steps[0]}"
    digest = hashlib.sha256(json_line({"identity": without_paths(identity)})).hexdigest()
    return EVALS / f"{name}-{data}-{digest[:HASH_CHARACTERS]}"
