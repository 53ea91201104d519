"""Log-probs and entropy of given tokens from hidden states, without the [tokens, vocabulary] logits ever existing at
once."""

from collections.abc import Iterator

import torch
from torch import Tensor


def _chunks(num_tokens: int, chunk_tokens: int) -> Iterator[slice]:
    for start in range(0, num_tokens, chunk_tokens):
        yield slice(start, start + chunk_tokens)


class _ChunkedLogProbs(torch.autograd.Function):
    """The gradient is known in closed form, d log p(y) / d logits = (onehot(y) - softmax) / T, so the backward pass
    recomputes each chunk's logits instead of keeping them: memory of one chunk, one more matrix product."""

    @staticmethod
    def forward(ctx, hidden_NH, weight_VH, targets_N, temperature, chunk_tokens):  # type: ignore[no-untyped-def]
        logprobs_N = hidden_NH.new_empty(len(targets_N), dtype=torch.float32)
        entropy_N = torch.empty_like(logprobs_N)
        for chunk in _chunks(len(targets_N), chunk_tokens):
            log_p_CV = torch.log_softmax((hidden_NH[chunk] @ weight_VH.T).float().div_(temperature), dim=-1)
            logprobs_N[chunk] = log_p_CV.gather(-1, targets_N[chunk, None]).squeeze(-1)
            entropy_N[chunk] = -(log_p_CV.exp() * log_p_CV).sum(-1)
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx, grad_logprobs_N, _):  # type: ignore[no-untyped-def]
        hidden_NH, weight_VH, targets_N = ctx.saved_tensors
        grad_hidden_NH = torch.empty_like(hidden_NH)
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32)
        for chunk in _chunks(len(targets_N), ctx.chunk_tokens):
            scale_C1 = (grad_logprobs_N[chunk] / ctx.temperature)[:, None]
            grad_CV = torch.softmax((hidden_NH[chunk] @ weight_VH.T).float().div_(ctx.temperature), dim=-1)
            grad_CV.mul_(-scale_C1).scatter_add_(-1, targets_N[chunk, None], scale_C1)
            grad_CV = grad_CV.to(hidden_NH.dtype)
            grad_hidden_NH[chunk] = grad_CV @ weight_VH
            grad_weight_VH += grad_CV.T @ hidden_NH[chunk]
        return grad_hidden_NH, grad_weight_VH.to(weight_VH.dtype), None, None, None


def chunked_logprobs(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden W^T / T)[target] and the entropy of that softmax, both [N] float32.

    hidden_NH [N, H] are final hidden states at the positions before the targets, weight_VH [V, H] the output embedding,
    targets_N [N] int64. The log-probs carry a gradient to hidden_NH and weight_VH; the entropy carries none.
    """
    return _ChunkedLogProbs.apply(hidden_NH, weight_VH, targets_N, temperature, chunk_tokens)
