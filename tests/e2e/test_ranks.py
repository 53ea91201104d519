"""`dapo train` on several processes, as a user runs it: the same run as on one, through kills, stops and restarts."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.test_train import SMALL, assert_same_run, dapo, last_step, saved_weights

pytest.importorskip("deepspeed", reason="the deepspeed extra is not installed")

FSDP = ("learner=fsdp", "launch.processes_per_node=2")
LEARNERS = {"fsdp": FSDP} | {
    f"zero {stage}": ("learner=deepspeed", f"learner.zero_stage={stage}", "launch.processes_per_node=2")
    for stage in (1, 2, 3)
}
# Figures that float rounding reaches; all others must be equal.
ROUNDED = ("policy/loss", "policy/grad_norm", "policy/entropy")
EXTREMES = ("policy/ratio_min", "policy/ratio_max")  # of one token: the rounding of its log-probs
SQUARED = "policy/approx_kl"  # of differences near rounding: absolutely
SECONDS = 20  # within which a failure of one rank ends a run here


def train(folder: Path, *overrides: str) -> subprocess.CompletedProcess:
    command = dapo("train", "quickstart", f"run.dir={folder}", *overrides)
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def quickstart(folder: Path, steps: int, *overrides: str) -> None:
    done = train(folder, f"run.steps={steps}", "eval.data=null", "checkpoint.keep=9", *overrides)
    assert done.returncode == 0, done.stderr


def small_run(folder: Path, *overrides: str) -> subprocess.CompletedProcess:
    return train(folder, *SMALL, "run.threads=1", *FSDP, *overrides)


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_as_one_process(folder: Path, reference: Path, step: int) -> None:
    """The same groups chosen; figures of all steps and the weights after `step` equal to 1e-5."""
    for ours, theirs in zip(records(folder), records(reference)[:step], strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            if key in ROUNDED:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-5), key
            elif key in EXTREMES:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4), key
            elif key == SQUARED:
                assert ours[key] == pytest.approx(theirs[key], abs=1e-6), key
            elif key.startswith("mismatch/"):  # between engine and learner: of rounding alone
                assert ours[key] == pytest.approx(theirs[key], abs=1e-4), key
            else:
                assert ours[key] == theirs[key], key
    for number in range(1, step + 1):
        name = f"rollouts/step_{number:06d}.jsonl"
        for ours, theirs in zip(
            (folder / name).read_text().splitlines(), (reference / name).read_text().splitlines(), strict=True
        ):
            ours, theirs = json.loads(ours), json.loads(theirs)
            assert ours.pop("mean_logprob") == pytest.approx(theirs.pop("mean_logprob"), abs=1e-5)
            assert ours == theirs
    ours, theirs = (saved_weights(each / f"checkpoints/step_{step:06d}") for each in (folder, reference))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert (ours[name] - weight).norm() <= 1e-5 * weight.norm(), name


@pytest.fixture(scope="module")
def one_process(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    quickstart(folder, 5)
    return folder


@pytest.mark.parametrize(
    "learner",
    [pytest.param(name, marks=pytest.mark.slow) if name != "fsdp" else name for name in LEARNERS],
)
def test_two_ranks_train_as_one_process(one_process, tmp_path, learner):
    folder = tmp_path / "run"
    quickstart(folder, 3, *LEARNERS[learner])
    exported = load_file(folder / "export" / "model.safetensors")
    saved = saved_weights(folder / "checkpoints/step_000003")
    assert exported.keys() == saved.keys()
    assert all(torch.equal(exported[name], weight) for name, weight in saved.items())
    assert_as_one_process(folder, one_process, 3)
    assert json.loads((folder / "manifest.json").read_text())["processes"] == 2
    timings = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    assert all(record["seconds/step"] >= record["seconds/update"] > 0 for record in timings)
    assert all("slowest_rank/update" in record for record in timings)
    if learner == "fsdp":  # from two ranks to one, and back to two
        quickstart(folder, 4, "learner=fsdp", "--allow-changes")
        quickstart(folder, 5, *FSDP, "--allow-changes")
        assert_as_one_process(folder, one_process, 5)


def start(folder: Path, *overrides: str) -> subprocess.Popen:
    """A run that has done two steps."""
    process = subprocess.Popen(
        dapo("train", "quickstart", f"run.dir={folder}", *SMALL, "run.threads=1", *FSDP, *overrides),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while last_step(folder) < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    return process


def process_of_rank(parent: int, rank: int) -> int:
    for child in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in map(int, child.read_text().split()):
            if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text().split("\0"):
                return pid
    raise AssertionError(f"no process of rank {rank}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    assert small_run(folder).returncode == 0
    return folder


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_ends_the_run_which_goes_on_where_it_was(uninterrupted, tmp_path, rank):
    folder = tmp_path / "run"
    process = start(folder)
    killed = process_of_rank(process.pid, rank)
    began = time.monotonic()
    os.kill(killed, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < SECONDS
    assert process.returncode == 1
    assert f"rank {rank} (process {killed}) was killed by SIGKILL" in errors and "Traceback" not in errors
    assert small_run(folder).returncode == 0
    assert_same_run(uninterrupted, folder)


@pytest.mark.slow
def test_a_killed_rank_is_started_again_where_the_recipe_says_so(uninterrupted, tmp_path):
    process = start(tmp_path / "run", "launch.max_restarts=1")
    os.kill(process_of_rank(process.pid, 1), signal.SIGKILL)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert "going on after step" in errors
    assert_same_run(uninterrupted, tmp_path / "run")


def test_a_signal_stops_all_ranks_after_the_same_step(uninterrupted, tmp_path):
    process = start(tmp_path / "run", "launch.max_restarts=1")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert errors.count("SIGINT: stopped after step") == 1 and "SIGTERM" not in errors
    assert small_run(tmp_path / "run").returncode == 0
    assert_same_run(uninterrupted, tmp_path / "run")


def test_no_rank_outlives_the_command(tmp_path):
    process = start(tmp_path / "run")
    ranks = [process_of_rank(process.pid, rank) for rank in (0, 1)]
    process.kill()
    process.communicate()
    deadline = time.monotonic() + SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def on_two_nodes(folder: Path, *own: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of both nodes; `own` are further overrides of each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    nodes = ("launch.nodes=2", "launch.processes_per_node=1", f"launch.rendezvous=localhost:{port}")
    command = dapo("train", "quickstart", f"run.dir={folder}", *SMALL, "run.threads=1", *FSDP, *nodes)
    processes = [
        subprocess.Popen([*command, *overrides], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for overrides in own
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.slow
def test_two_nodes_are_one_run(uninterrupted, tmp_path):
    nodes = on_two_nodes(tmp_path / "run", (), ())
    assert [status for status, _, _ in nodes] == [0, 0], nodes
    assert sorted("held-out accuracy" in out for _, out, _ in nodes) == [False, True]  # one of them speaks
    assert_same_run(uninterrupted, tmp_path / "run")


@pytest.mark.slow
def test_nodes_with_different_recipes_do_not_train_together(tmp_path):
    nodes = on_two_nodes(tmp_path / "run", ("optimizer.lr=1e-3",), ("optimizer.lr=1e-4",))
    assert [status for status, _, _ in nodes] == [2, 2], nodes
    assert all("rank 1 differs from rank 0 in optimizer.lr" in errors for _, _, errors in nodes)
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.slow
def test_a_signal_before_the_ranks_can_stop_ends_them(tmp_path):
    process = subprocess.Popen(
        dapo("train", "quickstart", f"run.dir={tmp_path / 'run'}", *FSDP, "launch.max_restarts=2"),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(Path(f"/proc/{process.pid}/task").glob("*/children")) or not any(
        file.read_text() for file in Path(f"/proc/{process.pid}/task").glob("*/children")
    ):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130


@pytest.mark.slow
def test_joins_the_user_s_own_torchrun(uninterrupted, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "dapo_cli"]
    arguments = ["train", "quickstart", f"run.dir={tmp_path / 'run'}", *SMALL, "run.threads=1", "learner=fsdp"]
    done = subprocess.run([*torchrun, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "4 steps in" in done.stdout
    assert_same_run(uninterrupted, tmp_path / "run")


@pytest.mark.slow
def test_profiles_chosen_steps_of_each_rank(tmp_path):
    assert small_run(tmp_path / "run", "tracking.profile_steps=[2]").returncode == 0
    traces = sorted(path.name for path in (tmp_path / "run" / "profile").iterdir())
    assert traces == [f"step_000002_rank_{rank}.json.gz" for rank in (0, 1)]


def test_what_one_rank_alone_cannot_read_is_said_once(tmp_path):
    (tmp_path / "my_reward.py").write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1': raise ImportError('not on this node')\n"
        "def verify(prompt, completion, answer): return completion.endswith(answer)\n"
    )
    began = time.monotonic()
    done = small_run(tmp_path / "run", "reward=python", f"reward.path={tmp_path / 'my_reward.py'}")
    assert time.monotonic() - began < 2 * SECONDS
    assert done.returncode == 2
    assert done.stderr.count("not on this node") == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "manifest.json").exists()
