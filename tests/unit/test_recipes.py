"""Recipes: what is accepted, where each value comes from, and what is said about everything that is wrong."""

import copy
import dataclasses
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from dapo_cli.config import schema
from dapo_cli.config.keys import comments, shape_of
from dapo_cli.config.load import LoadedRecipe, load_recipe
from dapo_cli.config.ranges import RANGES, Range, range_key
from dapo_cli.config.reference import reference, reference_text
from dapo_cli.config.resolved import to_yaml
from dapo_cli.config.shipped import find_recipe, model_folder, recipe_names, recipes_folder
from dapo_cli.config.source import nest, read_overrides
from dapo_cli.config.suggest import closest_key
from dapo_cli.config.validate import problems
from dapo_cli.errors import UserError

DEFAULTS = """\
defaults:
  - data: arithmetic
  - rollout: transformers
  - reward: math
  - learner: single
  - _self_
"""
BODY = """\
run:
  dir: runs/x
  steps: 3
model:
  path: some/model
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def loaded(folder: Path, text: str, *overrides: str) -> LoadedRecipe:
    return load_recipe(written(folder, text), overrides)


def complaint(path: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(recipes_folder().glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_loads(path: Path) -> None:
    recipe = load_recipe(str(path))
    assert problems(recipe.recipe) == []
    assert load_recipe(path.stem).recipe == recipe.recipe


def test_quickstart_holds_its_numbers_and_option_types() -> None:
    recipe = load_recipe("quickstart").recipe
    raw = yaml.safe_load((recipes_folder() / "quickstart.yaml").read_text())
    assert type(recipe.data) is schema.ArithmeticData and type(recipe.eval.data) is schema.ArithmeticData
    assert type(recipe.learner) is schema.SingleLearner
    assert recipe.algorithm.samples_per_prompt == raw["algorithm"]["samples_per_prompt"]
    assert recipe.eval.data.held_out and not recipe.data.held_out
    assert recipe.run.dir == raw["run"]["dir"].replace("${run.seed}", "0")


ORIGINS = {
    "run.steps": "file mine.yaml",
    "optimizer.lr": "override",
    "optimizer.beta1": "default",
    "learner.micro_batch_tokens": "option learner=small",
    "learner.logits_chunk_tokens": "default",
    "data.prompts": "file base.yaml",
    "algorithm.clip_high": "file mine.yaml",
}


def test_origins_name_the_last_writer(tmp_path: Path) -> None:
    written(tmp_path, "defaults: [single, _self_]\nmicro_batch_tokens: 99\n", "learner/small.yaml")
    written(tmp_path, DEFAULTS + BODY + "data: {prompts: 77}\nalgorithm: {clip_high: 0.3}\n", "base.yaml")
    text = "defaults: [base, override learner: small, _self_]\nrun: {steps: 9}\nalgorithm: {clip_high: 0.4}\n"
    recipe = loaded(tmp_path, text, "optimizer.lr=0.5")
    assert {key: recipe.origins[key] for key in ORIGINS} == ORIGINS
    assert recipe.recipe.run.steps == 9 and recipe.recipe.algorithm.clip_high == 0.4
    assert recipe.recipe.learner == schema.SingleLearner(micro_batch_tokens=99)
    options = {
        "data": schema.ArithmeticData,
        "rollout": schema.TransformersRollout,
        "reward": schema.MathReward,
        "learner": schema.SingleLearner,
    }
    assert set(recipe.origins) == {*shape_of(options).keys, "eval.data"}


def test_a_recipe_anywhere_can_inherit_a_shipped_one(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, "defaults: [quickstart, _self_]\nrun: {seed: 5}\n")
    expected = load_recipe("quickstart", ["run.seed=5"])
    assert recipe.recipe == expected.recipe
    assert recipe.origins["run.seed"] == "file mine.yaml"
    assert recipe.origins["run.steps"] == "file quickstart.yaml"


@pytest.mark.parametrize("name", ["base", "base.yaml", "a b=c.yaml", "1-x(y)", "größe"])
def test_an_inherited_file_is_read_as_text_too(tmp_path: Path, name: str) -> None:
    """YAML 1.1 reads these revisions as 42798 and infinity."""
    written(tmp_path, "data: {revision: 12e3456, id: x}\n" + DEFAULTS.replace("arithmetic", "hub") + BODY
            + "  revision: 0123456\n", f"{name.removesuffix('.yaml')}.yaml")  # fmt: skip
    recipe = loaded(tmp_path, f"defaults: ['{name}', _self_]\n").recipe
    assert recipe.model.revision == "0123456"
    assert isinstance(recipe.data, schema.HubData) and recipe.data.revision == "12e3456"


def test_of_null_for_a_section_and_a_key_inside_the_later_layer_counts(tmp_path: Path) -> None:
    written(tmp_path, "defaults: [quickstart, _self_]\neval: {data: null}\n", "base.yaml")
    off = loaded(tmp_path, "defaults: [base, _self_]\n")
    assert off.recipe.eval.data is None and off.options.keys() == {"data", "rollout", "reward", "learner"}
    on = loaded(tmp_path, "defaults: [base, _self_]\neval: {data: {held_out: true}}\n")
    assert on.recipe.eval.data == schema.ArithmeticData(held_out=True)
    assert on.origins["eval.data.held_out"] == "file mine.yaml" and on.origins["eval.data.prompts"] == "default"


PRESET = """\
# @package _global_
algorithm: {clip_high: 0.5, dual_clip: 7}
sampler: {dynamic: false}
learner: {fp32_head: true}
"""


def test_a_preset_sets_keys_of_several_sections_under_the_recipes_own(tmp_path: Path) -> None:
    written(tmp_path, PRESET, "algorithm/wide.yaml")
    text = DEFAULTS.replace("  - _self_", "  - algorithm: wide\n  - _self_") + BODY + "algorithm: {clip_high: 0.4}\n"
    recipe = loaded(tmp_path, text)
    algorithm = recipe.recipe.algorithm
    assert (algorithm.clip_high, algorithm.dual_clip, algorithm.clip_low) == (0.4, 7, 0.2)
    assert not recipe.recipe.sampler.dynamic and recipe.recipe.learner.fp32_head
    assert recipe.origins["algorithm.clip_high"] == "file mine.yaml"
    for key in ("algorithm.dual_clip", "sampler.dynamic", "learner.fp32_head"):
        assert recipe.origins[key] == "option algorithm=wide"
    again = loaded(tmp_path, to_yaml(recipe))
    assert again.recipe == recipe.recipe


@pytest.mark.parametrize("text", [
    DEFAULTS + BODY,
    DEFAULTS.replace("  - _self_", "  - algorithm: dcpo\n  - _self_") + BODY,
    "defaults: [base, _self_]\n",
    "defaults: [base, override algorithm: gspo, _self_]\n",
])  # fmt: skip
def test_a_preset_of_the_command_line_takes_the_place_of_the_recipes(tmp_path: Path, text: str) -> None:
    written(tmp_path, DEFAULTS.replace("  - _self_", "  - algorithm: cispo\n  - _self_") + BODY, "base.yaml")
    plain = loaded(tmp_path, DEFAULTS + BODY, "algorithm=grpo")
    recipe = loaded(tmp_path, text, "algorithm=grpo")
    assert recipe.recipe == plain.recipe
    assert recipe.recipe.algorithm.kl_coefficient == 0.04 and not recipe.recipe.learner.fp32_head
    changed = {key: origin for key, origin in recipe.origins.items() if origin == "option algorithm=grpo"}
    assert {"algorithm.aggregation", "sampler.dynamic", "overlong.penalty"} <= changed.keys()


def test_a_preset_is_no_recipe_and_no_slot() -> None:
    assert not any("algorithm" in name for name in recipe_names())
    assert "algorithm" not in load_recipe("quickstart", ["algorithm=grpo"]).options


def test_a_preset_that_the_recipe_overrules_is_refused_on_the_command_line(tmp_path: Path) -> None:
    path = written(tmp_path, DEFAULTS + BODY + "algorithm: {clip_high: 0.4, clip_low: 2e-1}\n")
    message = complaint(path, "algorithm=grpo")
    for words in ("1 problem", "algorithm=grpo", "clip_high to 0.2", "mine.yaml:12 sets it to 0.4"):
        assert words in message
    assert load_recipe(path, ["algorithm=grpo", "algorithm.clip_high=0.4"]).recipe.algorithm.clip_high == 0.4
    written(tmp_path, DEFAULTS + BODY + "algorithm: {clip_high: 0.4}\n", "base.yaml")
    assert "base.yaml:12" in complaint(written(tmp_path, "defaults: [base, _self_]\n"), "algorithm=grpo")


def test_the_resolved_recipe_of_a_preset_refuses_another(tmp_path: Path) -> None:
    """Else `dapo train RUN_DIR algorithm=dapo` would change nothing and say nothing."""
    path = written(tmp_path, to_yaml(load_recipe("quickstart", ["algorithm=gspo"])))
    assert load_recipe(path, ["algorithm=gspo"]).recipe == load_recipe("quickstart", ["algorithm=gspo"]).recipe
    assert "algorithm=dapo: sets algorithm.ratio to token" in complaint(path, "algorithm=dapo")


def test_problems_of_a_preset_name_its_file(tmp_path: Path) -> None:
    written(tmp_path, "# @package _global_\nsampler:\n  dynamics: false\n", "algorithm/odd.yaml")
    message = complaint(written(tmp_path, DEFAULTS + BODY), "algorithm=odd")
    assert "odd.yaml:3: sampler.dynamics = false: no such key; did you mean sampler.dynamic?" in message


ACCEPTED = [
    ("optimizer.lr=1e-6", "optimizer.lr", 1e-6),
    ("optimizer.lr=3", "optimizer.lr", 3.0),
    ("run.threads=null", "run.threads", None),
    ("run.threads=2", "run.threads", 2),
    ("run.dir=my runs/a=b (1)", "run.dir", "my runs/a=b (1)"),
    ("run.dir=runs/${run.steps}", "run.dir", "runs/3"),
    ("run.seed=${run.steps}", "run.seed", 3),
    ("model.revision=2024-01-01", "model.revision", "2024-01-01"),
    ("model.revision=0123456", "model.revision", "0123456"),
    ("model.revision=on", "model.revision", "on"),
    ("run.dir=a: b # c", "run.dir", "a: b # c"),
    ("sampler.dynamic=false", "sampler.dynamic", False),
    ("model.path=[odd", "model.path", "[odd"),
    ("tracking.wandb=offline", "tracking.wandb", schema.WandbMode.offline),
    ("algorithm.dual_clip=10", "algorithm.dual_clip", 10.0),
    ("data={prompts: 5, seed: 7}", "data.seed", 7),
]


@pytest.mark.parametrize(("override", "key", "value"), ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_overrides(tmp_path: Path, override: str, key: str, value: object) -> None:
    recipe = loaded(tmp_path, DEFAULTS + BODY, override)
    target = recipe.recipe
    for part in key.split("."):
        target = getattr(target, part)
    assert target == value and type(target) is type(value)
    assert recipe.origins[key] == "override"


def test_a_scientific_number_in_a_file_is_a_number(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-6, without a point, as a text."""
    assert loaded(tmp_path, DEFAULTS + BODY + "optimizer:\n  lr: 1e-6\n").recipe.optimizer.lr == 1e-6


