"""Scripts that start a run on several nodes: serve_and_train.sbatch with stand-ins for Slurm's commands, and
torchrun_nodes.sh for real, as two nodes of one process each."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.stand_ins import StandIns

SCRIPTS = Path(__file__).parents[2] / "scripts"
ROOT = SCRIPTS.parent

# `srun` notes its arguments by what it starts; servers it starts indeed, by the `dapo` below, and training it ends with
# FAKE_STATUS. `curl` fails until the server's folder is there and once more, as a server that is still loading does.
COMMANDS = {
    "srun": """
if [[ " $* " == *" bash -c "* ]]; then
    printf "%s\\0" "$@" > "$FAKE_RECORDS/serve"
    while [[ $1 != bash ]]; do shift; done
    exec "$@"
fi
printf "%s\\0" "$@" > "$FAKE_RECORDS/train"
if [[ -n "${FAKE_SIGNAL:-}" ]]; then
    kill -s "$FAKE_SIGNAL" "$PPID"
    for _ in {1..200}; do [[ -e "$FAKE_RECORDS/scancel" ]] && break; sleep 0.05; done
fi
exit "$FAKE_STATUS"
""",
    "dapo": """
printf "%s\\0" "$CUDA_VISIBLE_DEVICES" "$@" > "$FAKE_RECORDS/server_$CUDA_VISIBLE_DEVICES"
[[ -n "${FAKE_BROKEN:-}" ]] && exit 2
sleep 20 &
echo $! >> "$FAKE_RECORDS/sleeping"
wait
""",
    "curl": """
[[ -z "${FAKE_BROKEN:-}" ]] || exit 7
echo "${*: -1}" >> "$FAKE_RECORDS/asked"
[[ $(wc -l < "$FAKE_RECORDS/asked") -gt 1 ]]
""",
    "scontrol": """
if [[ $1 == show ]]; then printf "node%s\\n" 1 2 3 4; exit; fi
printf "%s\\0" "$@" > "$FAKE_RECORDS/scontrol"
""",
    "scancel": 'printf "%s\\0" "$@" > "$FAKE_RECORDS/scancel"',
    "hostname": "echo node1",
}


class Slurm(StandIns):
    """A job of four nodes."""

    def run(self, *arguments: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        where = {"SLURM_JOB_NODELIST": "node[1-4]", "SLURM_SUBMIT_DIR": str(ROOT), "SERVER_POLL_S": "0.05"}
        command = ["bash", str(SCRIPTS / "slurm" / "serve_and_train.sbatch"), *arguments]
        variables = self.job(4, status) | where | environment
        return subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def close(self) -> None:
        sleeping = self.records / "sleeping"
        for pid in sleeping.read_text().split() if sleeping.exists() else []:
            subprocess.run(["kill", pid], stderr=subprocess.DEVNULL)


@pytest.fixture
def slurm(tmp_path: Path):
    job = Slurm(tmp_path, COMMANDS)
    yield job
    job.close()


def test_the_last_nodes_serve_and_the_others_train(slurm: Slurm) -> None:
    arguments = ["my recipe.yaml", "rollout=vllm_server", "run.dir=runs/a b"]
    done = slurm.run(*arguments, SERVER_NODES="2", TENSOR_PARALLEL="4", SERVER_WAIT_S="20")
    assert done.returncode == 0, done.stderr
    servers = "[http://node3:8000,http://node3:8001,http://node4:8000,http://node4:8001]"
    rollout = [f"rollout.servers={servers}", "rollout.tensor_parallel=4"]
    serve, train = slurm.called_with("serve"), slurm.called_with("train")
    assert serve is not None and serve[:3] == ["--nodes=2", "--nodelist=node3,node4", "--ntasks-per-node=1"]
    place = ["launch.nodes=2", "launch.processes_per_node=8", "launch.rendezvous=node1:24567"]
    options = ["--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=120", "dapo", "train"]
    assert train == ["--nodes=2", "--nodelist=node1,node2", *options, *arguments, *rollout, *place]
    for devices, port in (("0,1,2,3", "8000"), ("4,5,6,7", "8001")):
        server = slurm.called_with(f"server_{devices}")
        assert server == [devices, "serve", *arguments, *rollout, "--host", "node1", "--port", port]
    asked = (slurm.records / "asked").read_text().split()
    first, others = "http://node3:8000/health", ["http://node3:8001/health", "http://node4:8000/health"]
    assert asked == [first, first, *others, "http://node4:8001/health"]


@pytest.mark.parametrize("status", [0, 3])
def test_at_the_time_limit_the_trainer_alone_is_told(slurm: Slurm, status: int) -> None:
    assert slurm.run("my.yaml", status=status, FAKE_SIGNAL="USR1").returncode == status
    assert slurm.called_with("scancel") == ["--signal=TERM", "1234567.1"]
    assert slurm.called_with("scontrol") == (["requeue", "1234567"] if status == 3 else None)


def test_servers_that_end_are_not_waited_for(slurm: Slurm) -> None:
    done = slurm.run("my.yaml", FAKE_BROKEN="1")
    assert done.returncode == 1 and "http://node4:8000 does not answer" in done.stderr
    assert slurm.called_with("train") is None


@pytest.mark.parametrize("environment", [{"SERVER_NODES": "4"}, {"SERVER_NODES": "0"}, {"TENSOR_PARALLEL": "3"}])
def test_shares_that_do_not_work_out_are_refused(slurm: Slurm, environment: dict[str, str]) -> None:
    done = slurm.run("my.yaml", **environment)
    assert done.returncode == 2 and "must leave some of 4 nodes" in done.stderr
    assert slurm.called_with("serve") is None


SHELL_SCRIPTS = sorted([*SCRIPTS.glob("*.sh"), *SCRIPTS.glob("slurm/*.sbatch")])


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


SMALL = ["run.steps=2", "data.prompts=64", "eval.data=null", "run.threads=1", "learner=fsdp", "reward.workers=1"]


@pytest.mark.slow
def test_two_nodes_by_torchrun_train_as_one_launch_of_two_processes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    dapo = [sys.executable, "-m", "dapo_cli", "train", "quickstart", *SMALL, f"run.dir={tmp_path / 'one'}"]
    subprocess.run([*dapo, "launch.processes_per_node=2"], env=environment, check=True, timeout=200)
    nodes = {"NODES": "2", "HEAD": "localhost", "LOCAL_ADDR": "localhost", "GPUS": "1", "PORT": str(port)}
    nodes["TORCHRUN"] = f"{sys.executable} -m torch.distributed.run"
    script = [str(SCRIPTS / "torchrun_nodes.sh"), "quickstart", *SMALL, f"run.dir={tmp_path / 'two'}"]
    started = [subprocess.Popen(script, env=environment | nodes) for _ in range(2)]
    deadline = time.monotonic() + 200
    assert [each.wait(max(1.0, deadline - time.monotonic())) for each in started] == [0, 0]
    one, two = (tmp_path / name / "metrics.jsonl" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    manifest = json.loads((tmp_path / "two" / "manifest.json").read_text())
    assert manifest["processes"] == 2 and manifest["recipe"]["launch"]["nodes"] == 2
