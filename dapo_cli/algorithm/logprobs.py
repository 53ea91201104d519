"""Log-probs, entropy and the policy's loss of given tokens from hidden states, without the [tokens, vocabulary] logits
ever existing at once."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

TokenLoss = Callable[[Tensor, slice], Tensor]  # log-probs of a chunk of tokens, and which of the N -> a scalar


@torch.no_grad()
def chunked_logprobs(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden W^T / T)[target] and the entropy of that softmax, both [N] float32, without a gradient.

    hidden_NH [N, H] are final hidden states at the positions before the targets, weight_VH [V, H] the output embedding,
    targets_N [N] int64.
    """
    logprobs_N = hidden_NH.new_empty(len(targets_N), dtype=torch.float32)
    entropy_N = torch.empty_like(logprobs_N)
    for chunk in _chunks(len(targets_N), chunk_tokens):
        log_p_CV = _log_softmax(hidden_NH[chunk], weight_VH, temperature)
        logprobs_N[chunk] = log_p_CV.gather(-1, targets_N[chunk, None]).squeeze(-1)
        entropy_N[chunk] = -(log_p_CV.exp() * log_p_CV).sum(-1)
        del log_p_CV  # or the next chunk's logits come on top of it
    return logprobs_N, entropy_N


def fused_loss(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    temperature: float,
    chunk_tokens: int,
    token_loss: TokenLoss,
) -> tuple[Tensor, Tensor]:
    """The sum of `token_loss` over chunks of tokens, a scalar that carries a gradient to hidden_NH and weight_VH, and
    the log-probs [N] float32 without one.

    Arguments as in `chunked_logprobs`; `token_loss` must treat tokens apart from each other.
    """
    return _FusedLoss.apply(hidden_NH, weight_VH, targets_N, temperature, chunk_tokens, token_loss)


class _FusedLoss(torch.autograd.Function):
    """The loss's derivative for each log-prob is known as soon as that is, and d log p(y) / d logits is
    (onehot(y) - softmax) / T: so each chunk's logits turn into gradients at once, and none are computed again."""

    @staticmethod
    def forward(ctx, hidden_NH, weight_VH, targets_N, temperature, chunk_tokens, token_loss):  # type: ignore[no-untyped-def]
        logprobs_N = hidden_NH.new_empty(len(targets_N), dtype=torch.float32)
        loss = logprobs_N.new_zeros(())
        grad_hidden_NH = torch.empty_like(hidden_NH)
        trains_head = ctx.needs_input_grad[1]
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if trains_head else None
        for chunk in _chunks(len(targets_N), chunk_tokens):
            grad_CV = _log_softmax(hidden_NH[chunk], weight_VH, temperature)
            targets_C1 = targets_N[chunk, None]
            with torch.enable_grad():
                logprobs_C = grad_CV.gather(-1, targets_C1).squeeze(-1).requires_grad_()
                chunk_loss = token_loss(logprobs_C, chunk)
                (scale_C,) = torch.autograd.grad(chunk_loss, logprobs_C)
            logprobs_N[chunk] = logprobs_C.detach()
            loss += chunk_loss.detach()
            scale_C1 = (scale_C / temperature)[:, None]
            grad_CV.exp_().mul_(-scale_C1).scatter_add_(-1, targets_C1, scale_C1)
            grad_CV = grad_CV.to(hidden_NH.dtype)
            torch.mm(grad_CV, weight_VH, out=grad_hidden_NH[chunk])
            if trains_head and hidden_NH.dtype is torch.float32:
                grad_weight_VH.addmm_(grad_CV.T, hidden_NH[chunk])
            elif trains_head:  # products in the lower type, at its speed; their sum over chunks in float32
                grad_weight_VH += grad_CV.T @ hidden_NH[chunk]
            del grad_CV  # or the next chunk's logits come on top of it
        ctx.save_for_backward(grad_hidden_NH, grad_weight_VH.to(weight_VH.dtype) if trains_head else None)
        ctx.mark_non_differentiable(logprobs_N)
        return loss, logprobs_N

    @staticmethod
    def backward(ctx, grad_loss, _):  # type: ignore[no-untyped-def]
        grad_hidden_NH, grad_weight_VH = ctx.saved_tensors
        grad_hidden_NH.mul_(grad_loss)  # in place: they are as large as the weight, and used once
        if grad_weight_VH is not None:
            grad_weight_VH.mul_(grad_loss)
        return grad_hidden_NH, grad_weight_VH, None, None, None, None


def _log_softmax(hidden_CH: Tensor, weight_VH: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax((hidden_CH @ weight_VH.T).float().div_(temperature), dim=-1)


def _chunks(num_tokens: int, chunk_tokens: int) -> Iterator[slice]:
    for start in range(0, num_tokens, chunk_tokens):
        yield slice(start, start + chunk_tokens)
