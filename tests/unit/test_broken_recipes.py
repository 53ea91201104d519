"""`dapo check` on recipes with one fault each, as files: it is told by key, value and remedy, and by the exit code."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dapo_cli.cli.app import run
from dapo_cli.config.shipped import find_plan, model_folder, plan_names
from dapo_cli.preflight import survey

SUMS = [(f"{number}+1=?", str(number + 1)) for number in range(10, 20)]
SOUND: dict[str, Any] = {
    "defaults": [{"data": "files"}, {"rollout": "transformers"}, {"reward": "math"}, {"learner": "single"}, "_self_"],
    "run": {"dir": "runs/x", "steps": 30},
    "model": {"path": "shipped:tiny-arithmetic"},
    "data": {"chat_template": False, "max_prompt_tokens": 32, "paths": ["train.jsonl"]},
    "sampling": {"max_tokens": 80},
    "overlong": {"cache_tokens": 16},
    "algorithm": {"samples_per_prompt": 8, "groups_per_step": 2, "groups_per_update": 2},
    "sampler": {"max_prompts_per_round": 8},
    "optimizer": {"warmup_steps": 5},
    "reward": {"workers": 1},
}
EVALUATION = {
    "data": {"chat_template": False, "max_prompt_tokens": 32, "paths": ["eval.jsonl"]},
    "sampling": {"max_tokens": 80},
}
BOTH = [{"data": "files"}, {"data@eval.data": "files"}, *SOUND["defaults"][1:]]
REFUSED, DOUBTFUL = 2, 0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build_verifier_once: Any) -> Path:
    """The working directory, with data; the code is clean, and the hub cannot be reached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(survey, "read_code", lambda: SimpleNamespace(record={"dirty": False}))
    monkeypatch.setattr(survey, "build_verifier", build_verifier_once)
    write("train.jsonl", SUMS)
    write("eval.jsonl", [("3+3=?", "6"), SUMS[0]])
    return tmp_path


def write(name: str, rows: list[tuple[str, str]]) -> None:
    text = "".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in rows)
    Path(name).write_text(text)


