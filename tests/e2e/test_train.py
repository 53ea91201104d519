"""`dapo train` as a user runs it: real processes, the shipped model, kills and resumes."""

import filecmp
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS = 4
SMALL = [
    f"run.steps={STEPS}",
    "run.threads=2",
    "algorithm.groups_per_step=4",
    "algorithm.groups_per_update=2",
    "algorithm.samples_per_prompt=4",
    "sampler.max_prompts_per_round=12",
    "sampler.max_rounds=2",
    "optimizer.warmup_steps=1",
    "data.prompts=64",
    "eval.data.prompts=16",
    "eval.every=2",
]


def dapo(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "dapo_cli", *map(str, arguments)]


def train(folder: Path, *overrides: str, recipe: object = "quickstart") -> subprocess.CompletedProcess:
    where = [f"run.dir={folder}"] if recipe == "quickstart" else []
    command = dapo("train", recipe, *where, *(SMALL if recipe == "quickstart" else []), *overrides)
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def last_step(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return len(lines)


def assert_same_run(one: Path, other: Path) -> None:
    """Everything that the recipe determines is equal to the byte: figures, samples, weights, optimizer, export."""
    assert last_step(one) == last_step(other) == STEPS
    names = ["metrics.jsonl", "evals.jsonl", "export/model.safetensors"]
    names += [f"rollouts/step_{step:06d}.jsonl" for step in range(1, STEPS + 1)]
    last = f"checkpoints/step_{STEPS:06d}"
    names += [f"{last}/__0_0.distcp", f"{last}/learner.json"]
    for name in names:
        assert filecmp.cmp(one / name, other / name, shallow=False), name
    states = [json.loads((folder / last / "state.json").read_text()) for folder in (one, other)]
    for state in states:
        del state["files"][".metadata"]  # torch puts a random number into it
    assert states[0] == states[1]


def saved_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The weights in a checkpoint, read by torch's own converter."""
    single_file = checkpoint.parent / "converted.pt"
    dcp_to_torch_save(checkpoint, single_file)
    tensors = torch.load(single_file)
    single_file.unlink()
    return {name.removeprefix("weights."): value for name, value in tensors.items() if name.startswith("weights.")}


@pytest.fixture(scope="module", params=["discard", pytest.param("carry", marks=pytest.mark.slow)])
def surplus(request) -> str:
    return f"sampler.surplus={request.param}"


@pytest.fixture(scope="module")
def reference(tmp_path_factory, surplus) -> Path:
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    done = train(folder, surplus)
    assert done.returncode == 0, done.stderr
    return folder


def test_leaves_all_that_a_run_promises(reference):
    manifest = json.loads((reference / "manifest.json").read_text())
    assert manifest["recipe"]["algorithm"]["groups_per_step"] == 4
    assert manifest["origins"]["algorithm.groups_per_step"] == "override"
    assert manifest["model"]["files"]["model.safetensors"]
    assert manifest["packages"]["torch"]
    steps = [json.loads(line) for line in (reference / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    assert [json.loads(line)["step"] for line in (reference / "evals.jsonl").read_text().splitlines()] == [0, 2, 4]
    assert sorted(path.name for path in (reference / "checkpoints").iterdir()) == ["step_000003", "step_000004"]
    model = AutoModelForCausalLM.from_pretrained(reference / "export")
    tokenizer = AutoTokenizer.from_pretrained(reference / "export")
    prompt = tokenizer("1+2=?\n", return_tensors="pt")
    text = tokenizer.decode(model.generate(**prompt, do_sample=False, max_new_tokens=40)[0])
    assert text.startswith("1+2=?\n1+2=3\n")


def test_counts_of_a_step_add_up(reference):
    for line in (reference / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        judged = record["verifier/right"] + record["verifier/wrong"] + record["verifier/failed"]
        assert judged == 4 * record["sampler/prompts"]
        assert record["judged/accuracy"] == pytest.approx(record["verifier/right"] / judged)
        assert record["judged/reward"] == pytest.approx(
            2 * record["judged/accuracy"] - 1 + record["judged/length_penalty"]
        )
        assert record["sampler/kept"] + record["sampler/short"] == 4
        assert 0 < record["kept/accuracy"] < 1
        assert record["policy/ratio_min"] <= 1 <= record["policy/ratio_max"]


def test_two_runs_are_identical(reference, surplus, tmp_path):
    assert train(tmp_path / "run", surplus).returncode == 0
    assert_same_run(reference, tmp_path / "run")


def start_and_signal(folder: Path, when: Callable[[Path], bool], number: signal.Signals, *overrides: str):
    """Start a run and send it a signal as soon as `when` is true of its folder."""
    command = dapo("train", "quickstart", f"run.dir={folder}", *SMALL, *overrides)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not when(folder):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.002)
    process.send_signal(number)
    return process


def started(folder: Path) -> bool:
    return (folder / "manifest.json").exists()


def saving(folder: Path) -> bool:
    """A checkpoint is half-written."""
    return any((folder / "checkpoints").glob("*.unfinished")) and last_step(folder) >= 2


def within_step_3(folder: Path) -> bool:
    if not (folder / "checkpoints" / "step_000002").exists():
        return False
    time.sleep(0.05)
    return True


@pytest.mark.parametrize("when", [pytest.param(started, marks=pytest.mark.slow), saving, within_step_3])
def test_killed_and_resumed_equals_uninterrupted(reference, surplus, tmp_path, when):
    folder = tmp_path / "run"
    process = start_and_signal(folder, when, signal.SIGKILL, surplus)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "export").exists()
    assert train(folder, surplus).returncode == 0
    assert_same_run(reference, folder)


@pytest.mark.parametrize("surplus", ["discard"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_saves_and_the_run_folder_goes_on(reference, surplus, tmp_path, number):
    folder = tmp_path / "run"
    process = start_and_signal(folder, within_step_3, number, surplus)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    assert f"{number.name}: stopped after step" in errors
    resumed = train(folder, recipe=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(reference, folder)


@pytest.mark.parametrize("surplus", ["discard"], indirect=True)
def test_no_verifier_outlives_a_killed_run(surplus, tmp_path):
    process = start_and_signal(tmp_path / "run", within_step_3, signal.SIGSTOP, surplus)
    workers = children_of(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # nobody may be there to reap it


@pytest.fixture(scope="module")
def one_step_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("changes") / "run"
    assert train(folder, "run.steps=1").returncode == 0
    return folder


class TestChanges:
    """A run folder takes only the run it was made for; the tests continue one another."""

    def test_another_recipe_is_refused_with_the_difference(self, one_step_run):
        refused = train(one_step_run, "run.steps=1", "optimizer.lr=0.5", "data.seed=9")
        assert refused.returncode == 2
        assert "optimizer.lr: 0.0002 in the run folder, 0.5 now" in refused.stderr
        assert "data.seed: 0 in the run folder, 9 now" in refused.stderr
        assert "--allow-changes" in refused.stderr

    def test_an_allowed_change_is_recorded(self, one_step_run):
        assert train(one_step_run, "run.steps=2", "--allow-changes").returncode == 0
        assert last_step(one_step_run) == 2
        (resume,) = json.loads((one_step_run / "manifest.json").read_text())["resumes"]
        assert resume["step"] == 1
        assert resume["changes"] == ["run.steps: 1 in the run folder, 2 now"]
        old, new = one_step_run / "until_step_000001" / "recipe.yaml", one_step_run / "recipe.yaml"
        assert "  steps: 1\n" in old.read_text() and "  steps: 2\n" in new.read_text()
        exported = load_file(one_step_run / "export" / "model.safetensors")
        saved = saved_weights(one_step_run / "checkpoints" / "step_000002")
        assert exported.keys() == saved.keys()
        assert all(torch.equal(exported[name], weight) for name, weight in saved.items())

    def test_the_changed_recipe_is_the_run_s_own_from_then_on(self, one_step_run):
        again = train(one_step_run, recipe=one_step_run)
        assert again.returncode == 0, again.stderr
        assert "going on after step 2 of 2" in again.stderr


@pytest.mark.parametrize("surplus", ["discard"], indirect=True)
def test_export_of_a_checkpoint(reference, tmp_path):
    def export(*arguments: object) -> subprocess.CompletedProcess:
        return subprocess.run(dapo("export", *arguments), capture_output=True, text=True, timeout=120)

    assert export(reference, tmp_path / "newest").returncode == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert filecmp.cmp(reference / "export" / name, tmp_path / "newest" / name, shallow=False), name
    assert "step 3" in export(reference, tmp_path / "third", "--step", STEPS - 1).stdout
    third = saved_weights(reference / f"checkpoints/step_{STEPS - 1:06d}")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "third").state_dict()
    assert all(torch.equal(weight, exported[name]) for name, weight in third.items())
    for arguments, said in (
        ((reference, tmp_path / "third"), "exists"),
        ((reference, tmp_path / "other", "--step", 99), "no checkpoint of step 99; there are 3, 4"),
        ((tmp_path, tmp_path / "other"), "no run folder"),
    ):
        refused = export(*arguments)
        assert refused.returncode == 2 and said in refused.stderr
    assert not (tmp_path / "other").exists()


def test_a_verifier_of_ones_own_trains_and_a_changed_one_is_refused(tmp_path):
    reward, folder = tmp_path / "my_reward.py", tmp_path / "run"
    reward.write_text(
        "def verify(prompt, completion, answer):\n"
        "    assert prompt.endswith('=?\\n')\n"
        "    if len(completion) % 5 == 0:\n"
        "        raise ValueError('odd')\n"
        "    return f'Answer: {answer}' in completion.splitlines()\n"
    )
    own = ["reward=python", f"reward.path={reward}"]
    done = train(folder, "run.steps=1", *own)
    assert done.returncode == 0, done.stderr
    assert "ValueError: odd" in done.stderr and "warning, step 1: verifier_failures: " in done.stdout
    (step,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert step["verifier/failed_error"] == step["verifier/failed"] > 0
    assert step["judged/accuracy"] > 0
    reward.write_text("def verify(prompt, completion, answer): return True\n")
    refused = train(folder, "run.steps=2", *own)
    assert refused.returncode == 2 and "sha256" in refused.stderr


@pytest.mark.parametrize("source", ["def verify(:", "import absent_module", "def other(): pass"])
def test_a_verifier_that_cannot_be_loaded_leaves_nothing(tmp_path, source):
    (tmp_path / "my_reward.py").write_text(source)
    done = train(tmp_path / "run", "reward=python", f"reward.path={tmp_path / 'my_reward.py'}")
    assert done.returncode == 2 and "my_reward.py" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
