"""The objective of every member of the family as pure functions of [N] tensors: DAPO's clipped surrogate with
token-level aggregation (Eq. 8, 10 and 12), and what others put in its place (docs/algorithms.md has each formula).

N counts the completion tokens of a micro-batch laid end to end, so that no mask or padding enters the mathematics. A
suffix C stands for a chunk of them.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dapo_cli.config.schema import Surrogate


@dataclass(frozen=True)
class Clip:
    """How `surrogate` bounds the ratio: to [1 - low, 1 + high] in Eq. 10; `dual` is c of dual clip, None for off."""

    low: float
    high: float
    dual: float | None = None
    surrogate: Surrogate = Surrogate.clip


@dataclass(frozen=True)
class LossTokens:
    """What the loss needs of N tokens besides their log-probs, each [N] float32.

    `weights_N` is the token's share of the loss relative to the token mean (`aggregation`). `ref_logprobs_N` are the
    reference model's, None without one. `log_ratios_N` are log s of the token's completion, for a ratio of sequences.
    """

    old_logprobs_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    ref_logprobs_N: Tensor | None = None
    log_ratios_N: Tensor | None = None

    def __getitem__(self, chunk: slice) -> "LossTokens":
        ref, log_ratios = self.ref_logprobs_N, self.log_ratios_N
        return LossTokens(
            self.old_logprobs_N[chunk],
            self.advantages_N[chunk],
            self.weights_N[chunk],
            None if ref is None else ref[chunk],
            None if log_ratios is None else log_ratios[chunk],
        )


def weighted_losses(logprobs_N: Tensor, tokens: LossTokens, clip: Clip, kl_coefficient: float) -> Tensor:
    """Each token's loss times its weight in the aggregation, [N] float32: the surrogate's, plus kl_coefficient times k3
    to the reference model where there is one (GRPO, arXiv:2402.03300, Eq. 3 and 4).

    An advantage may carry a correction for the engine (`algorithm.correction`), in which every surrogate is linear; the
    KL term, which is of the policy alone, does not.
    """
    losses_N = token_losses(logprobs_N, tokens.old_logprobs_N, tokens.advantages_N, clip, tokens.log_ratios_N)
    if tokens.ref_logprobs_N is not None:
        losses_N = losses_N + kl_coefficient * k3(tokens.ref_logprobs_N - logprobs_N)
    return losses_N * tokens.weights_N


def token_losses(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    clip: Clip,
    log_ratios_N: Tensor | None = None,
) -> Tensor:
    """The surrogate's loss of each token, [N] float32; r = exp(logprobs - old_logprobs), or with `log_ratios_N` the
    value exp(log_ratios) with the gradient of a token's own log-prob (`sequence_log_ratios`)."""
    if log_ratios_N is None:
        ratio_N = torch.exp(logprobs_N - old_logprobs_N)
    else:
        ratio_N = torch.exp(log_ratios_N + logprobs_N - logprobs_N.detach())
    return _surrogate(logprobs_N, old_logprobs_N, ratio_N, advantages_N, clip).losses_N


@dataclass(frozen=True)
class _Bounded:
    """Losses [N], and the tokens that the upper, the lower or dual clip's bound was put upon, [N] bool each."""

    losses_N: Tensor
    high_N: Tensor
    low_N: Tensor
    dual_N: Tensor


def _surrogate(
    logprobs_N: Tensor, old_logprobs_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, clip: Clip
) -> _Bounded:
    """The one place that decides what a bound does to a token, for the loss and for the statistics."""
    low, high = ratio_bounds(old_logprobs_N, clip)
    dual = torch.inf if clip.dual is None else clip.dual
    match clip.surrogate:
        case Surrogate.clip | Surrogate.dynamic_clip:
            return _clipped(ratio_N, advantages_N, low, high, dual)
        case Surrogate.cispo:
            return _capped(logprobs_N, ratio_N.detach(), advantages_N, high)
        case Surrogate.aspo:
            return _flipped(
                logprobs_N, ratio_N.detach(), advantages_N, dual, _clipped(ratio_N, advantages_N, low, high, dual)
            )


