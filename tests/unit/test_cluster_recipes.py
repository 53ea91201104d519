"""The recipes of real models: what the paper's is, what fits where, and the page that says so."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dapo_cli.cli.app import run
from dapo_cli.config.load import load_recipe
from dapo_cli.config.schema import Advantage, Aggregation, CorrectionKind, HubData, PretrainedModel
from dapo_cli.data.hub import hub_table
from dapo_cli.data.tables import Wanted
from dapo_cli.errors import UserError
from dapo_cli.preflight.survey import Survey

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "scripts" / "model_configs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_pages", ROOT / "scripts" / "check_pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No network, and nothing in a cache."""
    empty = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(empty))
        patch.setattr("datasets.config.HF_DATASETS_CACHE", empty)
        yield


@pytest.fixture(scope="module")
def surveys(script: ModuleType, offline: None, build_verifier_once: Any) -> dict[str, Survey]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dapo_cli.preflight.survey.build_verifier", build_verifier_once)
        patch.chdir(ROOT)
        return script.surveyed()


def test_the_papers_run_has_section_4_1s_values() -> None:
    recipe = load_recipe("dapo_qwen2_5_32b").recipe
    algorithm, optimizer, evaluation = recipe.algorithm, recipe.optimizer, recipe.eval
    assert recipe.model == PretrainedModel("Qwen/Qwen2.5-32B", "1818d35814b8319459f4bd55ed1ac8709630f003")
    assert (algorithm.groups_per_step, algorithm.samples_per_prompt) == (512, 16)
    assert algorithm.groups_per_step // algorithm.groups_per_update == 16
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.kl_coefficient) == (0.2, 0.28, 0)
    assert (algorithm.advantage, algorithm.aggregation) == (Advantage.group_std, Aggregation.token_mean)
    assert (recipe.sampling.max_tokens, recipe.overlong.cache_tokens) == (20_480, 4_096)
    assert (optimizer.lr, optimizer.warmup_steps, recipe.correction.kind) == (1e-6, 20, CorrectionKind.none)
    assert (evaluation.samples_per_prompt, evaluation.sampling.top_p, evaluation.sampling.temperature) == (32, 0.7, 1)


def test_configurations_have_the_published_number_of_parameters(surveys: dict[str, Survey]) -> None:
    """Of the weight files on the hub; model cards round them, or leave some out: 32.5B, 7.61B, 0.49B, 8.2B, 1.7B."""
    assert {name: found.shape.parameters for name, found in surveys.items() if found.shape} == {
        "dapo_qwen2_5_32b": 32_763_876_352,
        "dapo_qwen2_5_7b": 7_615_616_512,
        "dapo_qwen2_5_7b_math": 7_615_616_512,
        "dapo_qwen3_8b": 8_190_735_360,
        "dapo_qwen3_1_7b": 1_720_574_976,
        "dapo_0_5b_one_gpu": 494_032_768,
        "smollm2_cpu": 134_515_008,
    }


def test_the_committed_page_is_what_the_script_writes(script: ModuleType, surveys: dict[str, Survey]) -> None:
    told = script.PAGE.read_text()
    assert told == script.page(surveys), "run python scripts/check_pages.py"
    assert "\n      error: " not in told and "warning: memory" not in told
    # bfloat16 without a correction, as published: the one warning, which the recipe's head explains.
    assert told.count("\n      warning: ") == 1 and "so `dapo check` warns of bfloat16" in told


@pytest.mark.parametrize(
    ("recipe", "smallest"),
    [("dapo_qwen2_5_32b", 80), ("dapo_qwen2_5_7b_math", 80), ("dapo_qwen3_1_7b", 24), ("dapo_0_5b_one_gpu", 24)],
)
def test_recipes_fit_the_gpus_that_they_name(surveys: dict[str, Survey], recipe: str, smallest: int) -> None:
    assert next(fit.gb for fit in surveys[recipe].fits if fit.fits) == smallest


def test_a_config_alone_is_planned_with_and_what_fits_nowhere_is_named(
    offline: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """32B on one GPU: 16 bytes a parameter, and two for bfloat16's copy."""
    model = [f"model.path={CONFIGS / 'Qwen2.5-32B'}", "model.revision=null", "launch.nodes=1"]
    single = ["learner=single", "learner.compute_dtype=bfloat16", "launch.processes_per_node=1", "eval.data=null"]
    assert run(["check", "dapo_qwen2_5_32b", "--json", *model, *single], debug=False) == 0
    tree = json.loads(capsys.readouterr().out)
    memory = tree["memory_bytes"]
    assert memory["standing"] + memory["updating"] == 18 * 32_763_876_352
    assert any(line.startswith("prompt lengths, chat template") for line in tree["not_checked"])
    (finding,) = [finding for finding in tree["findings"] if finding["key"] == "memory"]
    update = (memory["update"] - memory["process"]) / 1e9
    assert f"GPU of 141 GB: by formula an update takes {update:,.0f} GB" in finding["problem"]


def test_a_run_does_not_start_from_a_config_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = [f"model.path={CONFIGS / 'SmolLM2-135M-Instruct'}", f"run.dir={tmp_path / 'run'}"]
    assert run(["train", "smollm2_cpu", *model], debug=False) == 2
    assert "the folder has no tokenizer" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_weights_without_a_tokenizer_are_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text((CONFIGS / "SmolLM2-135M-Instruct" / "config.json").read_text())
    assert run(["check", "smollm2_cpu", f"model.path={tmp_path}", "data.prompts=16"], debug=False) == 2
    assert "the folder has no tokenizer" in " ".join(capsys.readouterr().out.split())


def test_a_pinned_data_set_out_of_reach_is_not_checked_and_no_fault(offline: None) -> None:
    config = HubData(id="o/sums", revision="c" * 40)
    with pytest.raises(UserError, match=r"cannot be reached.*load it once with a network"):
        hub_table(config, "c" * 40, Wanted(("question",), ("answer",)))
