"""Sharded over ranks by FSDP2: each rank keeps 1/size of weights, gradients and AdamW's moments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from dapo_cli.config.schema import FsdpLearner as FsdpLearnerConfig
from dapo_cli.learner.dtypes import DTYPES
from dapo_cli.learner.policy import Policy, repeated_layers
from dapo_cli.learner.single import SingleLearner
from dapo_cli.types import TokenSequence


class FsdpLearner(SingleLearner):
    """`SingleLearner` on a sharded model.

    Every decoder layer is a unit that is gathered while it runs; embedding, last norm and head make the root's, so that
    tied weights stay one. Gradients are reduced in float32 after each micro-batch, so none is ever held whole.
    """

    config: FsdpLearnerConfig
    mean_over_ranks = True
    autocast = False  # FSDP casts the weights, before it gathers them

    def _wrap(self, policy: Policy) -> torch.nn.Module:
        mesh = init_device_mesh(self.world.device.type, (self.world.size,))
        offload = OffloadPolicy()
        if self.config.cpu_offload:
            offload = CPUOffloadPolicy(pin_memory=self.world.device.type == "cuda")
        casting = MixedPrecisionPolicy(param_dtype=policy.compute_dtype, reduce_dtype=torch.float32)
        weights, buffers = self._take_weights(policy)
        for layer in repeated_layers(policy.model):
            fully_shard(layer, mesh=mesh, mp_policy=casting, offload_policy=offload)
        if policy.fp32_head:
            casting = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
        fully_shard(policy, mesh=mesh, mp_policy=casting, offload_policy=offload)
        self._spread_weights(policy, weights, buffers)
        return policy

    def _take_weights(self, policy: Policy) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Leave a model without weights on every rank, so that none needs room for all of them on its device. Returns
        weights and buffers where they are, on rank 0."""
        weights = policy.state_dict() if self.world.is_main else {}
        buffers = {name: buffer.cpu() for name, buffer in policy.named_buffers()} if self.world.is_main else {}
        policy.to("meta")
        policy.model.tie_weights()
        return weights, buffers

    def _spread_weights(self, policy: Policy, weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> None:
        policy.to_empty(device="cpu" if self.config.cpu_offload else self.world.device)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(policy, dict(weights), options=options)
        # Buffers that are in no state dict, such as rotary frequencies, are garbage after `to_empty`.
        for name, buffer in self.world.gather(buffers)[0].items():
            owner, _, last = name.rpartition(".")
            setattr(policy.get_submodule(owner), last, buffer.to(self.world.device))

    @property
    def holds_plain_model(self) -> bool:
        return False

    def _logprobs_by(
        self, policy: Any, sequences: Sequence[TokenSequence], temperature: float | None = None, counted: bool = True
    ) -> tuple[list[np.ndarray], float | None]:
        result = super()._logprobs_by(policy, sequences, temperature, counted)
        # After a forward pass the root stays whole, in the compute type, until the backward pass that does not come.
        policy.reshard()
        return result

    def _whole(self, tensor: Tensor) -> Tensor:
        """On the device, in the type that engines compute in. Collective where the tensor is split."""
        tensor = tensor.detach()
        if not isinstance(tensor, DTensor):
            return tensor
        dtype = tensor.dtype if self.config.lora_rank else DTYPES[self.config.compute_dtype]
        return DTensor.full_tensor(tensor.to(device=self.world.device, dtype=dtype))  # type: ignore[arg-type]
