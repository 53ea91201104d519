"""How many runs fit on this machine at a time, and what each place for one is given of it."""

import os
import subprocess
from collections.abc import Sequence

from dapo_cli.ablation.plan import MatchBy
from dapo_cli.ablation.points import Ablation
from dapo_cli.config.schema import Recipe, VllmServerRollout
from dapo_cli.errors import UserError

LIST_GPUS = ("nvidia-smi", "--list-gpus")
LIST_LIMIT_S = 60


def places_for(ablation: Ablation, jobs: int | None, gpus: Sequence[str], cpus: int) -> list[dict[str, str]]:
    """Environment variables of each place where a run can be: as many as `jobs`, else as the machine takes, or one
    where runs are matched by seconds.

    Each has GPUs of its own, launch.processes_per_node of them; more jobs than that share them. Raises UserError where
    there are fewer GPUs than a run's processes, or several jobs whose points generate with the same servers.
    """
    recipes = [point.recipe.recipe for point in ablation.points]
    processes = max(recipe.launch.processes_per_node for recipe in recipes)
    shared_servers = any(isinstance(recipe.rollout, VllmServerRollout) for recipe in recipes)
    if shared_servers and (jobs or 1) > 1:
        raise UserError(f"--jobs {jobs}: rollout.servers hold the weights of one run at a time; leave --jobs out")
    if 0 < len(gpus) < processes:
        raise UserError(
            f"launch.processes_per_node = {processes}: each process takes a GPU, and {len(gpus)} of them can be seen; "
            "give a lower number, or CUDA_VISIBLE_DEVICES= for CPUs"
        )
    slices = [gpus[start : start + processes] for start in range(0, len(gpus) - processes + 1, processes)]
    alone = shared_servers or ablation.match.by is MatchBy.seconds  # runs beside each other slow each other down
    fitting = len(slices) if gpus else max(1, cpus // max(map(threads_of, recipes)))
    number = jobs or (1 if alone else fitting)
    if not gpus:
        return [{} for _ in range(number)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(slices[place % len(slices)])} for place in range(number)]


def threads_of(recipe: Recipe) -> int:
    """Those of all processes of a run. Its verifiers, idle for most of a step, share their CPUs."""
    return recipe.launch.processes_per_node * (recipe.run.threads or 1)


def cpus_of(recipe: Recipe) -> int:
    """What a scheduler should give a run: its threads, and a CPU for each of its verifiers."""
    return threads_of(recipe) + recipe.launch.processes_per_node * recipe.reward.workers


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; without torch. Raises UserError where the
    driver does not answer."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(LIST_GPUS, capture_output=True, text=True, timeout=LIST_LIMIT_S)
    except OSError:  # no driver is installed
        return []
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{' '.join(LIST_GPUS)} has not answered for {LIST_LIMIT_S} s, so how many GPUs there are is not known; "
            "give CUDA_VISIBLE_DEVICES=0,1,... (empty for CPUs)"
        ) from None
    return [str(place) for place, line in enumerate(filter(_is_gpu, listed.stdout.splitlines()))]


def _is_gpu(line: str) -> bool:
    """`GPU 0: …`; parts of a GPU follow on lines that are indented."""
    return line.startswith("GPU ")
