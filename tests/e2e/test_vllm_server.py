"""`dapo serve` and `dapo train` with its servers, as a user runs them: the same run as colocated, one step ahead, and
through lost servers."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_train import SMALL, assert_same_run, dapo, last_step
from tests.e2e.test_vllm import VLLM as COLOCATED
from tests.e2e.test_vllm import records

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the vllm extra is not installed"),
]

START_S = 120  # within which a server must be there
SMALL_RUN = [*SMALL, "run.threads=1"]
AHEAD = ("run.ahead=1", "correction.kind=truncated", "run.threads=1")
JUDGED = ("sampler/", "verifier/", "judged/", "kept/", "length/", "policy/loss_tokens", "policy/updates")
ROUNDED = ("policy/loss", "policy/grad_norm", "policy/entropy")


def options(*urls: str) -> list[str]:
    return ["rollout=vllm_server", "rollout.kv_cache_mib=64", f"rollout.servers=[{','.join(urls)}]"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """`dapo serve` on a port that stays the same, whether it runs or not."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                dapo("serve", "quickstart", "--port", self.port, *options(self.url)),
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,  # so that it can be killed with its engine
            )

    def wait(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while True:
            try:
                httpx.get(f"{self.url}/health", timeout=5, trust_env=False).raise_for_status()
                return
            except httpx.HTTPError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-3000:]
                time.sleep(0.2)

    def kill(self) -> None:
        """SIGKILL for it and its engine at once."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class Servers:
    """Two of them, started when a test asks for them: some tests kill one."""

    def __init__(self, folder: Path) -> None:
        self.all = [Server(folder / f"server_{place}.log") for place in range(2)]

    def running(self, number: int) -> list[Server]:
        """The first that run, and others started until they are so many."""
        chosen = sorted(self.all, key=lambda server: server.process is None)[:number]
        for server in chosen:
            if server.process is None:
                server.start()
        for server in chosen:
            server.wait()
        return chosen


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    for server in servers.all:
        server.kill()


def command(folder: Path, *overrides: str) -> list[str]:
    return dapo("train", "quickstart", f"run.dir={folder}", *overrides)


def train(folder: Path, *overrides: str) -> subprocess.CompletedProcess:
    done = subprocess.run(command(folder, *overrides), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def reference(servers, tmp_path_factory) -> Path:
    """A small run with two servers that nothing happens to."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    done = train(folder, *SMALL_RUN, *options(*(server.url for server in servers.running(2))))
    assert "lost" not in done.stderr
    return folder


def test_without_servers_nothing_begins(tmp_path):
    folder = tmp_path / "run"
    url = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run(command(folder, *options(url)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    for words in ("rollout.servers", url, "dapo serve RECIPE"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr and not folder.exists()


def test_a_run_with_servers_is_that_of_a_colocated_engine(reference, tmp_path):
    train(tmp_path / "run", *SMALL_RUN, *COLOCATED)
    ours, theirs = records(reference), records(tmp_path / "run")
    assert [record["step"] for record in ours] == [1, 2, 3, 4]
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        assert {key: one[key] for key in one if key.startswith(JUDGED)} == {
            key: other[key] for key in other if key.startswith(JUDGED)
        }
        for key in ROUNDED:
            assert one[key] == pytest.approx(other[key], rel=1e-4), key
        assert 0 < one["mismatch/mean_abs"] <= one["mismatch/max_abs"] < 1e-3
        assert one["canary/max_abs"] < 1e-3
    assert records(reference, "evals.jsonl") == records(tmp_path / "run", "evals.jsonl")


def test_one_step_ahead_it_learns_and_repeats_itself(servers, tmp_path):
    urls = options(*(server.url for server in servers.running(2)))
    train(
        tmp_path / "long", *urls, *AHEAD, "run.steps=12", "eval.every=0", "eval.data.prompts=128", "checkpoint.every=12"
    )
    steps = records(tmp_path / "long")
    assert [record["mismatch/staleness"] for record in steps] == [0] + [1] * 11
    # The first batch comes from the weights that train, all others from those before the last updates.
    assert steps[0]["mismatch/max_abs"] < 1e-3 and all(record["mismatch/max_abs"] > 0.01 for record in steps[1:])
    assert all(record["canary/max_abs"] < 1e-3 for record in steps)
    first, last = records(tmp_path / "long", "evals.jsonl")
    assert (first["step"], last["step"]) == (0, 12)
    assert last["eval/accuracy"] - first["eval/accuracy"] > 0.2  # 0.38 to 0.75
    train(tmp_path / "short", *urls, *AHEAD, "run.steps=2", "eval.data=null")
    lines = (tmp_path / "long" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert (tmp_path / "short" / "metrics.jsonl").read_bytes() == b"".join(lines[:2])


def start(folder: Path, *overrides: str) -> subprocess.Popen:
    """A run that has saved its first step."""
    process = subprocess.Popen(command(folder, *overrides), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + START_S
    while not (folder / "checkpoints" / "step_000001").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    return process


def test_a_run_goes_on_without_a_server_that_is_killed(servers, reference, tmp_path):
    one, other = servers.running(2)
    process = start(tmp_path / "run", *SMALL_RUN, *options(one.url, other.url))
    one.kill()
    _, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    assert errors.count("is lost") == 1 and f"{one.url} is lost" in errors and "Traceback" not in errors
    assert_same_run(reference, tmp_path / "run")


def test_without_its_last_server_a_run_stops_and_goes_on_once_there_is_one(servers, reference, tmp_path):
    (server,) = servers.running(1)
    overrides = [*SMALL_RUN, *options(server.url)]
    process = start(tmp_path / "run", *overrides)
    server.kill()
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 3, errors
    for words in ("rollout.servers", server.url, "dapo serve", "same command"):
        assert words in errors
    assert "Traceback" not in errors
    saved = last_step(tmp_path / "run")
    assert 1 <= saved < 4 and (tmp_path / "run" / "checkpoints" / f"step_{saved:06d}").exists()
    server.start()
    server.wait()
    done = train(tmp_path / "run", *overrides)
    assert f"going on after step {saved} of 4" in done.stderr
    assert_same_run(reference, tmp_path / "run")