def _clipped(ratio_N: Tensor, advantages_N: Tensor, low: Tensor, high: Tensor, dual: float) -> _Bounded:
    """-min(r A, clip(r) A), Eq. 8/10: with high where A > 0, with low where A < 0. Dual clip makes it max(that min,
    c A) where A < 0 (Ye et al. 2020, arXiv:1912.09729), which the DAPO paper does not use and its authors' script sets
    to c = 10. A bound in the place of r stops the token's gradient."""
    high_N = (ratio_N > high) & (advantages_N > 0)
    low_N = (ratio_N < low) & (advantages_N < 0)
    dual_N = (ratio_N > dual) & (advantages_N < 0)
    bounded_N = torch.where(high_N, high, torch.where(low_N, low, torch.where(dual_N, dual, ratio_N)))
    return _Bounded(-bounded_N * advantages_N, high_N, low_N, dual_N)


def _capped(logprobs_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, high: Tensor) -> _Bounded:
    """CISPO: -min(r, 1 + high) A log pi with a constant ratio. The cap lowers a weight and stops no gradient."""
    losses_N = -ratio_N.clamp(max=high) * advantages_N * logprobs_N
    high_N = (ratio_N > high) & (advantages_N != 0)
    return _Bounded(losses_N, high_N, torch.zeros_like(high_N), torch.zeros_like(high_N))


def _flipped(logprobs_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, dual: float, clipped: _Bounded) -> _Bounded:
    """ASPO (arXiv:2510.06062, section 6), where A > 0: the value -A pi_old / pi with the gradient
    -A (pi_old / pi) grad log pi, which pi_old pi / sg(pi^2) has; nothing where r > 1 + high (a mask that comes first).
    Dual clip bounds pi_old / pi by c in value and gradient alike, but does not stop the gradient. Elsewhere it is
    `clipped`, that of PPO."""
    positive_N, inverse_N = advantages_N > 0, ratio_N.reciprocal()
    weight_N = inverse_N.clamp(max=dual) * ~clipped.high_N
    flipped_N = -weight_N * advantages_N * torch.exp(logprobs_N - logprobs_N.detach())
    dual_N = clipped.dual_N | (positive_N & (inverse_N > dual))
    return _Bounded(torch.where(positive_N, flipped_N, clipped.losses_N), clipped.high_N, clipped.low_N, dual_N)


