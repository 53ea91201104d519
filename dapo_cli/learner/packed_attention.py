"""Attention for packed sequences that share prompts: linear layers see each token once, attention sees whole rows.

A micro-batch is laid out as one row of M tokens, each prompt once and each completion once, without padding:

    prompt a | completion a0 | completion a1 | prompt b | completion b0

Attention gathers from it the B padded rows `prompt a + a0`, `prompt a + a1`, `prompt b + b0` (on the right, where
causal attention does not look, so no mask exists), and scatters its result back. The G completions of a group thus
share the cost of their prompt in everything but attention itself.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dapo_cli.learner.micro_batches import Layout

NAME = "sdpa_packed"


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    scaling: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """`transformers`' scaled-dot-product attention; with a `layout`, query [1, H, M, D] and key and value
    [1, H_kv, M, D] are packed, and the result is [1, M, H, D]."""
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, sliding_window=sliding_window, scaling=scaling, **kwargs
        )
    grouped = key.shape[1] != query.shape[1]
    if grouped and query.device.type == "cuda" and query.dtype is torch.float32:
        # CUDA's kernels for float32 know no groups; without this, torch would write out all S x S scores.
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
        grouped = False
    outputs = []
    for gather_BS in layout.gathers_BS:
        band = _band(gather_BS.shape[1], sliding_window, query.device)
        rows_BHSD = scaled_dot_product_attention(
            _gather(query, gather_BS),
            _gather(key, gather_BS),
            _gather(value, gather_BS),
            attn_mask=band,
            is_causal=band is None,
            scale=scaling,
            enable_gqa=grouped,
        )
        outputs.append(rows_BHSD.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, layout.scatter_M)[None], None


def _band(width: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    """Which keys each query of a row sees, where that is not all before it."""
    if sliding_window is None or width <= sliding_window:
        return None
    distance = torch.arange(width, device=device)[:, None] - torch.arange(width, device=device)
    return ((distance >= 0) & (distance < sliding_window))[None, None]


def _gather(states_1HMD: Tensor, gather_BS: Tensor) -> Tensor:
    """Packed [1, H, M, D] to rows [B, H, S, D]."""
    rows_BSHD = states_1HMD[0].transpose(0, 1).index_select(0, gather_BS.flatten())
    return rows_BSHD.unflatten(0, gather_BS.shape).transpose(1, 2)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
