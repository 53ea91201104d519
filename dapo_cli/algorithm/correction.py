"""The engine's policy beside the learner's: how far they are apart, and weights that correct for it.

Engine and learner compute the same model with other kernels, types and batches, and under `run.ahead` other weights.
Samples then come from pi_engine and not from pi_old, by which the loss takes its ratio. d = log pi_old - log pi_engine
of the sampled tokens says by how much; exp(d) is the importance weight.
"""

from collections.abc import Sequence

import numpy as np

from dapo_cli.config.schema import CorrectionConfig, CorrectionKind, CorrectionLevel
from dapo_cli.types import ScoredGroup

MAX_LOG_WEIGHT = 20.0  # exp of more says no more, and overflows in the end


def log_weights(scored: ScoredGroup) -> list[np.ndarray]:
    """d for each rollout of the group, [T_i] float32."""
    return [
        old - np.asarray(rollout.completion.logprobs, dtype=np.float32)
        for old, rollout in zip(scored.old_logprobs, scored.group.rollouts, strict=True)
    ]


def correction_weights(log_weights_T: np.ndarray, config: CorrectionConfig) -> np.ndarray:
    """What each token's loss of one completion is multiplied by, [T] float32; ones where the recipe does not correct.

    Truncated importance sampling (TIS, Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training"): min(exp(d), cap). Masked (IcePop, Zhao et al. 2025, "Small leak can sink a great ship"): exp(d) where it
    is within [mask_low, mask_high], else 0. At the level of sequences every token has its completion's weight, exp of
    the sum of d (Liu et al. 2025, "When speed kills stability").

    >>> d = np.log(np.array([0.25, 1.0, 3.0], dtype=np.float32))
    >>> correction_weights(d, CorrectionConfig(CorrectionKind.truncated)).tolist()
    [0.25, 1.0, 2.0]
    >>> correction_weights(d, CorrectionConfig(CorrectionKind.masked, mask_high=2.0)).tolist()
    [0.0, 1.0, 0.0]
    >>> correction_weights(d, CorrectionConfig(CorrectionKind.truncated, CorrectionLevel.sequence)).tolist()
    [0.75, 0.75, 0.75]
    """
    if config.kind is CorrectionKind.none:
        return np.ones_like(log_weights_T)
    if config.level is CorrectionLevel.sequence:
        log_weights_T = np.full_like(log_weights_T, log_weights_T.sum(dtype=np.float64))
    weights_T = np.exp(log_weights_T.clip(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT))
    if config.kind is CorrectionKind.truncated:
        return np.minimum(weights_T, np.float32(config.cap))
    within_T = (weights_T >= config.mask_low) & (weights_T <= config.mask_high)
    return np.where(within_T, weights_T, np.float32(0))


def corrected_advantages(
    scored: ScoredGroup, advantages: Sequence[float], config: CorrectionConfig
) -> list[np.ndarray]:
    """The advantage of each rollout times the weights of its tokens, [T_i] float32."""
    if config.kind is CorrectionKind.none:
        pairs = zip(scored.old_logprobs, advantages, strict=True)
        return [np.full(len(old), advantage, dtype=np.float32) for old, advantage in pairs]
    weights = [correction_weights(d, config) for d in log_weights(scored)]
    return [np.float32(advantage) * weights_T for advantage, weights_T in zip(advantages, weights, strict=True)]


def mismatch_metrics(batch: Sequence[ScoredGroup], config: CorrectionConfig) -> dict[str, float | None]:
    """Over the completion tokens of a batch: mean and maximum of |d|, in nats; KL(pi_engine || pi_old) by k3,
    exp(d) - 1 - d; the effective sample size of the weights exp(d) as a share of the tokens, (sum w)^2 / (N sum w^2);
    and where the recipe corrects, the mean weight and the share of tokens that were truncated or masked.
    """
    log_weights_N = [d for scored in batch for d in log_weights(scored)]
    if not log_weights_N:
        names = ("mean_abs", "max_abs", "kl", "ess")
        return {f"mismatch/{name}": None for name in names}
    d_N = np.concatenate(log_weights_N).astype(np.float64)
    w_N = np.exp(d_N.clip(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT))
    metrics: dict[str, float | None] = {
        "mismatch/mean_abs": float(np.abs(d_N).mean()),
        "mismatch/max_abs": float(np.abs(d_N).max()),
        "mismatch/kl": float((w_N - 1 - d_N).mean()),
        "mismatch/ess": float(w_N.sum() ** 2 / (len(w_N) * (w_N**2).sum())),
    }
    if config.kind is not CorrectionKind.none:
        used_N = np.concatenate([correction_weights(d, config) for d in log_weights_N])
        bound = config.cap if config.kind is CorrectionKind.truncated else 0.0
        metrics["mismatch/weight_mean"] = float(used_N.mean(dtype=np.float64))
        metrics["mismatch/corrected"] = float((used_N == np.float32(bound)).mean())
    return metrics