def ratio_bounds(old_logprobs_N: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """The lower and the upper bound of r: one number each, or with dynamic_clip [N] float32.

    Dynamic-adaptive clipping (DCPO, arXiv:2509.02333, Eq. 4) bounds |(r - 1) p| instead of |r - 1|, so that the bounds
    depend on q = pi_old of the token: 1/2 + 1/2 sqrt(max(1 - 4 low / q, 0)) and 1/2 + 1/2 sqrt(1 + 4 high / q); dual
    clip also bounds the latter, which grows as q falls.
    """
    if clip.surrogate is not Surrogate.dynamic_clip:
        return old_logprobs_N.new_full((), 1 - clip.low), old_logprobs_N.new_full((), 1 + clip.high)
    inverse_q_N = torch.exp(-old_logprobs_N)
    low_N = 0.5 + 0.5 * (1 - 4 * clip.low * inverse_q_N).clamp(min=0).sqrt()
    high_N = 0.5 + 0.5 * (1 + 4 * clip.high * inverse_q_N).sqrt()
    return low_N, high_N if clip.dual is None else high_N.clamp(max=clip.dual)


def sequence_log_ratios(logprobs_N: Tensor, old_logprobs_N: Tensor, lengths: Sequence[int]) -> Tensor:
    """log s of each token's completion, the mean of log r over its tokens (GSPO, arXiv:2507.18071, Eq. 7), [N] float32;
    `lengths` are those of the completions that lie end to end.

    >>> sequence_log_ratios(torch.tensor([0.5, 0.0, 2.0]), torch.zeros(3), [2, 1])
    tensor([0.2500, 0.2500, 2.0000])
    """
    log_ratios_N = logprobs_N - old_logprobs_N
    return torch.cat([part.mean().expand(len(part)) for part in log_ratios_N.split(list(lengths))])


def k3(differences_N: Tensor) -> Tensor:
    """exp(d) - 1 - d, 0 or more, with d = log other - log policy: its mean over tokens of the policy estimates
    KL(policy || other) without bias (Schulman 2020, "Approximating KL divergence")."""
    return torch.exp(differences_N) - 1 - differences_N


def token_mean_loss(losses_N: Tensor, num_loss_tokens: int) -> Tensor:
    """This micro-batch's share of the mini-batch loss: its sum over the mini-batch's number of loss tokens, Eq. 12.

    `num_loss_tokens` counts all micro-batches and ranks, so that shares add up to the one token mean. The paper writes
    the sum per question; the authors' code, which produced the result, divides over the mini-batch, as here. Other
    aggregations are weights of the tokens before this mean (`aggregation`).
    """
    return losses_N.sum() / num_loss_tokens


NO_SUMS: dict[str, Callable[[Any, Any], Any]] = {"ratio_min": min, "ratio_max": max, "has_reference": operator.or_}


@dataclass
class UpdateStats:
    """Sums over the loss tokens of one or more updates; `metrics` turns them into means. `skipped` counts updates left
    out because a float16 gradient overflowed. `kl_reference` counts where there is a reference."""

    tokens: int = 0
    updates: int = 0
    skipped: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    positive: float = 0
    clipped_high: float = 0
    clipped_high_positive: float = 0  # of the former, those of a positive advantage
    clipped_low: float = 0
    clipped_dual: float = 0
    ratio_min: float = float("inf")
    ratio_max: float = float("-inf")
    kl: float = 0.0
    kl_reference: float = 0.0
    has_reference: bool = False

    def add_tokens(self, logprobs_N: Tensor, tokens: LossTokens, clip: Clip) -> None:
        """Take in the ratios of one micro-batch; needs no gradient.

        Counted are the tokens whose gradient a bound stops: `high` where A > 0, `low` and `dual` where A < 0. CISPO's
        cap stops none: `high` counts the tokens of either sign whose weight it lowers. ASPO's dual clip of pi_old / pi,
        where A > 0, stops none either: `dual` counts those, too. Of a ratio of sequences it is theirs that is taken.
        """
        old_N, advantages_N = tokens.old_logprobs_N, tokens.advantages_N
        log_ratio_N = (logprobs_N - old_N).double()
        ratio_N = (log_ratio_N if tokens.log_ratios_N is None else tokens.log_ratios_N.double()).exp()
        bounded = _surrogate(logprobs_N, old_N.double(), ratio_N, advantages_N, clip)
        positive_N = advantages_N > 0
        figures = {
            "positive": positive_N.sum(),
            "clipped_high": bounded.high_N.sum(),
            "clipped_high_positive": (bounded.high_N & positive_N).sum(),
            "clipped_low": bounded.low_N.sum(),
            "clipped_dual": bounded.dual_N.sum(),
            "ratio_min": ratio_N.min(),
            "ratio_max": ratio_N.max(),
            "kl": k3(log_ratio_N).sum(),  # over tokens of the old policy: KL(old || new)
        }
        if tokens.ref_logprobs_N is not None:
            figures["kl_reference"] = k3((tokens.ref_logprobs_N - logprobs_N).double()).sum()
        # Read at once: each reading waits for the device.
        values = torch.stack([each.double() for each in figures.values()]).tolist()
        known = {"tokens": ratio_N.numel(), "has_reference": tokens.ref_logprobs_N is not None}
        self._take_in(dict(zip(figures, values, strict=True)) | known)

    def merge(self, other: "UpdateStats") -> "UpdateStats":
        merged = replace(self)
        merged._take_in(vars(other))
        return merged

    def _take_in(self, figures: Mapping[str, Any]) -> None:
        for name, value in figures.items():
            setattr(self, name, NO_SUMS.get(name, operator.add)(getattr(self, name), value))

    def metrics(self) -> dict[str, float | int | None]:
        """Means over tokens (clip fractions, KL) and over updates (loss, gradient norm before clipping); None where
        no update was made."""
        counts = {"updates": self.updates, "skipped_updates": self.skipped, "loss_tokens": self.tokens}
        means = {
            "loss": (self.loss, self.updates),
            "grad_norm": (self.grad_norm, self.updates),
            "positive": (self.positive, self.tokens),
            "clip_high": (self.clipped_high, self.tokens),
            "clip_high_of_positive": (self.clipped_high_positive, self.positive),
            "clip_low": (self.clipped_low, self.tokens),
            "clip_dual": (self.clipped_dual, self.tokens),
            "ratio_min": (self.ratio_min, 1),
            "ratio_max": (self.ratio_max, 1),
            "approx_kl": (self.kl, self.tokens),
        }
        if self.has_reference:
            means["kl_reference"] = (self.kl_reference, self.tokens)
        figures = {name: total / count if self.updates and count else None for name, (total, count) in means.items()}
        return {f"policy/{name}": value for name, value in (counts | figures).items()}
