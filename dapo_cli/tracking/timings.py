"""What the clock says of a step, over all ranks: pure functions, and what this process and its device are asked for."""

import resource
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dapo_cli.config.schema import Precision
from dapo_cli.protocols import Metrics
from dapo_cli.tracking.metrics import num_tokens, per_second, prefixed, rollouts_of
from dapo_cli.types import Group

if TYPE_CHECKING:
    import torch

# Dense FLOP/s in bfloat16 and float16, from NVIDIA's data sheets, by what the device's name contains; first match.
PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
}


@dataclass(frozen=True)
class RankTimings:
    """Of one rank: seconds of each phase and of the step, most memory held since the process began, model FLOPs."""

    seconds: dict[str, float]
    peak_bytes: int
    model_flops: dict[str, float]


def step_timings(
    ranks: Sequence[RankTimings],
    judged: Sequence[Group],
    scored: Sequence[Group],
    kept: Sequence[Group],
    device_peak: float | None,
) -> Metrics:
    """Seconds of each phase and of the whole step on the rank that took longest, and of several ranks which one that
    was; completion tokens of all ranks per second of each phase; model TFLOP/s of a rank, and of a device whose peak
    FLOP/s are known their share of these; the highest peak memory.
    """
    phases = {phase: [rank.seconds.get(phase, 0.0) for rank in ranks] for phase in ranks[0].seconds}
    longest = defaultdict(float, {phase: max(seconds) for phase, seconds in phases.items()})
    slowest = {phase: seconds.index(max(seconds)) for phase, seconds in phases.items() if phase != "step"}
    speed: Metrics = {}
    for phase in ranks[0].model_flops:
        flops_per_s = per_second(sum(rank.model_flops[phase] for rank in ranks) / len(ranks), longest[phase])
        if flops_per_s is not None:
            speed[f"tflops_per_s/{phase}"] = flops_per_s / 1e12
            if device_peak is not None:
                speed[f"mfu/{phase}"] = flops_per_s / device_peak
    return {
        **prefixed("seconds", longest),
        "seconds/per_verdict": longest["verify"] / len(rollouts_of(judged)) if judged else None,
        **(prefixed("slowest_rank", slowest) if len(ranks) > 1 else {}),
        "tokens_per_s/rollout": per_second(num_tokens(judged), longest["rollout"]),
        "tokens_per_s/score": per_second(num_tokens(scored), longest["score"]),
        "tokens_per_s/update": per_second(num_tokens(kept), longest["update"]),
        **speed,
        "memory/peak_bytes": max(rank.peak_bytes for rank in ranks),
    }


def peak_flops(device: "torch.device", precision: Precision) -> float | None:
    """FLOP/s that the device could do in that type; None where that is not known."""
    if device.type != "cuda" or precision is Precision.float32:
        return None
    import torch

    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


def peak_memory_bytes() -> int:
    """Most memory held at a time since the process began: the GPU's where torch uses one, else this process's own."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
