"""Group-relative advantage, Eq. 9."""

import math
from collections.abc import Sequence


def group_advantages(rewards: Sequence[float], eps: float = 1e-6) -> list[float]:
    """(R_i - mean) / (std + eps), Eq. 9, with the sample standard deviation (n - 1).

    The paper does not say which deviation; n - 1 and eps are the authors' code. Every loss token of rollout i carries
    advantage i. Raises ValueError for a group of one, whose deviation is undefined.

    >>> [round(a, 3) for a in group_advantages([1.0, -1.0, -1.0, -1.0])]
    [1.5, -0.5, -0.5, -0.5]
    """
    if len(rewards) < 2:
        raise ValueError("a group needs at least two rollouts")
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - mean) / (std + eps) for reward in rewards]
