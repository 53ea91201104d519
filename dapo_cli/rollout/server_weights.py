"""The learner's weights to vLLM servers: announced over HTTP, sent by a process group of each server's own."""

import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from dapo_cli.errors import UserError, first_line
from dapo_cli.rollout.servers import Lost, Server, Servers
from dapo_cli.rollout.weight_group import Bucket, WeightGroup, in_buckets, own_address

ARRIVAL_S = 5.0  # between a server's word that it has some weights and the end of sending them


def send_weights(servers: Servers, weights: Iterable[tuple[str, Tensor]], device: torch.device) -> None:
    """All weights to all servers that answer, one bucket at a time; the others are left behind, and are lost. A server
    that was lost is taken back where it answers again."""
    sender = _Sender(servers, device)
    for server in servers.all:
        if not server.alive:
            sender.take_back(server)
        sender.attempt(server, sender.begin)
    for bucket in in_buckets(weights):
        for server in servers.all:
            sender.attempt(server, sender.send, bucket)
        del bucket  # before the next one is made
    for server in servers.all:
        sender.attempt(server, sender.finish)


class _Sender:
    def __init__(self, servers: Servers, device: torch.device) -> None:
        self.servers, self.device = servers, device

    def attempt(self, server: Server, stage: Callable[..., None], *arguments: Any) -> None:
        """A stage with a server that came as far as this; it is lost where the stage fails."""
        if not server.alive:
            return
        try:
            stage(server, *arguments)
        except (Lost, UserError) as error:
            self.servers.lose(server, error)

    def take_back(self, server: Server) -> None:
        """A server that was lost, and may have been started again: whatever connected it is over."""
        if server.group is not None:
            server.group.leave()
            server.group = None
        try:
            self.servers.get(server, "health")
        except (Lost, UserError):
            return
        self.servers.find(server)

    def begin(self, server: Server) -> None:
        if server.group is None:
            server.group = self._connect(server)
        # Requests that were given up may still run there, and would compute with weights that are half new.
        self.servers.post(server, "pause?mode=abort")
        try:
            self.servers.post(server, "start_weight_update")
        except Lost as error:
            if "already active" not in str(error):
                raise
            self.servers.post(server, "finish_weight_update")  # a run before this one ended in the midst of it
            self.servers.post(server, "start_weight_update")

    def _connect(self, server: Server) -> WeightGroup:
        """A process group with the workers of a server."""
        size = 1 + self.servers.get(server, "get_world_size")["world_size"]
        store = WeightGroup.store(size)
        address = {"host": own_address(urlsplit(server.url).hostname or ""), "port": store.port, "size": size}
        joining = self.servers.start_post(server, "init_weight_transfer_engine", {"init_info": address})

        def check() -> None:
            if joining.done():
                joining.result()

        try:
            group = WeightGroup.host(store, size, self.device, check)
        except (TimeoutError, RuntimeError) as error:
            joining.cancel()
            raise Lost(f"it did not join for weights: {first_line(error)}") from error
        joining.result()
        return group

    def send(self, server: Server, bucket: Bucket) -> None:
        assert server.group is not None
        receiving = self.servers.start_post(server, "update_weights", {"update_info": bucket.record})
        said_done_at: list[float] = []

        def check() -> None:
            if receiving.done():
                receiving.result()
                said_done_at.append(time.monotonic())
                if said_done_at[-1] - said_done_at[0] > ARRIVAL_S:
                    raise Lost("it says that it has weights which did not get through")

        try:
            server.group.send([tensor for _, tensor in bucket.weights], check)
        except RuntimeError as error:  # of torch's process group
            receiving.cancel()
            raise Lost(f"weights did not get through: {first_line(error)}") from error
        receiving.result()

    def finish(self, server: Server) -> None:
        self.servers.post(server, "finish_weight_update")
        if not self.servers.post(server, "reset_prefix_cache")["success"]:
            raise Lost("it keeps the prefix cache of weights from before")
        self.servers.post(server, "resume")