@pytest.mark.parametrize("name", ["a b.yaml", "a=b.yml", "1-x[y].yaml", "größe.yaml", "noending", "d i=r/x.yml"])
def test_any_file_name_works(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(written(tmp_path, DEFAULTS + BODY, name))
    assert recipe.recipe.run.steps == 3
    assert recipe.origins["run.steps"] == f"file {Path(name).name}"


def test_options_by_override(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, DEFAULTS + BODY, "data=files", "data.paths=[a.jsonl,b.jsonl]", "data@eval.data=hub",
                    "eval.data.id=x/y")  # fmt: skip
    assert recipe.recipe.data == schema.FilesData(paths=["a.jsonl", "b.jsonl"])
    assert recipe.recipe.eval.data == schema.HubData(id="x/y")
    assert recipe.options == {
        "data": "files", "eval.data": "hub", "rollout": "transformers", "reward": "math", "learner": "single"
    }  # fmt: skip


@pytest.mark.filterwarnings("error:.*_self_")  # Hydra's advice to write what this loader does not need
def test_a_group_left_open_is_closed_by_an_override(tmp_path: Path) -> None:
    text = DEFAULTS.replace("  - learner: single\n", "") + BODY + "learner: {micro_batch_tokens: 5}\n"
    assert loaded(tmp_path, text, "learner=single").recipe.learner == schema.SingleLearner(micro_batch_tokens=5)
    small = "defaults: [single, _self_]\nmicro_batch_tokens: 99\nlogits_chunk_tokens: 7\n"
    written(tmp_path, small, "learner/small.yaml")
    written(tmp_path, text, "base.yaml")
    inheriting = loaded(tmp_path, "defaults: [base, override reward: math]\n", "learner=small")
    assert inheriting.recipe.learner == schema.SingleLearner(micro_batch_tokens=5, logits_chunk_tokens=7)


def test_evaluation_is_switched_off_by_null() -> None:
    recipe = load_recipe("quickstart", ["eval.data=null"])
    assert recipe.recipe.eval.data is None and "eval.data" not in recipe.options


@pytest.mark.parametrize("overrides", [[], ["eval.data=null", "optimizer.lr=1e-7", "run.dir=a: b # c"]])
def test_the_resolved_recipe_is_itself_a_recipe(tmp_path: Path, overrides: list[str]) -> None:
    first = load_recipe("quickstart", overrides)
    for with_origins in (False, True):
        again = loaded(tmp_path, to_yaml(first, with_origins=with_origins))
        assert again.recipe == first.recipe and again.options == first.options
    assert to_yaml(again) == to_yaml(first)


# (file text, overrides, words that the message must hold)
BAD: dict[str, tuple[str, list[str], list[str]]] = {
    "unknown key": (
        DEFAULTS + BODY + "optimizer:\n  lrr: 1\n",
        [],
        ["mine.yaml:13", "optimizer.lrr = 1", "optimizer.lr?"],
    ),
    "key of another section": (
        DEFAULTS + BODY + "sampler: {lr: 1}\n",
        [],
        ["sampler.lr", "did you mean optimizer.lr?"],
    ),
    "unknown section": (DEFAULTS + BODY + "optimiser: {lr: 1}\n", [], ["optimiser.lr", "optimizer.lr"]),
    "wrong type": (DEFAULTS + BODY, ["run.steps=many"], ["run.steps = many", "a whole number", "command line"]),
    "fraction for a count": (DEFAULTS + BODY, ["run.steps=2.5"], ["run.steps = 2.5", "a whole number"]),
    "number for a switch": (DEFAULTS + BODY, ["sampler.dynamic=2"], ["sampler.dynamic = 2", "true or false"]),
    "list for a number": (DEFAULTS + BODY, ["run.seed=[1,2]"], ["run.seed = [1, 2]", "a whole number"]),
    "text for a list": (DEFAULTS + BODY, ["data=files", "data.paths=x.csv"], ["data.paths = x.csv", "a list"]),
    "null where none": (DEFAULTS + BODY, ["run.seed=null"], ["run.seed = null", "a whole number"]),
    "enum": (DEFAULTS + BODY, ["sampler.surplus=cary"], ["cary", "discard, carry, abort", "did you mean carry?"]),
    "missing value": (DEFAULTS + BODY.replace("  steps: 3\n", ""), [], ["mine.yaml: run.steps is missing"]),
    "??? value": (DEFAULTS + BODY, ["run.steps=???"], ["run.steps is missing"]),
    "value for a section": (DEFAULTS + BODY, ["sampler=dynamic"], ["sampler is a section", "sampler.max_rounds"]),
    "empty section": (DEFAULTS + BODY + "sampler:\n", [], ["mine.yaml:12", "sampler is an empty section"]),
    "option as a value": (DEFAULTS + BODY, ["eval.data=files"], ["data@eval.data=OPTION"]),
    "unknown option": (
        DEFAULTS.replace("single", "singel") + BODY,
        [],
        ["mine.yaml:1", "singel", "did you mean single?"],
    ),
    "many processes of one": (
        DEFAULTS + BODY,
        ["launch.processes_per_node=8"],
        ["launch.nodes x launch.processes_per_node = 8", "learner=fsdp or learner=deepspeed"],
    ),
    "nodes without a place to meet": (DEFAULTS + BODY, ["launch.nodes=2", "learner=fsdp"], ["launch.rendezvous"]),
    "rendezvous without port": (
        DEFAULTS + BODY,
        ["launch.rendezvous=node1"],
        ["launch.rendezvous = node1", "HOST:PORT"],
    ),
    "rendezvous with a port too high": (
        DEFAULTS + BODY,
        ["launch.rendezvous=node1:99999"],
        ["node1:99999", "HOST:PORT"],
    ),
    "rendezvous with port 0": (DEFAULTS + BODY, ["launch.rendezvous=node1:0"], ["node1:0", "HOST:PORT"]),
    "rendezvous with scheme": (
        DEFAULTS + BODY,
        ["launch.rendezvous=http://node1:80"],
        ["http://node1:80", "HOST:PORT"],
    ),
    "stage of ZeRO": (
        DEFAULTS + BODY,
        ["learner=deepspeed", "learner.zero_stage=4"],
        ["learner.zero_stage = 4", "at most 3"],
    ),
    "weights of stage 2 offloaded": (
        DEFAULTS + BODY,
        ["learner=deepspeed", "learner.offload_parameters=true"],
        ["learner.offload_parameters = true", "stage = 2"],
    ),
    "float16 in DeepSpeed": (
        DEFAULTS + BODY,
        ["learner=deepspeed", "learner.compute_dtype=float16"],
        ["learner.compute_dtype = float16", "bfloat16"],
    ),
    "profile of a step that never comes": (
        DEFAULTS + BODY,
        ["tracking.profile_steps=[0,1]"],
        ["tracking.profile_steps has 0", "run.steps"],
    ),
    "unknown option by override": (
        DEFAULTS + BODY,
        ["learner=fsdq"],
        ["learner=fsdq", "fsdp", "single", "did you mean fsdp?"],
    ),
    "unknown preset": (
        DEFAULTS + BODY,
        ["algorithm=grop"],
        ["algorithm=grop", "no option grop of algorithm", "dr_grpo", "did you mean grpo?"],
    ),
    "preset in a wrong place": (
        DEFAULTS + BODY,
        ["algorithm@run=grpo"],
        ["run takes no algorithm", "`algorithm` alone"],
    ),
    "unknown group": (
        DEFAULTS.replace("- learner", "- lerner") + BODY,
        [],
        ["no group lerner", "mean learner?", "no learner chosen"],
    ),
    "option in a wrong place": (
        DEFAULTS.replace("data:", "data@run:") + BODY,
        [],
        ["run takes no data option", "eval.data"],
    ),
    "option set to nothing": (DEFAULTS + BODY, ["data@eval.data=null"], ["eval.data=null"]),
    "no option": (
        DEFAULTS.replace("  - learner: single\n", "") + BODY,
        [],
        ["no learner chosen", "- learner: OPTION", "single"],
    ),
    "no defaults": (BODY, [], ["no data chosen", "no rollout chosen", "no reward chosen", "no learner chosen"]),
    "defaults no list": ("defaults: x\n" + BODY, [], ["mine.yaml:1: defaults must be a list"]),
    "odd entry": (DEFAULTS.replace("- _self_", "- 3") + BODY, [], ["`3`", "no recipe of that name"]),
    "unknown base": (
        DEFAULTS.replace("- _self_", "- quickstrt") + BODY,
        [],
        ["`quickstrt`", "did you mean quickstart?"],
    ),
    "self twice": (DEFAULTS.replace("- data", "- _self_\n  - data") + BODY, [], ["put `- _self_` last"]),
    "self first": (
        DEFAULTS.replace("  - _self_\n", "").replace("s:\n", "s:\n  - _self_\n", 1) + BODY,
        [],
        ["put `- _self_` last"],
    ),
    "own base": (DEFAULTS.replace("- _self_", "- mine") + BODY, [], ["cannot inherit itself"]),
    "base's option chosen again": ("defaults: [quickstart, learner: single]\n", [], ["override GROUP: OPTION"]),
    "keys of an option not chosen": (
        DEFAULTS + BODY + "eval: {data: {prompts: 3}}\n",
        [],
        ["eval.data has no option", "data@eval.data"],
    ),
    "key of another option": (
        DEFAULTS + BODY + "data: {prompts: 3}\n",
        ["data=hub", "data.id=x"],
        ["data.prompts", "belongs to arithmetic"],
    ),
    "plus": (DEFAULTS + BODY, ["+run.foo=1"], ["+run.foo=1", "write run.foo=1"]),
    "plus plus": (DEFAULTS + BODY, ["++run.foo=1"], ["++run.foo=1", "not accepted"]),
    "tilde": (DEFAULTS + BODY, ["~run.seed"], ["~run.seed", "not accepted"]),
    "no equals sign": (DEFAULTS + BODY, ["run.seed"], ["run.seed", "key=value"]),
    "_target_": (DEFAULTS + BODY + "learner: {_target_: os.system}\n", [], ["learner._target_", "no such key"]),
    "hydra": (DEFAULTS + BODY + "hydra: {run: {dir: x}}\n", [], ["hydra.run.dir", "no such key"]),
    "dotted key": (DEFAULTS + BODY + "optimizer.lr: 1\n", [], ["mine.yaml:12", "optimizer.lr", "under its section"]),
    "twice": (DEFAULTS + BODY + "run: {seed: 1}\n", [], ["run is given twice"]),
    "option before an override": (
        "defaults: [quickstart, override learner: single, data@eval.data: hub]\n",
        [],
        ["In the recipe", "is defined before"],
    ),
    "control character": ("run: {dir: \x01}\n", [], ["mine.yaml", "not valid YAML", "#x0001"]),
    "syntax": (DEFAULTS + "run:\n  dir: [a\nmodel: x\n", [], ["line 9", "not valid YAML"]),
    "tab": (DEFAULTS + "run:\n\tdir: a\n", [], ["line 8", "not valid YAML"]),
    "empty": ("# nothing\n", [], ["is empty", "recipe cp"]),
    "a list": ("- a\n", [], ["must be sections"]),
    "interpolation to nowhere": (DEFAULTS + BODY, ["run.seed=${run.sed}"], ["run.seed = ${run.sed}", "run.sed"]),
    "interpolation of a wrong type": (DEFAULTS + BODY, ["run.seed=${run.dir}"], ["run.seed", "runs/x"]),
    "interpolation unfinished": (DEFAULTS + BODY, ["run.dir=${run.seed"], ["run.dir", "${...}"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(tmp_path: Path, case: str) -> None:
    text, overrides, words = BAD[case]
    message = complaint(written(tmp_path, text), *overrides)
    for word in words:
        assert word in message
    assert "dapo_recipe" not in message and "Hydra" not in message and "Traceback" not in message


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = DEFAULTS.replace("single", "duo") + "run:\n  stepz: 3\n  seed: x\nmodle: {path: y}\n"
    message = complaint(written(tmp_path, text), "+a=1", "sampling.top_p=z")
    words = ["duo", "run.stepz", "run.seed = x", "modle.path", "+a=1", "sampling.top_p = z"]
    words += ["no learner chosen", "run.dir is missing", "run.steps is missing", "model.path is missing"]
    lines = message.splitlines()
    assert f"{len(words)} problems" in lines[0] and len(lines) == len(words) + 1
    for word in words:
        assert sum(word in line for line in lines) == 1


def test_problems_of_inherited_files_name_them(tmp_path: Path) -> None:
    written(tmp_path, DEFAULTS + BODY + "optimizer:\n  lrr: 1\n", "base.yaml")
    assert "base.yaml:13: optimizer.lrr" in complaint(written(tmp_path, "defaults: [base, _self_]\n"))


def test_an_inherited_file_that_is_no_yaml(tmp_path: Path) -> None:
    written(tmp_path, DEFAULTS + "run:\n  dir: [a\nmodel: x\n", "base.yaml")
    message = complaint(written(tmp_path, "defaults: [base, _self_]\n"))
    assert "base.yaml, line 9: not valid YAML" in message and "mine.yaml: 1 problem" in message


def test_recipes_that_inherit_in_a_circle(tmp_path: Path) -> None:
    written(tmp_path, "defaults: [mine, _self_]\n", "base.yaml")
    assert "inherits itself" in complaint(written(tmp_path, "defaults: [base, _self_]\n"))


def test_an_option_file_must_not_hide_a_built_in_option(tmp_path: Path) -> None:
    written(tmp_path, "micro_batch_tokens: 3\n", "learner/single.yaml")
    assert "built-in option of learner" in complaint(written(tmp_path, DEFAULTS + BODY))


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    written(tmp_path, DEFAULTS + BODY, "first_try.yaml")
    assert "did you mean" in complaint(str(tmp_path / "frist_try.yaml")) and "first_try" in complaint(
        str(tmp_path / "frist_try.yaml")
    )
    assert "did you mean quickstart?" in complaint("quikstart")
    assert "no such file" in complaint(str(tmp_path / "no/folder/x.yaml"))
    assert "is a folder" in complaint(str(tmp_path)) and "first_try.yaml" in complaint(str(tmp_path))


def test_an_existing_file_wins_over_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("quickstart") == recipes_folder() / "quickstart.yaml" == find_recipe("quickstart.yaml")
    written(tmp_path, DEFAULTS + BODY, "quickstart.yaml")
    assert find_recipe("quickstart.yaml").resolve() == (tmp_path / "quickstart.yaml").resolve()
    assert "quickstart" in recipe_names()


def test_shipped_models() -> None:
    assert model_folder("some/folder") == "some/folder"
    with pytest.raises(UserError, match="no such shipped model"):
        model_folder("shipped:nothing-like-it")


# (overrides of a sound recipe, words of the one problem they make)
SOUND = """\
defaults:
  - data: arithmetic
  - data@eval.data: arithmetic
  - rollout: transformers
  - reward: math
  - learner: single
run: {dir: runs/x, steps: 60}
model: {path: shipped:tiny-arithmetic}
sampling: {max_tokens: 80}
overlong: {cache_tokens: 16}
algorithm: {samples_per_prompt: 8, groups_per_step: 16, groups_per_update: 8}
eval: {data: {held_out: true}, sampling: {max_tokens: 80}}
"""
BROKEN_RULES = [
    (["algorithm.samples_per_prompt=1"], ["algorithm.samples_per_prompt = 1", "at least 2", "group of one"]),
    (["algorithm.groups_per_step=20"], ["groups_per_step = 20", "groups_per_update = 8"]),
    (["overlong.cache_tokens=80"], ["overlong.cache_tokens = 80", "sampling.max_tokens = 80"]),
    (["sampling.top_p=0.9"], ["sampling.top_p = 0.9", "set 1"]),
    (["sampling.top_k=5"], ["sampling.top_k = 5", "set 0"]),
    (["sampling.temperature=0"], ["sampling.temperature = 0"]),
    (["sampling.temperature=-1"], ["sampling.temperature = -1"]),
    (["sampling.temperature=1e-320"], ["sampling.temperature = 1e-320", "overflow"]),
    (["eval.sampling.temperature=0.009"], ["eval.sampling.temperature = 0.009", "set 0"]),
    (["eval.sampling.temperature=0", "eval.samples_per_prompt=4"], ["eval.samples_per_prompt = 4", "temperature"]),
    (["eval.samples_per_prompt=0"], ["eval.samples_per_prompt = 0", "at least 1"]),
    (["run.steps=0"], ["run.steps = 0", "at least 1"]),
    (["run.threads=0"], ["run.threads = 0", "null"]),
    (["run.budget_rollouts=0"], ["run.budget_rollouts = 0", "null"]),
    (["run.budget_seconds=0"], ["run.budget_seconds = 0", "null"]),
    (["sampler.max_rounds=0"], ["sampler.max_rounds = 0"]),
    (["sampler.max_rounds=1", "sampler.max_prompts_per_round=15"], ["15 prompts", "groups_per_step = 16"]),
    (["sampler.initial_yield=1.5"], ["initial_yield = 1.5", "at most 1"]),
    (["sampler.initial_yield=0"], ["initial_yield = 0", "above 0"]),
    (["sampler.skip_solved_above=0"], ["skip_solved_above = 0", "above 0"]),
    (["sampler.skip_hopeless_below=1"], ["skip_hopeless_below = 1", "below 1"]),
    (["sampler.revisit_after=0"], ["revisit_after = 0", "at least 1"]),
    (
        ["sampler.skip_solved_above=0.5", "sampler.skip_hopeless_below=0.5"],
        ["skip_hopeless_below = 0.5", "skip_solved_above = 0.5", "every prompt"],
    ),
    (["sampler.yield_memory=1"], ["yield_memory = 1", "below 1"]),
    (["sampler.surplus=carry", "sampler.max_staleness=0"], ["surplus = carry", "max_staleness = 0"]),
    (["algorithm.clip_low=1"], ["clip_low = 1", "below 1"]),
    (["algorithm.clip_high=0"], ["clip_high = 0", "above 0"]),
    (["algorithm.dual_clip=1"], ["dual_clip = 1", "above 1"]),
    (["algorithm.kl_coefficient=-0.1"], ["kl_coefficient = -0.1", "at least 0"]),
    (["algorithm.ratio=sequence", "algorithm.surrogate=dynamic_clip"], ["ratio = sequence", "dynamic_clip", "token"]),
    (["algorithm.dual_clip=10", "algorithm.surrogate=cispo"], ["dual_clip = 10", "surrogate = cispo", "null"]),
    (["overlong.cache_tokens=0"], ["cache_tokens = 0", "overlong.penalty=false"]),
    (["optimizer.lr=0"], ["optimizer.lr = 0", "above 0"]),
    (["optimizer.lr=nan"], ["optimizer.lr = nan"]),
    (["optimizer.max_grad_norm=inf"], ["max_grad_norm = inf"]),
    (["reward.timeout_s=0"], ["reward.timeout_s = 0"]),
    (["reward.workers=0"], ["reward.workers = 0"]),
    (["checkpoint.keep=0"], ["checkpoint.keep = 0"]),
    (["checkpoint.every=0"], ["checkpoint.every = 0"]),
    (["eval.every=-1"], ["eval.every = -1"]),
    (["data.min_terms=5", "data.max_terms=4"], ["data.min_terms = 5", "data.max_terms = 4"]),
    (["eval.data.min_terms=1"], ["eval.data.min_terms = 1", "at least 2"]),
    (["data.held_out=true"], ["data.held_out and eval.data.held_out", "evaluation set"]),
    (["rollout.max_batch_completions=7"], ["max_batch_completions = 7", "algorithm.samples_per_prompt = 8"]),
    (["eval.samples_per_prompt=257"], ["max_batch_completions = 256", "eval.samples_per_prompt = 257"]),
    (["model.path="], ["model.path = ''", "empty"]),
    (["model.revision=main"], ["model.revision = main", "shipped"]),
    (["health.window=3", "health.grad_norm_spike.steps=2"], ["health.window = 3", "at least 4"]),
    (["health.mismatch_drift.steps=11"], ["mismatch_drift.steps = 11", "window of 11 steps", "health.window = 10"]),
    (["health.grad_norm_spike.steps=10"], ["grad_norm_spike.steps = 10", "window of 11 steps", "health.window = 10"]),
    (["health.zero_reward_cold_start.action=rollback"], ["zero_reward_cold_start.action = rollback", "first step"]),
    (["health.length_runaway.action=rollback", "checkpoint.every=60"], ["length_runaway", "checkpoint.every = 60"]),
    (["health.verifier_failures.failed_share=1"], ["failed_share = 1", "below 1"]),
]


@cache
def sound_config() -> DictConfig:
    with TemporaryDirectory() as folder:
        return loaded(Path(folder), SOUND).config


def changed(overrides: list[str]) -> schema.Recipe:
    """A sound recipe with some of its values replaced, so that the rules are tested apart from loading."""
    config = copy.deepcopy(sound_config())
    for override in overrides:
        key, _, value = override.partition("=")
        OmegaConf.update(config, key, None if value == "null" else value)
    recipe = OmegaConf.to_object(config)
    assert isinstance(recipe, schema.Recipe)
    return recipe


@pytest.mark.parametrize(("overrides", "words"), BROKEN_RULES, ids=[" ".join(case[0]) for case in BROKEN_RULES])
def test_broken_rules(overrides: list[str], words: list[str]) -> None:
    (problem,) = problems(changed(overrides))
    for word in words:
        assert word in problem


def test_loading_applies_the_rules() -> None:
    message = complaint("quickstart", "run.steps=0", "sampling.top_p=0.5", "model.path=shipped:tiny-arithmetics")
    for words in ("3 problems", "run.steps = 0", "sampling.top_p = 0.5", "did you mean tiny-arithmetic?"):
        assert words in message


@pytest.mark.parametrize(
    "overrides",
    [
        ["overlong.penalty=false", "overlong.cache_tokens=4096"],
        ["overlong.cache_tokens=79"],
        ["eval.sampling.temperature=0", "eval.sampling.top_p=0.7", "eval.sampling.top_k=5"],
        ["sampler.surplus=carry"],
        ["sampler.max_staleness=0"],
        ["sampler.skip_solved_above=1", "sampler.skip_hopeless_below=0", "sampler.refill=false"],
        ["sampler.max_rounds=1", "sampler.max_prompts_per_round=16"],
        ["sampler.initial_yield=1", "sampler.yield_memory=0"],
        ["data.held_out=true", "eval.data=null"],
        ["data.min_terms=4", "data.max_terms=4"],
        ["rollout.max_batch_completions=8", "eval.samples_per_prompt=8"],
        ["run.steps=1", "checkpoint.keep=1", "tracking.rollouts_per_step=0"],
        ["health.window=4", "health.zero_reward_cold_start.steps=20", "health.entropy_collapse.action=rollback"],
    ],
)
def test_edges_that_are_sound(overrides: list[str]) -> None:
    assert problems(changed(overrides)) == []


ALL_CLASSES = [cls for cls in vars(schema).values() if isinstance(cls, type) and dataclasses.is_dataclass(cls)]


def test_every_number_has_a_range_and_every_range_a_number() -> None:
    numbers = {
        range_key(cls, field.name)
        for cls in ALL_CLASSES
        for field in dataclasses.fields(cls)
        if field.type in (int, float, int | None, float | None)
    }
    assert numbers == set(RANGES)


def test_every_key_has_its_own_comment() -> None:
    undocumented = [key.name for keys in reference().values() for key in keys if not key.meaning]
    assert undocumented == []
    assert comments()["SamplerConfig", "max_rounds"] == "Rounds of generation in one step at most."


def test_reference_text() -> None:
    text = reference_text("sampler")
    assert "sampler.surplus  (one of discard, carry, abort; default discard)" in text and "optimizer" not in text
    assert "run.steps  (a whole number; required)" in reference_text(None)
    with pytest.raises(UserError, match="did you mean sampler"):
        reference_text("samplr")


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_range_against_comparison(value: float) -> None:
    assert (value in Range(above=0, at_most=1)) == (0 < value <= 1)
    assert (value in Range(at_least=0, below=1)) == (0 <= value < 1)


NAMES = st.text(st.sampled_from("abc_"), min_size=1, max_size=3)
TREES = st.recursive(NAMES, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=8)


@settings(max_examples=50)
@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_nesting_undoes_a_command_line(tree: dict) -> None:
    texts = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in tree.items()]
    overrides = read_overrides(texts, set())
    assert nest({name: leaf.value for name, leaf in overrides.leaves.items()}) == tree


KEYS = sorted(shape_of({"data": schema.ArithmeticData}).keys)


@settings(max_examples=60)
@given(st.sampled_from(KEYS), st.data())
def test_one_letter_dropped_still_finds_the_section(key: str, data: st.DataObject) -> None:
    section, _, leaf = key.rpartition(".")
    if len(leaf) < 5:
        return
    index = data.draw(st.integers(0, len(leaf) - 1))
    typo = f"{section}.{leaf[:index]}{leaf[index + 1 :]}"
    near = closest_key(typo, KEYS)
    assert typo in KEYS or (near is not None and near.startswith(f"{section}."))
