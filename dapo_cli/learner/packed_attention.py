"""Attention for packed sequences that share prompts: linear layers see each token once, attention sees whole rows.

A micro-batch is laid out as one row of M tokens, each prompt once and each completion once, without padding:

    prompt a | completion a0 | completion a1 | prompt b | completion b0

Attention gathers from it the B padded rows `prompt a + a0`, `prompt a + a1`, `prompt b + b0` (on the right, where
causal attention does not look, so no mask exists), and scatters its result back. The G completions of a group thus
share the cost of their prompt in everything but attention itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_packed"


@dataclass(frozen=True)
class Layout:
    """`gather_BS` names the packed token at each place of each row (padding: any token); `scatter_M` is, for each
    packed token, one place of the flattened rows where it stands."""

    gather_BS: Tensor
    scatter_M: Tensor


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """`transformers`' scaled-dot-product attention; with a `layout`, query [1, H, M, D] and key and value are
    packed."""
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, sliding_window=sliding_window, **kwargs
        )
    width = layout.gather_BS.shape[1]
    band = None
    if sliding_window is not None and width > sliding_window:
        distance = torch.arange(width, device=query.device)[:, None] - torch.arange(width, device=query.device)
        band = ((distance >= 0) & (distance < sliding_window))[None, None]
    query, key, value = (_gather(states, layout) for states in (query, key, value))
    output_BSHD, _ = sdpa_attention_forward(module, query, key, value, band, **kwargs)
    return output_BSHD.flatten(0, 1).index_select(0, layout.scatter_M)[None], None


def _gather(states_1HMD: Tensor, layout: Layout) -> Tensor:
    """Packed [1, H, M, D] to rows [B, H, S, D]."""
    rows_BSHD = states_1HMD[0].transpose(0, 1).index_select(0, layout.gather_BS.flatten())
    return rows_BSHD.unflatten(0, layout.gather_BS.shape).transpose(1, 2)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
