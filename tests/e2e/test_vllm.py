"""`dapo train` with vLLM as its engine, as a user runs it: it learns, keeps its promises, and notices a broken sync."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.e2e.test_train import SMALL, assert_same_run, dapo, last_step

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the vllm extra is not installed"),
]

VLLM = ("rollout=vllm_colocated", "rollout.kv_cache_mib=64", "run.threads=1")
# The same command line, in a process where the engine's side of the sync takes nothing in.
BROKEN = """
from dapo_cli.rollout.weight_sync import InProcessTransfer
for name in ("start_weight_update", "update_weights", "finish_weight_update"):
    setattr(InProcessTransfer, name, lambda *arguments: None)
from dapo_cli.cli.app import main
main()
"""


def command(folder: Path, *overrides: str) -> list[str]:
    return dapo("train", "quickstart", f"run.dir={folder}", *VLLM, *overrides)


def run(arguments: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=150)


def train(folder: Path, *overrides: str) -> subprocess.CompletedProcess:
    done = run(command(folder, *overrides))
    assert done.returncode == 0, done.stderr
    return done


def records(folder: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """A small run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    return folder, train(folder, *SMALL, "run.threads=1")


def test_vllm_speaks_into_the_run_folder_alone(reference):
    folder, done = reference
    log = (folder / "engine_rank_0.log").read_text()
    assert " vllm." in log
    assert [path.name for path in folder.glob("engine_rank_*.log")] == ["engine_rank_0.log"]
    said = done.stdout + done.stderr
    assert "held-out accuracy" in done.stdout
    assert [mark for mark in ("vllm", "WARNING", "INFO", "Gloo", "[rank") if mark in said] == []
    assert not {line for line in said.splitlines() if line.strip()} & set(log.splitlines())


def test_engine_and_learner_agree_at_every_step(reference):
    for record in records(reference[0]):
        assert 0 < record["mismatch/mean_abs"] <= record["mismatch/max_abs"] < 1e-3
        assert record["canary/mean_abs"] <= record["canary/max_abs"] < 1e-3
        assert record["mismatch/ess"] == pytest.approx(1, abs=1e-6)


def test_killed_and_resumed_equals_uninterrupted(reference, tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder, *SMALL, "run.threads=1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 100
    while not (folder / "checkpoints" / "step_000002").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert last_step(folder) < 4
    train(folder, *SMALL, "run.threads=1")
    assert_same_run(reference[0], folder)


@pytest.fixture
def no_shared_memory() -> Iterator[None]:
    """On a CPU the ranks of one engine leave segments of fixed names behind, and do not start where there are any."""

    def remove() -> None:
        for path in Path("/dev/shm").glob("-tp:*cpushm*"):
            path.unlink()

    remove()
    yield
    remove()


def test_two_ranks_share_an_engine(tmp_path, tokenizer, no_shared_memory):
    """A model of four heads; without dynamic sampling, since it knows nothing."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(vocab_size=32, max_position_embeddings=256, initializer_range=0.2, **sizes, **ids)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    same = [*SMALL, f"model.path={tmp_path / 'model'}", "sampler.dynamic=false", "run.steps=2", "eval.data=null"]
    train(tmp_path / "alone", *same)
    ranks = ["learner=fsdp", "launch.processes_per_node=2", "rollout.tensor_parallel=2"]
    train(tmp_path / "shared", *same, *ranks)
    for one, other in zip(records(tmp_path / "alone"), records(tmp_path / "shared"), strict=True):
        for key in ("judged/reward", "length/mean", "judged/truncated"):
            assert one[key] == other[key], key
        assert one["policy/loss"] == pytest.approx(other["policy/loss"], rel=1e-4)
        assert other["canary/max_abs"] < 1e-3


def test_two_ranks_train_as_one_process(reference, tmp_path):
    train(tmp_path / "two", *SMALL, "run.steps=2", "run.threads=1", "learner=fsdp", "launch.processes_per_node=2")
    ours, theirs = records(tmp_path / "two"), records(reference[0])[:2]
    assert [record["step"] for record in ours] == [1, 2]
    for one, other in zip(ours, theirs, strict=True):
        assert one["policy/loss"] == pytest.approx(other["policy/loss"], rel=1e-4)
        assert one["policy/grad_norm"] == pytest.approx(other["policy/grad_norm"], rel=1e-4)
        for key in other:
            if key.startswith(("sampler/", "verifier/", "judged/", "kept/")):
                assert one[key] == other[key], key
    for step in (1, 2):
        name = f"rollouts/step_{step:06d}.jsonl"
        for one, other in zip(records(tmp_path / "two", name), records(reference[0], name), strict=True):
            assert one.pop("mean_logprob") == pytest.approx(other.pop("mean_logprob"), abs=1e-5)
            assert one == other  # prompt, completion, verdict, and whether it was trained on
    assert all((tmp_path / "two" / f"engine_rank_{rank}.log").stat().st_size for rank in (0, 1))


def test_a_sync_that_does_nothing_is_noticed_after_the_first_step(tmp_path):
    arguments = command(tmp_path / "run", *SMALL, "run.threads=1")
    assert arguments[:3] == [sys.executable, "-m", "dapo_cli"]
    done = run([sys.executable, "-c", BROKEN, *arguments[3:]])
    assert done.returncode == 3, done.stderr
    assert "did not reach the engine" in done.stderr and "Traceback" not in done.stderr
    # Before the first update both have the same weights; no step is recorded or saved after it.
    assert [record["step"] for record in records(tmp_path / "run", "evals.jsonl")] == [0]
    assert last_step(tmp_path / "run") == 0 and not list((tmp_path / "run" / "checkpoints").glob("step_*"))


def test_it_learns_arithmetic(tmp_path):
    folder = tmp_path / "run"
    train(folder, "run.steps=20", "eval.every=0", "checkpoint.every=20")
    first, last = records(folder, "evals.jsonl")
    assert (first["step"], last["step"]) == (0, 20)
    assert last["eval/accuracy"] - first["eval/accuracy"] > 0.25
    assert all(record["mismatch/max_abs"] < 1e-3 for record in records(folder))
