"""What judged samples of some prompts say of a step: pure functions of counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dapo_cli.config.schema import SamplerConfig, Surplus
from dapo_cli.evaluation.metrics import pass_at

SIMULATED_STEPS = 4000  # the rounds of a step vary by less than 1, so that their mean is exact to about 0.01
Z95 = 1.96


def chance_mixed(right: int, samples: int, size: int) -> float:
    """The chance that `size` completions drawn without replacement out of a prompt's `samples` are neither all right
    nor all wrong: 1 - [C(c, n) + C(k - c, n)] / C(k, n), for c right ones of k and groups of n.

    Over samples that are right with probability p, its mean is 1 - p^n - (1 - p)^n exactly. With the share c/k in the
    place of p it would be too low, since that function is concave.

    >>> chance_mixed(1, 4, 4), chance_mixed(1, 4, 2), chance_mixed(4, 4, 2)
    (1.0, 0.5, 0.0)
    """
    return pass_at(right, samples, size) + pass_at(samples - right, samples, size) - 1


@dataclass(frozen=True)
class Yield:
    """Expected share of informative groups, with the 95 % interval over prompts. `size` is that of the groups: where a
    prompt has fewer samples than the recipe's G, it is the number of samples, and the rate a lower bound, since larger
    groups are mixed more often. No unbiased estimate for G exists then."""

    rate: float
    low: float
    high: float
    size: int
    lower_bound: bool


def expected_yield(rights: Sequence[int], samples: int, group_size: int) -> Yield:
    """From the right ones of each prompt's `samples`. The interval is Wilson's (1927), which takes a prompt's chance
    for 0 or 1: right for `samples` = G, else too wide rather than too narrow."""
    size = min(samples, group_size)
    rate = math.fsum(chance_mixed(right, samples, size) for right in rights) / len(rights)
    low, high = wilson(rate, len(rights))
    return Yield(rate, low, high, size, lower_bound=samples < group_size)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` draws.

    >>> [round(bound, 3) for bound in wilson(0.5, 10)]
    [0.237, 0.763]
    """
    scale = 1 + Z95**2 / count
    centre = (share + Z95**2 / (2 * count)) / scale
    half = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class StepForecast:
    """Means of a step: rounds, prompts tried in them, and groups that it trains on."""

    rounds: float
    prompts: float
    groups: float


def forecast_step(sampler: SamplerConfig, groups_per_step: int, rate: float, prompts: int) -> StepForecast:
    """Of a step whose groups are informative with chance `rate`, as the sampler by then expects; the data has `prompts`
    prompts, and no round goes beyond them."""
    cap = min(sampler.max_prompts_per_round, prompts)
    if not (sampler.dynamic and sampler.refill):
        rounds = min(sampler.max_rounds, math.ceil(groups_per_step / cap))
        tried = min(groups_per_step, rounds * cap)
        return StepForecast(rounds, tried, tried * rate if sampler.dynamic else tried)
    if rate == 0:
        return StepForecast(sampler.max_rounds, sampler.max_rounds * cap, 0)
    mean_rounds, mean_tried, missing = _simulate(sampler, groups_per_step, rate, cap)
    groups = groups_per_step - missing
    if sampler.surplus is not Surplus.discard:
        mean_tried = groups / rate  # what is beyond the batch serves later steps
    return StepForecast(mean_rounds, mean_tried, groups)


def _simulate(sampler: SamplerConfig, wanted: int, rate: float, cap: int) -> tuple[float, float, float]:
    """Means of rounds, prompts tried and groups missing at the end, by rounds of the sampler's size."""
    rng = np.random.Generator(np.random.PCG64(0))
    missing = np.full(SIMULATED_STEPS, wanted)
    rounds, tried = np.zeros(SIMULATED_STEPS), np.zeros(SIMULATED_STEPS)
    for _ in range(sampler.max_rounds):
        if not (short := missing > 0).any():
            break
        # `algorithm.sampler.round_size` of all steps at a time.
        sizes = np.minimum(cap, np.ceil(missing * sampler.oversample / rate)).astype(np.int64)
        rounds += short
        tried += sizes
        missing = np.maximum(0, missing - rng.binomial(sizes, rate))
    return float(rounds.mean()), float(tried.mean()), float(missing.mean())
