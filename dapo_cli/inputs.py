"""All that a run reads, checked before any weight is loaded or file written: model, prompts, reward function."""

from dataclasses import dataclass, replace
from typing import Any

from dapo_cli.config.load import LoadedRecipe
from dapo_cli.config.schema import (
    DataConfig,
    ModelConfig,
    PythonReward,
    Recipe,
    RewardConfig,
    TabularModel,
    VllmColocatedRollout,
    VllmServerRollout,
)
from dapo_cli.data.prompts import make_prompts, prompts_record
from dapo_cli.data.questions import load_questions, words_of_section
from dapo_cli.errors import UserError
from dapo_cli.learner.kinds import check_packages
from dapo_cli.pretrained import Pretrained, open_pretrained
from dapo_cli.reward.modes import build_verifier
from dapo_cli.reward.user_function import UserFunction, read_user_function
from dapo_cli.rollout.vllm_settings import require_vllm
from dapo_cli.tabular.table import Table, make_table
from dapo_cli.tracking.manifest import Manifest, build_manifest
from dapo_cli.tracking.provenance import Code
from dapo_cli.types import Prompt


@dataclass(frozen=True)
class Inputs:
    """All that a run reads, checked and fingerprinted."""

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
    if isinstance(recipe.rollout, VllmColocatedRollout):
        require_vllm("rollout vllm_colocated")
    pretrained = open_model(recipe.model)
    if isinstance(pretrained, Table):
        return _inputs_of_table(recipe, pretrained)
    check_lengths(recipe, pretrained.context)
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


def check_lengths(recipe: Recipe, context: int | None) -> None:
    """Raises UserError for sequences longer than the model's context."""
    _check_context("", recipe.data, recipe.sampling.max_tokens, context)
    if recipe.eval.data is not None:
        _check_context("eval.", recipe.eval.data, recipe.eval.sampling.max_tokens, context)


def _check_context(section: str, data: DataConfig, max_tokens: int, context: int | None) -> None:
    longest = data.max_prompt_tokens + max_tokens
    if context is not None and longest > context:
        raise UserError(
            f"{section}data.max_prompt_tokens + {section}sampling.max_tokens = {data.max_prompt_tokens} + {max_tokens} "
            f"= {longest} tokens, but the model's context is {context}: lower one of them"
        )


def longest_sequence(recipe: Recipe) -> int:
    """Tokens of the longest prompt and completion together, evaluation included."""
    data, sampling, evaluation = recipe.data, recipe.sampling, recipe.eval
    eval_tokens = evaluation.data.max_prompt_tokens + evaluation.sampling.max_tokens if evaluation.data else 0
    return max(data.max_prompt_tokens + sampling.max_tokens, eval_tokens)


def _read_prompts(section: str, data: DataConfig, pretrained: Pretrained) -> tuple[list[Prompt], dict[str, Any]]:
    try:
        questions, report = load_questions(data)
        prompts = make_prompts(questions, pretrained.tokenizer, data, report)
    except UserError as error:
        raise UserError(words_of_section(error, section, data)) from error
    record = {
        "section": section,
        "source": report.source,
        "rows": report.rows,
        "duplicates": report.duplicates,
        "conflicting": report.conflicting,
        "too_long": report.too_long,
        **prompts_record(prompts, report),
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
    records.append(function.record)
    return function
