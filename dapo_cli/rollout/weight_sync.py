"""The engine's side of a weight sync, as weight-transfer engines of vLLM's: weights come a few at a time, by the names
of the plain model, and vLLM lays them out for its kernels. Importing this module registers them with vLLM."""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from dapo_cli.rollout.weight_group import WeightGroup

IN_PROCESS = "dapo_in_process"
BY_GROUP = "dapo_group"


class Reloading(WeightTransferEngine[Any, Any]):
    """A model takes new weights as a checkpoint's, then packs them again."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":  # a head that is tied to the embedding is packed apart from it, and not again
            for module in self.model.modules():
                if isinstance(module, ParallelLMHead):
                    pack: Any = module.quant_method
                    pack.process_weights_after_loading(module)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def load(self, weights: list[tuple[str, Any]]) -> None:
        model: Any = self.model
        model.load_weights(iter(weights))

    def shutdown(self) -> None:
        pass


@dataclass
class NoInit(WeightTransferInitInfo):
    """Within one process there is nothing to connect."""


@dataclass
class NamedWeights(WeightTransferUpdateInfo):
    """(name, tensor) pairs, handed over as they are."""

    weights: list[tuple[str, Any]]


class InProcessTransfer(Reloading):
    """Takes the learner's own tensors, for an engine in the learner's process."""

    init_info_cls = NoInit
    update_info_cls = NamedWeights

    def init_transfer_engine(self, init_info: NoInit) -> None:
        pass

    def receive_weights(self, update_info: NamedWeights) -> None:
        self.load(update_info.weights)


@dataclass
class GroupAddress(WeightTransferInitInfo):
    """Where the learner waits for the workers of this server, and how many they are together."""

    host: str
    port: int
    size: int


@dataclass
class ComingWeights(WeightTransferUpdateInfo):
    """What is about to be sent; see `weight_group.Bucket`."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GroupTransfer(Reloading):
    """Receives from the learner's rank 0 by a process group, for a server of its own."""

    init_info_cls = GroupAddress
    update_info_cls = ComingWeights

    def init_transfer_engine(self, init_info: GroupAddress) -> None:
        rank = 1 + self.parallel_config.rank
        self.group = WeightGroup.join(init_info.host, init_info.port, rank, init_info.size, self.device)

    def receive_weights(self, update_info: ComingWeights) -> None:
        dtypes = [getattr(torch, dtype) for dtype in update_info.dtypes]
        tensors = [self.group.receive(*each) for each in zip(dtypes, update_info.shapes, strict=True)]
        self.load(list(zip(update_info.names, tensors, strict=True)))


class WorkerExtension:
    """What `--worker-extension-cls` names, so that each worker of a server imports this module."""


WeightTransferEngineFactory.register_engine(IN_PROCESS, InProcessTransfer)
WeightTransferEngineFactory.register_engine(BY_GROUP, GroupTransfer)
