"""The verifier where training runs it: in threads of torchrun's ranks, beside torch's own threads and process group."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RANK = r"""
import threading
import torch
import torch.distributed as dist
from dapo_cli.config.schema import MathReward
from dapo_cli.reward.modes import build_verifier
from dapo_cli.types import Case

torch.set_num_threads(2)
torch.ones(512, 512) @ torch.ones(512, 512)  # its thread pool is up before a worker starts
dist.init_process_group("gloo")
rank = dist.get_rank()
tower = r"\boxed{9^{9^{9^{9}}}}"
cases = [Case("", rf"\boxed{{(x+{n})^2}}", rf"x^2+{2 * n}x+{n * n}") for n in range(40)]
cases += [Case("", r"\boxed{\int_0^1 x}", "1"), Case("", tower, "5"), Case("", "Answer: 7", "7")]
found = []

def judge():
    with build_verifier(MathReward(workers=1)) as pool:
        found.extend(verdict.outcome.value for verdict in pool.verify(cases))

thread = threading.Thread(target=judge)
thread.start()
thread.join()
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, found)
assert gathered == [["right"] * 40 + ["wrong", "wrong", "right"]] * 2, gathered
dist.destroy_process_group()
print(f"rank {rank} is done", flush=True)
"""


def test_verdicts_agree_in_a_thread_of_every_rank(tmp_path: Path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "rank 0 is done" in ended.stdout and "rank 1 is done" in ended.stdout
