"""The model as learners call it: a packed micro-batch goes in, what its head makes of completion tokens comes out."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from dapo_cli.algorithm.logprobs import chunked_logprobs
from dapo_cli.config.schema import LearnerConfig
from dapo_cli.distributed.world import World
from dapo_cli.errors import UserError, first_line
from dapo_cli.learner import packed_attention
from dapo_cli.learner.dtypes import DTYPES
from dapo_cli.learner.micro_batches import MicroBatch, pack
from dapo_cli.types import TokenSequence

Out = TypeVar("Out")
Head = Callable[[Tensor, Tensor, Tensor], Out]  # hidden states [N, H], output embedding [V, H], targets [N] int64

# A mask that is four-dimensional already is passed on as it is; packed attention needs none.
NO_MASK = torch.zeros(1, 1, 1, 1)


class Policy(torch.nn.Module):
    """Wraps a `transformers` model, for what must happen inside one forward pass.

    The head is run inside `forward`, so that FSDP and ZeRO-3, which hold a weight only while its module runs, have the
    output embedding at hand. The model stays in evaluation mode: dropout would make the ratio of unchanged weights
    differ from 1.
    """

    def __init__(self, model: Any, config: LearnerConfig, *, autocast: bool) -> None:
        super().__init__()
        self.model = model.eval()
        self.fp32_head = config.fp32_head
        self.compute_dtype = DTYPES[config.compute_dtype]
        self.autocast = autocast and self.compute_dtype is not torch.float32
        if config.activation_checkpointing:
            checkpoint_layers(model)

    def forward(self, batch: MicroBatch, head: Head[Out]) -> Out:
        """What `head` makes of the N hidden states before the completion tokens, the output embedding and the tokens,
        the first two in the compute type (float32 with `fp32_head`)."""
        with torch.autocast(batch.token_ids_M.device.type, self.compute_dtype, enabled=self.autocast):
            hidden_MH = self.model.base_model(
                input_ids=batch.token_ids_M[None],
                position_ids=batch.positions_M[None],
                attention_mask=NO_MASK.to(batch.token_ids_M.device),
                layout=batch.layout,
                use_cache=False,
            ).last_hidden_state[0]
        dtype = torch.float32 if self.fp32_head else self.compute_dtype
        hidden_NH = hidden_MH.index_select(0, batch.sources_N).to(dtype)
        return head(hidden_NH, self.model.get_output_embeddings().weight.to(dtype), batch.targets_N)


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The repeated layers, in order: what is checkpointed and sharded one by one."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def repeated_layers(model: Any) -> list[torch.nn.Module]:
    """`decoder_layers`, for what cannot do without. Raises UserError where the model's class marks none."""
    layers = decoder_layers(model)
    if not layers:
        raise UserError(
            f"a {model.config.model_type} model names no repeated layers: learner.activation_checkpointing and "
            "learner fsdp cannot be used with it"
        )
    return layers


def checkpoint_layers(model: Any) -> None:
    """Keep only each layer's input for the backward pass, which then runs the layer again."""
    for layer in repeated_layers(model):
        layer.forward = partial(_checkpointed, layer.forward)  # type: ignore[method-assign]


def _checkpointed(forward: Callable[..., Out], *args: Any, **kwargs: Any) -> Out:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def prepare(model: Any, config: LearnerConfig, world: World) -> None:
    """Switch to packed attention, and to Liger's kernels where asked; rank 0, which is sure to have weights, checks
    that the model can be packed.

    Raises UserError on every rank. Collective: every rank must call.
    """
    world.on_main(lambda: _switch_and_check(model))
    if not world.is_main:
        model.set_attn_implementation(packed_attention.NAME)
    if config.liger_kernels:
        _use_liger_kernels(model, world.device)


def _use_liger_kernels(model: Any, device: torch.device) -> None:
    """Fused norms, rotary embedding and MLP in place of the model's own."""
    if device.type != "cuda":
        raise UserError("learner.liger_kernels = true: they run on a GPU, and there is none here; set it to false")
    from liger_kernel.transformers import _apply_liger_kernel_to_instance
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise UserError(f"learner.liger_kernels = true: Liger has none for a {model.config.model_type} model")
    _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=False, cross_entropy=False)


@torch.no_grad()
def _switch_and_check(model: Any) -> None:
    """Two completions which share a prompt must get the log-probs that the plain model gives them.

    They do not where the head has a bias, a cap or a scale (Gemma 2, Cohere, Granite, Phi), or where other layers than
    attention mix tokens: training would silently be of another policy than the one that samples.
    """
    prompt, completions = (1, 2, 3), [(4, 5, 6), (7,)]
    refusal = f"a {model.config.model_type} model cannot be trained here"
    device = next(model.parameters()).device
    expected = []
    for completion in completions:
        token_ids = torch.tensor([prompt + completion], device=device)
        log_p = model(token_ids).logits[0].float().log_softmax(-1)
        expected.append(log_p[len(prompt) - 1 : -1].gather(-1, token_ids[0, len(prompt) :, None]).squeeze(-1))
    batch = pack([TokenSequence(prompt, completion) for completion in completions], [0, 1], device)
    try:
        model.set_attn_implementation(packed_attention.NAME)
        logprobs, _ = Policy(model, LearnerConfig(), autocast=False)(
            batch, partial(chunked_logprobs, temperature=1.0, chunk_tokens=8)
        )
    except (TypeError, ValueError, RuntimeError) as error:  # no such attention, or layers that take no layout
        raise UserError(f"{refusal}: {first_line(error)}") from error
    difference = (logprobs - torch.cat(expected)).abs().max().item()
    if not difference < 1e-3:
        raise UserError(
            f"{refusal}: in packed sequences, log-probs from its hidden states times its output embedding differ from "
            f"the model's own by {difference:.2g}"
        )