def checked(changes: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code of `dapo check` on the sound recipe with these sections' keys changed, and all that it says."""
    tree = {name: value.copy() for name, value in SOUND.items()}
    for name, value in changes.items():
        tree[name] = tree.get(name, {}) | value if isinstance(value, dict) else value
    Path("mine.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    code = run(["check", "mine.yaml"], debug=False)
    told = capsys.readouterr()
    return code, " ".join((told.out.partition("\nFindings\n")[2] + told.err).split())


# (what is changed, exit code, words that must be told: key and value, what follows, what to do)
BROKEN: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "misspelt key": (
        {"sampling": {"max_token": 80}},
        REFUSED,
        ["mine.yaml:", "sampling.max_token = 80: no such key", "did you mean sampling.max_tokens?"],
    ),
    "value out of its range": (
        {"algorithm": {"samples_per_prompt": 1}},
        REFUSED,
        ["algorithm.samples_per_prompt = 1: must be at least 2", "a group of one has no mean"],
    ),
    "value of another type": ({"optimizer": {"lr": "fast"}}, REFUSED, ["optimizer.lr = fast: must be a number"]),
    "nucleus in training": ({"sampling": {"top_p": 0.9}}, REFUSED, ["sampling.top_p = 0.9", "biases", "set 1"]),
    "buffer always reached": (
        {"overlong": {"cache_tokens": 80}},
        REFUSED,
        ["overlong.cache_tokens = 80", "every completion is punished", "lower it"],
    ),
    "buffer often reached": (
        {"overlong": {"cache_tokens": 60}},
        DOUBTFUL,
        ["warning: overlong.cache_tokens = 60: more than half of", "set it to about 16"],
    ),
    "buffer never reached": (
        {"overlong": {"cache_tokens": 2}},
        DOUBTFUL,
        ["warning: overlong.cache_tokens = 2", "hardly a completion ends there", "set it to about 16"],
    ),
    "more groups than data": (
        {"algorithm": {"groups_per_step": 16}},
        REFUSED,
        ["error: algorithm.groups_per_step = 16: data gives 10 prompts", "lower it, or give more data"],
    ),
    "updates off-policy": (
        {"algorithm": {"groups_per_step": 8, "groups_per_update": 1, "passes": 3}},
        DOUBTFUL,
        ["warning: algorithm.groups_per_update = 1: 24 updates a step, of which the first alone", "raise it"],
    ),
    "no chat template": (
        {"data": {"chat_template": True}},
        REFUSED,
        ["error: data.chat_template = true", "has no chat template; set it to false"],
    ),
    "answers in another form": (
        {"defaults": [*SOUND["defaults"][:2], {"reward": "strict_boxed"}, *SOUND["defaults"][3:]]},
        DOUBTFUL,
        [r"data.instruction = none: reward strict_boxed reads \boxed alone", "choose reward=math"],
    ),
    "longer than the context": (
        {"sampling": {"max_tokens": 150}, "overlong": {"cache_tokens": 30}},
        REFUSED,
        ["error: sampling.max_tokens", "= 32 + 150 = 182 tokens, but the model's context is 160", "lower one"],
    ),
    "evaluation trained on": (
        {"defaults": BOTH, "eval": EVALUATION},
        REFUSED,
        ["error: eval.data: 1 of 2 questions are in data, too (1 letter by letter", "take them out"],
    ),
    "branch of the hub": (
        {"model": {"path": "some/model", "revision": "main"}},
        DOUBTFUL,
        ["warning: model.revision: no commit hash", "set the hash of 40 digits"],
    ),
    "bfloat16 uncorrected": (
        {"learner": {"compute_dtype": "bfloat16"}},
        DOUBTFUL,
        ["warning: learner.compute_dtype = bfloat16", "round differently", "set correction.kind=truncated"],
    ),
    "float16 in DeepSpeed": (
        {
            "defaults": [*SOUND["defaults"][:3], {"learner": "deepspeed"}, "_self_"],
            "learner": {"compute_dtype": "float16"},
        },
        REFUSED,
        ["learner.compute_dtype = float16: learner deepspeed computes in float32 or bfloat16; choose one"],
    ),
    "rounds too few": (
        {"sampler": {"max_rounds": 1, "max_prompts_per_round": 3}, "algorithm": {"groups_per_step": 2}},
        DOUBTFUL,
        ["warning: sampler.max_rounds = 1", "raise"],
    ),
    "always warming up": (
        {"optimizer": {"warmup_steps": 30}},
        DOUBTFUL,
        ["warning: optimizer.warmup_steps = 30", "never constant; set 3 or so"],
    ),
    "no data file": (
        {"data": {"paths": ["trian.jsonl"]}},
        REFUSED,
        ["error: data: data.paths: there is no file trian.jsonl; did you mean train.jsonl?"],
    ),
    "no data file of an evaluation": (
        {"defaults": BOTH, "eval": {"data": EVALUATION["data"] | {"paths": ["data.jsonl"]}}},
        REFUSED,
        ["error: eval.data: eval.data.paths: there is no file data.jsonl"],
    ),
    "no reward file": (
        {
            "defaults": [*SOUND["defaults"][:2], {"reward": "python"}, *SOUND["defaults"][3:]],
            "reward": {"path": "r.py"},
        },
        REFUSED,
        ["error: reward: reward.path", "r.py"],
    ),
    "no model": (
        {"model": {"path": "./models/mine"}},
        REFUSED,
        ["error: model: model.path=./models/mine: no such folder"],
    ),
}


# What a rule by itself has a test for, in test_preflight.py.
ALSO_ELSEWHERE = {
    *("buffer often reached", "buffer never reached", "updates off-policy", "bfloat16 uncorrected", "rounds too few"),
    *("always warming up", "branch of the hub", "no chat template"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in ALSO_ELSEWHERE else []) for case in BROKEN]
)
def test_each_fault_is_named(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes, expected, words = BROKEN[case]
    code, told = checked(changes, capsys)
    assert (code, [word for word in words if word not in told]) == (expected, []), told


def test_the_sound_recipe_has_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = checked({}, capsys)
    assert code == 0 and "error:" not in told and "warning:" not in told


def test_an_unsolvable_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    write("train.jsonl", [*SUMS, ("7-7=?", "A) 0\nB) 1")])
    code, told = checked({}, capsys)
    assert code == 0 and "warning: data: 1 of 11 gold answers checked are not right" in told and "line 11" in told


def test_padding_that_ends_a_sequence_and_a_dirty_tree(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(survey, "read_code", lambda: SimpleNamespace(record={"dirty": True}))
    model = shutil.copytree(model_folder("shipped:tiny-arithmetic"), folder / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": config["eos_token"]}))
    code, told = checked({"model": {"path": str(model)}}, capsys)
    assert code == 0
    assert f"note: tokenizer.pad_token = {config['eos_token']}: the end of sequence is also the padding" in told
    assert "warning: code of dapo: it has changes that are in no commit" in told and "commit them" in told


def test_a_plan_of_an_ablation_is_told_from_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (*plan_names(), str(find_plan(plan_names()[0]))):
        assert run(["check", name], debug=False) == 2
        assert f"is the plan of an ablation, not a recipe: dapo ablate {name}" in capsys.readouterr().err


BOMB = "a0: &a0 [x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


@pytest.mark.parametrize("command", ["check", "ablate"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("".join(f"key_{n}: 1\n" for n in range(200_000)), "mine.yaml: has 2,688,890 bytes, and no"),
        (BOMB, "mine.yaml, line 1: not valid YAML: its aliases stand for more than 10,000 values; write them out"),
        ("run: &run\n  dir: *run\n", "mine.yaml, line 1: not valid YAML: its aliases stand for more than 10,000"),
        ("run: " + "[" * 2000, "mine.yaml: is nested too deeply"),
    ],
)
def test_a_file_without_end_is_refused_at_once(
    command: str, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").write_text(text)
    assert run([command, "mine.yaml"], debug=False) == REFUSED
    assert told in capsys.readouterr().err


def test_a_recipe_of_more_keys_than_there_are_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("".join(f"key_{n}: 1\n" for n in range(1001)))
    assert run(["check", "mine.yaml"], debug=False) == REFUSED
    assert "recipe mine.yaml: sets 1,001 keys, more than there are" in capsys.readouterr().err
