"""What a shell is offered after TAB, by typer's own protocol: what bash and zsh send, and what they get."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from dapo_cli.cli import completion
from dapo_cli.cli.app import run
from dapo_cli.cli.commands import app
from dapo_cli.config.keys import options_with
from dapo_cli.config.shipped import recipe_names

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe, a run, and a folder that is none."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/first", "elsewhere/second"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "my_recipe.yaml").write_text("run:\n")
    return tmp_path


def offered(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """In bash, for a line that ends at the cursor. `=` and `@` are words of their own there."""
    words = line.replace("=", " = ").replace("@", " @ ").split()
    at = len(words) - (not line.endswith(" "))
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(at))
    monkeypatch.setenv("_DAPO_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit):
        run([], debug=False)
    return capsys.readouterr().out.split()


def arguments(command: Any, name: str) -> list[tuple[str, Any, Any]]:
    """(name of the command, the command, argument) of all below it."""
    if hasattr(command, "commands"):
        return [row for key, each in command.commands.items() for row in arguments(each, f"{name} {key}")]
    return [(name, command, each) for each in command.params if each.param_type_name == "argument"]


def test_whatever_is_a_recipe_or_a_run_is_offered() -> None:
    seen = set()
    for name, command, argument in arguments(get_command(app), "dapo"):
        for word, expected in (("RECIPE", "quickstart"), ("RUN", "runs/first")):
            if word in (argument.metavar or ""):
                offers = [each.value for each in argument.shell_complete(Context(command), "")]
                assert expected in offers, f"{name} {argument.metavar}"
                seen.add(name)
    assert {"dapo watch", "dapo diff", "dapo train", "dapo recipe show"} <= seen


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dapo tr", ["train"]),
        ("dapo train quickstart_", ["quickstart_revisit"]),
        ("dapo train my", ["my_recipe.yaml"]),
        ("dapo check runs/", []),
        ("dapo train runs/", ["runs/first"]),
        ("dapo audit elsewhere/", ["elsewhere/second"]),
        ("dapo report runs/first r", ["runs/first"]),
        ("dapo ablate ablations/toy_t", ["ablations/toy_table"]),
        ("dapo train quickstart optimizer.w", ["optimizer.warmup_steps=", "optimizer.weight_decay="]),
        ("dapo train quickstart optimizer.lr", ["optimizer.lr=", "optimizer.lr=1e-06"]),
        ("dapo train quickstart optimizer.lr=", ["1e-06"]),
        ("dapo train quickstart run.seed=3 eval.s", ["eval.samples_per_prompt=", "eval.sampling."]),
        ("dapo train quickstart eval.data.sp", ["eval.data.split=", "eval.data.split=train"]),
        ("dapo train quickstart sampler.surplus=", ["discard", "carry", "abort"]),
        ("dapo train quickstart sampler.dynamic=f", ["false"]),
        ("dapo train quickstart rollout.dtype=", ["float32", "bfloat16", "float16", "null"]),
        ("dapo train quickstart algorithm=d", ["dapo", "dcpo", "dr_grpo"]),
        ("dapo train quickstart algorithm=dapo rew", ["reward.", "reward="]),
        ("dapo train quickstart algorithm = dapo optimizer.beta", ["optimizer.beta1=", "optimizer.beta2="]),
        ("dapo check quickstart learner=fsdp_bf16_", ["fsdp_bf16_offload"]),
        ("dapo train quickstart model.path=", []),  # nothing to offer but files
    ],
)
def test_what_bash_is_offered(
    line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(line, monkeypatch, capsys) == expected


def test_a_name_with_a_line_break_is_not_offered(folder: Path) -> None:
    (folder / "runs" / "two\nwords").mkdir()
    (folder / "runs" / "two\nwords" / "manifest.json").touch()
    assert completion.runs("runs/") == ["runs/first"]


def test_the_first_words_of_recipes_and_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered("dapo train ", monkeypatch, capsys) == [*recipe_names(), "my_recipe.yaml", "runs/first"]
    words = offered("dapo train quickstart ", monkeypatch, capsys)
    assert {"optimizer.", "algorithm.", "algorithm=", "learner=", "data@eval.data="} <= set(words) and len(words) < 30


def test_zsh_gets_the_key_with_its_value(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_DAPO_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "dapo train quickstart run.seed=3 overlong.penalty=")
    with pytest.raises(SystemExit):
        run([], debug=False)
    assert capsys.readouterr().out.split('"')[1::2] == ["overlong.penalty=false", "overlong.penalty=true"]


def test_every_key_of_every_option_is_reached_step_by_step() -> None:
    ctx = Context(get_command(app))

    def reach(start: str) -> set[str]:
        words = completion.overrides(ctx, start)
        deeper = [word for word in words if word.endswith(".")]
        return {word.partition("=")[0] for word in words if "=" in word}.union(*map(reach, deeper))

    assert set(options_with()) <= reach("")


def test_an_answer_loads_nothing_heavy() -> None:
    code = (
        "import sys; from dapo_cli.cli.app import run\ntry: run([], debug=False)\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'hydra', 'omegaconf', 'yaml', 'numpy'} & set(sys.modules)))"
    )
    line = {"COMP_WORDS": "dapo train quickstart opt", "COMP_CWORD": "3", "_DAPO_COMPLETE": "complete_bash"}
    environment = os.environ | line | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[-2:] == ["[]", ""] and "optimizer.lr=" in done.stdout, done.stderr
