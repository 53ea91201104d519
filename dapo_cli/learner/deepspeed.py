"""DeepSpeed's ZeRO: stage 1 splits AdamW's moments over ranks, 2 the gradients too, 3 the weights too."""

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dapo_cli.config.schema import DeepspeedLearner as DeepspeedConfig
from dapo_cli.config.schema import OptimizerConfig, Precision
from dapo_cli.distributed.world import World
from dapo_cli.learner import state
from dapo_cli.learner.base import BaseLearner, Objective
from dapo_cli.learner.lora import merged_weights
from dapo_cli.learner.policy import Policy
from dapo_cli.learner.reference import starting_copy
from dapo_cli.learner.state import trainable


class DeepspeedLearner(BaseLearner):
    """AdamW in float32 over ZeRO's partitions, whatever type the model computes in."""

    mean_over_ranks = True

    def __init__(
        self, world: World, model: Any, objective: Objective, optimizer: OptimizerConfig, config: DeepspeedConfig
    ) -> None:
        """Collective: every rank must call."""
        super().__init__(world, model, objective, optimizer, config)
        self.stage = config.zero_stage
        starting = starting_copy(model, config, objective.has_reference)
        policy = Policy(model, config, autocast=False)
        deepspeed = _import_deepspeed(world)
        if self.stage == 3:  # the head's weight is read outside of its own module
            deepspeed.zero.register_external_parameter(policy, model.get_output_embeddings().weight)
        adamw = torch.optim.AdamW(
            [parameter for _, parameter in trainable(model)],
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
        )
        exact = {}
        if config.compute_dtype is not Precision.float32:  # DeepSpeed would take its float32 weights from rounded ones
            exact = {name: parameter.detach() for name, parameter in trainable(model)}
        with _silent():
            self.policy, self.optimizer, _, _ = deepspeed.initialize(
                model=policy, optimizer=adamw, config=engine_config(config, optimizer), dist_init_required=False
            )
        with torch.no_grad():
            for name, parameter in trainable(self.model) if exact else ():
                self._set_part(parameter, exact[name], None)
        if starting is not None:
            self.reference = self._reference(deepspeed, Policy(starting, config, autocast=False), config)

    def _reference(self, deepspeed: Any, policy: Policy, config: DeepspeedConfig) -> Any:
        """Split over ranks at stage 3; below, where each rank holds the whole policy, whole in the compute type."""
        if self.stage < 3:
            for parameter in policy.parameters():  # buffers stay float32, as DeepSpeed leaves those of the policy
                parameter.data = parameter.data.to(policy.compute_dtype)
            return policy.to(self.world.device)
        deepspeed.zero.register_external_parameter(policy, policy.model.get_output_embeddings().weight)
        with _silent():
            engine, *_ = deepspeed.initialize(model=policy, config=reference_config(config), dist_init_required=False)
        return engine

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        return merged_weights(self.model, self._whole)

    def save(self, folder: Path) -> None:
        """Each weight is gathered by all ranks and kept for writing by one, so that the file is of any ZeRO stage."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        self._make_moments()
        tensors: dict[str, Tensor] = {}
        for place, (name, parameter) in enumerate(trainable(self.model)):
            whole = {f"weights.{name}": safe_get_full_fp32_param(parameter)}
            for moment in state.MOMENTS:
                whole[f"{moment}.{name}"] = safe_get_full_optimizer_state(parameter, moment)
            if place % self.world.size == self.world.rank:
                tensors |= {key: tensor.reshape(_shape(parameter)).cpu() for key, tensor in whole.items()}
        state.write_tensors(tensors, folder, alone=self.world.size == 1)
        if self.world.is_main:
            steps = int(self._adamw.state[self._flat_weights()[0]]["step"])
            state.write_values(folder, steps, self.loss_scale)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Every rank reads each weight whole and keeps its part."""
        self._make_moments()
        for name, parameter in trainable(self.model):
            keys = [f"{kind}.{name}" for kind in ("weights", *state.MOMENTS)]
            whole = {key: torch.empty(_shape(parameter), dtype=torch.float32) for key in keys}
            state.read_tensors(whole, folder, alone=True)
            for key, moment in zip(keys, (None, *state.MOMENTS), strict=True):
                self._set_part(parameter, whole[key], moment)
        steps = state.read_values(folder, self.loss_scale)
        for flat in self._flat_weights():
            self._adamw.state[flat]["step"].fill_(steps)
        if self.stage == 3:
            for index in range(len(self.optimizer.fp32_partitioned_groups_flat)):
                self.optimizer._reassign_or_swap_out_partitioned_parameters(index)
        else:
            self.optimizer.update_lp_params()

    def _backward(self, loss: Tensor) -> None:
        self.policy.backward(loss, scale_wrt_gas=False)

    def _optimizer_step(self, lr: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.policy.step()
        return float(self.policy.get_global_grad_norm())

    def _whole(self, parameter: Tensor) -> Tensor:
        """Collective at stage 3: every rank must call."""
        if self.stage < 3:
            return parameter.detach()
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=None):
            return parameter.detach().clone()

    @property
    def _adamw(self) -> torch.optim.Optimizer:
        return self.optimizer.optimizer

    def _flat_weights(self) -> list[Tensor]:
        """The float32 tensors that AdamW updates, each the parts of many weights that this rank owns."""
        if self.stage == 3:
            return self.optimizer.fp32_partitioned_groups_flat
        return [flat for group in self._adamw.param_groups for flat in group["params"]]

    def _make_moments(self) -> None:
        """DeepSpeed makes AdamW's state at the first update; saving and loading may come before."""
        for flat in self._flat_weights():
            state.adam_state(self._adamw, flat)
        if self.stage < 3:
            self.optimizer._lazy_init_hp_params_optimizer_state()

    def _set_part(self, parameter: Any, whole: Tensor, moment: str | None) -> None:
        if self.stage < 3:
            parameter.set_full_hp_param(whole.to(self.world.device), moment)
            return
        part, _ = self.optimizer._get_fp32_opt_state_partition(parameter, True, moment)
        own = whole.flatten()[self.world.rank * part.numel() :][: part.numel()]  # the last rank's part ends in padding
        part[: own.numel()].copy_(own)


def engine_config(config: DeepspeedConfig, optimizer: OptimizerConfig) -> dict[str, Any]:
    """What `deepspeed.initialize` takes. Sizes of batches only matter to its own averaging, which is switched off."""
    zero: dict[str, Any] = {
        "stage": config.zero_stage,
        "overlap_comm": False,
        "stage3_param_persistence_threshold": 0,  # else small weights live outside of their partitions
    }
    if config.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.offload_parameters:
        zero["offload_param"] = {"device": "cpu"}
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimizer.max_grad_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if config.compute_dtype is Precision.bfloat16:
        settings |= {
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "fp32",
        }
    return settings


def reference_config(config: DeepspeedConfig) -> dict[str, Any]:
    """The same of a model that is split over ranks and never updated."""
    settings = engine_config(replace(config, offload_optimizer=False), OptimizerConfig())
    return {key: value for key, value in settings.items() if key not in ("gradient_clipping", "data_types")}


def _shape(parameter: Tensor) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)


def _import_deepspeed(world: World) -> Any:
    if world.device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_RANK", "0")  # it insists, also where nothing was launched
    with _silent():
        import deepspeed
    from deepspeed.ops import __compatible_ops__

    __compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled for minutes; gloo does
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)  # of its own calls
    with _silent():
        deepspeed.init_distributed(dist_backend="gloo" if world.device.type == "cpu" else "nccl")
    return deepspeed


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """DeepSpeed greets on standard output, where a run's own lines belong."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
