"""An ablation as a Slurm job array: one task a run, which Slurm may stop and start again."""

import os
import shlex
from pathlib import Path

from dapo_cli.ablation.devices import cpus_of
from dapo_cli.ablation.points import Ablation

SCRIPT = """\
#!/bin/bash
# The {number} runs of the ablation {name}, one a task of a job array; written by `dapo ablate --slurm`.
#
#   sbatch --time=4:00:00 {script}
#
# Where runs take GPUs, give --gpus-per-task={processes} too.
# `dapo` must be on PATH (or DAPO=/path/to/dapo), and the folder one that all nodes see. Before the time limit, Slurm
# sends USR1 to this script alone, which asks the run to save and stop after its current step; exit code 3 then puts the
# task back into the queue, where it goes on. sbatch --signal=B:USR1@1800 asks half an hour before the limit. A failed
# run stops no other; submitting the script again, or `sbatch --array=N` for task N, tries what is not done again.
#
#SBATCH --job-name={name}
#SBATCH --array=0-{last}{at_a_time}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

RUNS=(
{runs}
)
cd {folder}

at_limit=false
trap 'trap "" USR1; at_limit=true; kill -TERM $!' USR1

"${{DAPO:-dapo}}" ablate {plan} --only "${{RUNS[$SLURM_ARRAY_TASK_ID]}}" &
status=0
wait $! || status=$?
if $at_limit && [[ $status -eq $((128 + $(kill -l USR1))) ]]; then # it was `wait` that the signal ended
    status=0
    wait $! || status=$?
fi
if $at_limit && [[ $status -eq 3 ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def array_script(ablation: Ablation, script: Path, at_a_time: int | None) -> str:
    """The text of `script`: a task for each run, at most `at_a_time` of them at once."""
    recipes, runs = [point.recipe.recipe for point in ablation.points], ablation.runs
    return SCRIPT.format(
        number=len(runs),
        name=ablation.plan.name,
        processes=max(recipe.launch.processes_per_node for recipe in recipes),
        script=script.name,
        last=len(runs) - 1,
        at_a_time="" if at_a_time is None else f"%{at_a_time}",
        cpus=max(map(cpus_of, recipes)),
        runs="\n".join(f"    {shlex.quote(run.name)}" for run in runs),
        folder=shlex.quote(os.getcwd()),
        plan=shlex.quote(str(ablation.plan.path.resolve())),
    )
