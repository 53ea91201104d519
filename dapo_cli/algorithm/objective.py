"""The clipped surrogate with token-level aggregation, Eq. 8, 10 and 12, as pure functions of [N] tensors.

N counts the completion tokens of a micro-batch laid end to end, so that no mask or padding enters the mathematics.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Clip:
    """Bounds of the ratio: [1 - low, 1 + high], Eq. 10; `dual` is c of dual clip, None for off."""

    low: float
    high: float
    dual: float | None = None


def token_losses(logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, clip: Clip) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A) for each token, [N] float32; r = exp(logprobs - old_logprobs), Eq. 8/10.

    With dual clip the value for A < 0 is max(that min, c A) (Ye et al. 2020, arXiv:1912.09729), which the paper does
    not use and the authors' script sets to c = 10.
    """
    ratio_N = torch.exp(logprobs_N - old_logprobs_N)
    surrogate_N = torch.minimum(ratio_N * advantages_N, ratio_N.clamp(1 - clip.low, 1 + clip.high) * advantages_N)
    if clip.dual is not None:
        surrogate_N = torch.where(advantages_N < 0, torch.maximum(surrogate_N, clip.dual * advantages_N), surrogate_N)
    return -surrogate_N


def token_mean_loss(losses_N: Tensor, num_loss_tokens: int) -> Tensor:
    """This micro-batch's share of the mini-batch loss: its sum over the mini-batch's number of loss tokens, Eq. 12.

    `num_loss_tokens` counts all micro-batches and ranks, so that shares add up to the one token mean. The paper writes
    the sum per question; the authors' code, which produced the result, divides over the mini-batch, as here.
    """
    return losses_N.sum() / num_loss_tokens


@dataclass
class UpdateStats:
    """Sums over the loss tokens of one or more updates; `metrics` turns them into means. `skipped` counts updates left
    out because a float16 gradient overflowed."""

    tokens: int = 0
    updates: int = 0
    skipped: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    positive: int = 0
    clipped_high: int = 0
    clipped_low: int = 0
    clipped_dual: int = 0
    ratio_min: float = float("inf")
    ratio_max: float = float("-inf")
    kl: float = 0.0

    def add_tokens(self, logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, clip: Clip) -> None:
        """Take in the ratios of one micro-batch; needs no gradient."""
        log_ratio_N = (logprobs_N - old_logprobs_N).double()
        ratio_N = log_ratio_N.exp()
        dual = torch.inf if clip.dual is None else clip.dual
        figures = (
            (advantages_N > 0).sum(),
            ((ratio_N > 1 + clip.high) & (advantages_N > 0)).sum(),
            ((ratio_N < 1 - clip.low) & (advantages_N < 0)).sum(),
            ((ratio_N > dual) & (advantages_N < 0)).sum(),
            ratio_N.min(),
            ratio_N.max(),
            # k3: r - 1 - log r, whose mean over tokens of the old policy estimates KL(old || new) without bias.
            (ratio_N - 1 - log_ratio_N).sum(),
        )
        # Read at once: each reading waits for the device.
        positive, high, low, dual_clipped, smallest, largest, kl = torch.stack(
            [each.double() for each in figures]
        ).tolist()
        self.tokens += ratio_N.numel()
        self.positive += int(positive)
        self.clipped_high += int(high)
        self.clipped_low += int(low)
        self.clipped_dual += int(dual_clipped)
        self.ratio_min = min(self.ratio_min, smallest)
        self.ratio_max = max(self.ratio_max, largest)
        self.kl += kl

    def merge(self, other: "UpdateStats") -> "UpdateStats":
        return UpdateStats(
            tokens=self.tokens + other.tokens,
            updates=self.updates + other.updates,
            skipped=self.skipped + other.skipped,
            loss=self.loss + other.loss,
            grad_norm=self.grad_norm + other.grad_norm,
            positive=self.positive + other.positive,
            clipped_high=self.clipped_high + other.clipped_high,
            clipped_low=self.clipped_low + other.clipped_low,
            clipped_dual=self.clipped_dual + other.clipped_dual,
            ratio_min=min(self.ratio_min, other.ratio_min),
            ratio_max=max(self.ratio_max, other.ratio_max),
            kl=self.kl + other.kl,
        )

    def metrics(self) -> dict[str, float | int | None]:
        """Means over tokens (clip fractions, KL) and over updates (loss, gradient norm before clipping); None where
        no update was made."""
        if not self.updates:
            shares = ("positive", "clip_high", "clip_high_of_positive", "clip_low", "clip_dual")
            names = ("loss", "grad_norm", *shares, "ratio_min", "ratio_max", "approx_kl")
            counts = {"policy/updates": 0, "policy/skipped_updates": self.skipped, "policy/loss_tokens": 0}
            return counts | {f"policy/{name}": None for name in names}
        return {
            "policy/updates": self.updates,
            "policy/skipped_updates": self.skipped,
            "policy/loss_tokens": self.tokens,
            "policy/loss": self.loss / self.updates,
            "policy/grad_norm": self.grad_norm / self.updates,
            "policy/positive": self.positive / self.tokens,
            "policy/clip_high": self.clipped_high / self.tokens,
            "policy/clip_high_of_positive": self.clipped_high / self.positive if self.positive else None,
            "policy/clip_low": self.clipped_low / self.tokens,
            "policy/clip_dual": self.clipped_dual / self.tokens,
            "policy/ratio_min": self.ratio_min,
            "policy/ratio_max": self.ratio_max,
            "policy/approx_kl": self.kl / self.tokens,
        }
