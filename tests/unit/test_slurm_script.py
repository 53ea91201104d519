"""scripts/slurm/train.sbatch with stand-ins for Slurm's commands: what it starts on the nodes, and when it requeues."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.stand_ins import StandIns

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm" / "train.sbatch"
OPTIONS = ["--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=120"]

# Each command notes its arguments. `srun` ends with FAKE_STATUS; with FAKE_SIGNAL it first sends that to the script, as
# Slurm does, and waits to be told to stop.
RECORD = 'printf "%s\\0" "$@" > "$FAKE_RECORDS/${0##*/}"\n'
COMMANDS = {
    "srun": RECORD
    + """
echo "$SRUN_CPUS_PER_TASK" > "$FAKE_RECORDS/cpus"
if [[ -n "${FAKE_SIGNAL:-}" ]]; then
    kill -s "$FAKE_SIGNAL" "$PPID"
    for _ in {1..200}; do
        [[ -e "$FAKE_RECORDS/scancel" ]] && break
        sleep 0.05
    done
    sleep 0.2  # a step and its checkpoint
fi
exit "$FAKE_STATUS"
""",
    "scancel": RECORD,
    "scontrol": RECORD,
    "hostname": "echo node7\n",
    "nvidia-smi": 'printf "GPU %s\\n" 0 1 2\n',
}


class Slurm(StandIns):
    def run(self, *arguments: str, status: int = 0, **environment: str) -> int:
        """The script's exit status."""
        variables = {key: value for key, value in (self.job(1, status) | environment).items() if value}
        return subprocess.run(["bash", str(SCRIPT), *arguments], env=variables, timeout=60).returncode


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path, COMMANDS)


@pytest.mark.parametrize("nodes", ["1", "3"])
def test_one_task_a_node_gets_the_arguments_as_they_are_and_its_place(slurm: Slurm, nodes: str) -> None:
    arguments = ["my recipe.yaml", "learner=fsdp_bf16", "run.dir=runs/a b * $HOME"]
    assert slurm.run(*arguments, SLURM_NNODES=nodes) == 0
    place = [f"launch.nodes={nodes}", "launch.processes_per_node=8", "launch.rendezvous=node7:24567"]
    assert slurm.called_with("srun") == [*OPTIONS, "dapo", "train", *arguments, *place]
    assert (slurm.records / "cpus").read_text() == "96\n"
    assert slurm.called_with("scontrol") is None


def test_the_environment_overrides_what_slurm_says(slurm: Slurm) -> None:
    own: dict[str, Any] = {
        "GPUS": "4",
        "HEAD": "ib-7",
        "PORT": "29400",
        "DAPO": "/opt/my env/bin/dapo",
        "SLURM_CPUS_PER_TASK": "32",
    }
    assert slurm.run("my.yaml", **own) == 0
    place = ["launch.nodes=1", "launch.processes_per_node=4", "launch.rendezvous=ib-7:29400"]
    assert slurm.called_with("srun") == [*OPTIONS, own["DAPO"], "train", "my.yaml", *place]
    assert (slurm.records / "cpus").read_text() == "32\n"


def test_where_slurm_counts_no_gpus_the_driver_does(slurm: Slurm) -> None:
    assert slurm.run("my.yaml", SLURM_GPUS_ON_NODE="") == 0
    assert "launch.processes_per_node=3" in (slurm.called_with("srun") or [])


@pytest.mark.parametrize("status", [0, 1, 2, 3, 137])
def test_without_the_signal_nothing_is_requeued(slurm: Slurm, status: int) -> None:
    assert slurm.run("my.yaml", status=status) == status
    assert slurm.called_with("scontrol") is None and slurm.called_with("scancel") is None


@pytest.mark.parametrize("status", [0, 1, 3])
def test_at_the_time_limit_the_steps_are_told_and_what_is_resumable_is_requeued(slurm: Slurm, status: int) -> None:
    assert slurm.run("my.yaml", status=status, FAKE_SIGNAL="USR1") == status
    assert slurm.called_with("scancel") == ["--signal=TERM", "1234567"]
    assert slurm.called_with("scontrol") == (["requeue", "1234567"] if status == 3 else None)


def test_slurm_sends_the_signal_that_the_script_waits_for_and_may_requeue_it() -> None:
    options = [line.split()[1] for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--signal=B:USR1@300", "--requeue", "--ntasks-per-node=1", "--open-mode=append"} <= set(options)
