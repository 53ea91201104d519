"""Advantages of a step's batch: Eq. 9, and what others of its family put in its place."""

import math
from collections.abc import Sequence
from statistics import fmean

from dapo_cli.config.schema import Advantage
from dapo_cli.types import FIRST_VISIT, Group, RewardHistory

EPS = 1e-6  # of Eq. 9 in the authors' code
# Shaped rewards that differ at all differ by 1 / L_cache or more; a deviation below this is the rounding of equal ones.
LEAST_DEVIATION = 1e-6


def batch_advantages(groups: Sequence[Group], kind: Advantage) -> list[list[float]]:
    """The advantage of every rollout of a step's batch, parallel to `groups` and their rollouts.

    Raises ValueError for a group of one.
    """
    rewards = [group.rewards for group in groups]
    match kind:
        case Advantage.group_std:
            return [group_advantages(each) for each in rewards]
        case Advantage.mean:
            return [centred(each) for each in rewards]
        case Advantage.leave_one_out:
            return [leave_one_out(each) for each in rewards]
        case Advantage.batch_std:
            return batch_std_advantages(rewards)
        case Advantage.smoothed:
            return [smoothed_advantages(group.rewards, group.history) for group in groups]


def group_advantages(rewards: Sequence[float], eps: float = EPS) -> list[float]:
    """(R_i - mean) / (std + eps), Eq. 9, with the sample standard deviation (n - 1).

    The paper does not say which deviation; n - 1 and eps are the authors' code. Every loss token of rollout i carries
    advantage i. Raises ValueError for a group of one, whose deviation is undefined.

    >>> [round(a, 3) for a in group_advantages([1.0, -1.0, -1.0, -1.0])]
    [1.5, -0.5, -0.5, -0.5]
    """
    differences = centred(rewards)
    std = math.sqrt(math.fsum(difference**2 for difference in differences) / (len(rewards) - 1))
    return [difference / (std + eps) for difference in differences]


def centred(rewards: Sequence[float]) -> list[float]:
    """R_i - mean: Dr. GRPO (Liu et al. 2025, arXiv:2503.20783), to which a deviation favours questions that are nearly
    always or hardly ever solved. Raises ValueError for a group of one.

    >>> centred([1.0, -1.0, -1.0, -1.0])
    [1.5, -0.5, -0.5, -0.5]
    """
    if len(rewards) < 2:
        raise ValueError("a group needs at least two rollouts")
    mean = fmean(rewards)
    return [reward - mean for reward in rewards]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """R_i less the mean of the others: RLOO (Ahmadian et al. 2024, arXiv:2402.14740), whose baseline does not depend
    on the rollout that it judges. It is n / (n - 1) of the difference from the mean of all.

    >>> [round(a, 3) for a in leave_one_out([1.0, -1.0, -1.0, -1.0])]
    [2.0, -0.667, -0.667, -0.667]
    """
    return [difference * len(rewards) / (len(rewards) - 1) for difference in centred(rewards)]


def batch_std_advantages(rewards: Sequence[Sequence[float]], eps: float = EPS) -> list[list[float]]:
    """Differences from the own group's mean over their sample deviation in the whole batch of the step.

    ScaleRL (Khatri et al. 2025, arXiv:2510.13786, section 3) divides by the deviation of the batch's advantages, as
    here; Lite PPO (arXiv:2508.08221) by that of the batch's rewards, which the spread of the groups' means adds to.

    >>> [[round(a, 3) for a in group] for group in batch_std_advantages([[1.0, -1.0], [0.5, 0.5]])]
    [[1.225, -1.225], [0.0, 0.0]]
    """
    differences = [centred(each) for each in rewards]
    every = [difference for group in differences for difference in group]
    if not every:
        return []
    # Their mean is 0, since each group's is.
    std = math.sqrt(math.fsum(difference**2 for difference in every) / (len(every) - 1))
    return [[difference / (std + eps) for difference in group] for group in differences]


def smoothed_advantages(rewards: Sequence[float], history: RewardHistory) -> list[float]:
    """DCPO's smooth advantage standardisation (Yang et al. 2025, arXiv:2509.02333) at a prompt's i-th visit.

    A_new are the rewards standardised among themselves, A_total among all rewards of the prompt so far, these included.
    Of (i-1)/i A_new + 1/i A_total and 1/i A_new + (i-1)/i A_total the one nearer to 0 counts. So a group of equal
    rewards still teaches once an earlier visit was different. Sample deviations; where one is 0, so is what it would
    divide, without eps, as in the authors' code. That code pools the deviations of visits; here it is the deviation of
    all rewards.

    >>> wrong_before = RewardHistory().after([-1.0, -1.0])
    >>> [round(a, 3) for a in smoothed_advantages([1.0, 1.0], wrong_before)]  # half of 1 / sqrt(4 / 3)
    [0.433, 0.433]
    """
    if len(rewards) < 2:
        raise ValueError("a group needs at least two rollouts")
    total = history.after(rewards)
    one_visit = 1 / total.visits
    advantages = []
    among_new, among_all = _standardised(rewards, FIRST_VISIT.after(rewards)), _standardised(rewards, total)
    for new, of_all in zip(among_new, among_all, strict=True):
        smooth_new = (1 - one_visit) * new + one_visit * of_all
        smooth_total = one_visit * new + (1 - one_visit) * of_all
        advantages.append(smooth_new if abs(smooth_new) < abs(smooth_total) else smooth_total)
    return advantages


def _standardised(rewards: Sequence[float], among: RewardHistory) -> list[float]:
    std = math.sqrt(among.squares / (among.size - 1))
    if std < LEAST_DEVIATION:
        return [0.0] * len(rewards)
    return [(reward - among.mean) / std for reward in rewards]
