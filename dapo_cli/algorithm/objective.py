"""The objective of every member of the family as pure functions of [N] tensors: DAPO's clipped surrogate with
token-level aggregation (Eq. 8, 10 and 12), and what others put in its place (docs/algorithms.md has each formula).

N counts the completion tokens of a micro-batch laid end to end, so that no mask or padding enters the mathematics. A
suffix C stands for a chunk of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
    value exp(log_ratios) with the gradient of a token's own log-prob (`sequence_log_ratios`).

    clip, dynamic_clip: -min(r A, clip(r) A) within `ratio_bounds`, Eq. 8/10. With dual clip the value for A < 0 is
    max(that min, c A) (Ye et al. 2020, arXiv:1912.09729), which the DAPO paper does not use and its authors' script
    sets to c = 10. cispo: -sg(min(r, 1 + high)) A log pi. aspo: see `_flipped_losses`.
    """
    if log_ratios_N is None:
        ratio_N = torch.exp(logprobs_N - old_logprobs_N)
    else:
        ratio_N = torch.exp(log_ratios_N + logprobs_N - logprobs_N.detach())
    low, high = ratio_bounds(old_logprobs_N, clip)
    if clip.surrogate is Surrogate.cispo:
        return -ratio_N.detach().clamp(max=high) * advantages_N * logprobs_N
    surrogate_N = torch.minimum(ratio_N * advantages_N, ratio_N.clamp(low, high) * advantages_N)
    if clip.dual is not None:
        surrogate_N = torch.where(advantages_N < 0, torch.maximum(surrogate_N, clip.dual * advantages_N), surrogate_N)
    if clip.surrogate is Surrogate.aspo:
        flipped_N = _flipped_losses(logprobs_N, ratio_N.detach(), advantages_N, clip)
        return torch.where(advantages_N > 0, flipped_N, -surrogate_N)
    return -surrogate_N


def _flipped_losses(logprobs_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, clip: Clip) -> Tensor:
    """ASPO's loss where A > 0 (arXiv:2510.06062, section 6): the value -A pi_old / pi with the gradient
    -A (pi_old / pi) grad log pi, which pi_old pi / sg(pi^2) has; nothing where r > 1 + high (a mask that comes first).
    Dual clip bounds pi_old / pi by c in value and gradient alike, but does not stop the gradient."""
    weight_N = ratio_N.reciprocal()
    if clip.dual is not None:
        weight_N = weight_N.clamp(max=clip.dual)
    weight_N = weight_N * (ratio_N <= 1 + clip.high)
    return -weight_N * advantages_N * torch.exp(logprobs_N - logprobs_N.detach())


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


@dataclass
class UpdateStats:
    """Sums over the loss tokens of one or more updates; `metrics` turns them into means. `skipped` counts updates left
    out because a float16 gradient overflowed. `kl_reference` counts where there is a reference."""

    tokens: int = 0
    updates: int = 0
    skipped: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    positive: int = 0
    clipped_high: int = 0
    clipped_high_positive: int = 0  # of the former, those of a positive advantage
    clipped_low: int = 0
    clipped_dual: int = 0
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
        low, high = ratio_bounds(old_N.double(), clip)
        dual = torch.inf if clip.dual is None else clip.dual
        dual_N = (ratio_N > dual) & (advantages_N < 0)
        if clip.surrogate is Surrogate.aspo:
            dual_N |= (ratio_N < 1 / dual) & (advantages_N > 0)
        if clip.surrogate is Surrogate.cispo:
            high_N, low_N, dual_N = (ratio_N > high) & (advantages_N != 0), dual_N & False, dual_N & False
        else:
            high_N, low_N = (ratio_N > high) & (advantages_N > 0), (ratio_N < low) & (advantages_N < 0)
        positive_N = advantages_N > 0
        counts = [each.sum() for each in (positive_N, high_N, high_N & positive_N, low_N, dual_N)]
        figures = [*counts, ratio_N.min(), ratio_N.max()]
        figures.append(k3(log_ratio_N).sum())  # over tokens of the old policy: KL(old || new)
        if tokens.ref_logprobs_N is not None:
            figures.append(k3((tokens.ref_logprobs_N - logprobs_N).double()).sum())
        # Read at once: each reading waits for the device.
        values = torch.stack([each.double() for each in figures]).tolist()
        self.tokens += ratio_N.numel()
        self.positive += int(values[0])
        self.clipped_high += int(values[1])
        self.clipped_high_positive += int(values[2])
        self.clipped_low += int(values[3])
        self.clipped_dual += int(values[4])
        self.ratio_min = min(self.ratio_min, values[5])
        self.ratio_max = max(self.ratio_max, values[6])
        self.kl += values[7]
        if tokens.ref_logprobs_N is not None:
            self.kl_reference += values[8]
            self.has_reference = True

    def merge(self, other: "UpdateStats") -> "UpdateStats":
        return UpdateStats(
            tokens=self.tokens + other.tokens,
            updates=self.updates + other.updates,
            skipped=self.skipped + other.skipped,
            loss=self.loss + other.loss,
            grad_norm=self.grad_norm + other.grad_norm,
            positive=self.positive + other.positive,
            clipped_high=self.clipped_high + other.clipped_high,
            clipped_high_positive=self.clipped_high_positive + other.clipped_high_positive,
            clipped_low=self.clipped_low + other.clipped_low,
            clipped_dual=self.clipped_dual + other.clipped_dual,
            ratio_min=min(self.ratio_min, other.ratio_min),
            ratio_max=max(self.ratio_max, other.ratio_max),
            kl=self.kl + other.kl,
            kl_reference=self.kl_reference + other.kl_reference,
            has_reference=self.has_reference or other.has_reference,
        )

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
