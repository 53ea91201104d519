"""Data sets by name: option files of the group `data`, and sections read by themselves."""

import re
from pathlib import Path

import pytest

from dapo_cli.config.load import load_recipe, load_section
from dapo_cli.config.schema import ArithmeticData, FilesData, HubData
from dapo_cli.config.shipped import recipes_folder
from dapo_cli.errors import UserError

NAMES = sorted(path.stem for path in (recipes_folder() / "data").glob("*.yaml"))

RECIPE = """\
defaults:
  - data: arithmetic
  - data@eval.data: {name}
  - rollout: transformers
  - reward: math
  - learner: single
  - _self_
run: {{dir: runs/x, steps: 1}}
model: {{path: some/model}}
eval: {{data: {{instruction: authors}}}}
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_set_by_name_is_one_commit_and_evaluates_in_a_recipe(tmp_path: Path, name: str) -> None:
    section = load_section("data", name)
    assert isinstance(section, HubData) and re.fullmatch("[0-9a-f]{40}", section.revision or "")
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE.format(name=name))
    evaluated = load_recipe(str(file)).recipe.eval.data
    assert isinstance(evaluated, HubData)
    assert (evaluated.id, evaluated.split, evaluated.revision) == (section.id, section.split, section.revision)
    assert evaluated.instruction.name == "authors" and section.instruction.name == "none"


def test_the_sets_that_the_help_names_are_there() -> None:
    assert NAMES == ["aime_2024", "aime_2025", "amc23", "gsm8k", "math_500", "minerva_math"]


def test_a_section_by_itself_takes_overrides_of_its_keys() -> None:
    assert load_section("data", "arithmetic", ["data.prompts=7"]) == ArithmeticData(prompts=7)
    files = load_section("data", "files", ['data.paths=["a, b.jsonl"]', "data.answer_column=gt"])
    assert files == FilesData(paths=["a, b.jsonl"], answer_column="gt")


@pytest.mark.parametrize(
    ("option", "overrides", "said"),
    [
        ("gsm8", [], "did you mean gsm8k"),
        ("files", [], "data.paths is missing"),
        ("arithmetic", ["data.prompt=7"], "did you mean data.prompts"),
        ("arithmetic", ["data.prompts=0"], "data.prompts = 0: must be at least 1"),
        ("arithmetic", ["data.prompts=many"], "must be a whole number"),
        ("gsm8k", ["data.paths=[x]"], "it belongs to files"),
    ],
)
def test_what_is_wrong_with_a_section_is_told(option: str, overrides: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_section("data", option, overrides)
    assert said in str(caught.value)
