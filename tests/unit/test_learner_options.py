"""The shipped options of `learner`, by name on the command line."""

from dataclasses import replace
from typing import Any

import pytest

from dapo_cli.config.load import load_recipe
from dapo_cli.config.schema import DeepspeedLearner, FsdpLearner, LearnerConfig, Precision
from dapo_cli.config.shipped import recipe_names, recipes_folder
from dapo_cli.config.validate import problems

LARGE: dict[str, Any] = {"compute_dtype": Precision.bfloat16, "activation_checkpointing": True}
OPTIONS: dict[str, LearnerConfig] = {
    "deepspeed_zero1": DeepspeedLearner(zero_stage=1),
    "deepspeed_zero2": DeepspeedLearner(zero_stage=2),
    "deepspeed_zero3": DeepspeedLearner(zero_stage=3),
    "deepspeed_zero3_offload": DeepspeedLearner(zero_stage=3, offload_optimizer=True, offload_parameters=True),
    "deepspeed_zero3_bf16": DeepspeedLearner(zero_stage=3, **LARGE),
    "fsdp_bf16": FsdpLearner(**LARGE),
    "fsdp_bf16_offload": FsdpLearner(cpu_offload=True, **LARGE),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_gives_what_its_name_says(name: str) -> None:
    recipe = load_recipe("quickstart", [f"learner={name}", "learner.micro_batch_tokens=22528"]).recipe
    assert recipe.learner == replace(OPTIONS[name], micro_batch_tokens=22528)
    assert problems(recipe) == []


def test_the_table_has_every_shipped_file_and_none_is_taken_for_a_recipe() -> None:
    assert {path.stem for path in (recipes_folder() / "learner").iterdir()} == set(OPTIONS)
    assert not [name for name in recipe_names() if "learner" in name]
