"""vLLM servers apart from the learner (`dapo serve`): completions come over HTTP, weights go by a process group."""

import asyncio
import contextlib
import resource
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx
import torch.distributed as dist
from torch import Tensor

from dapo_cli.config.schema import SamplingConfig, VllmServerRollout
from dapo_cli.distributed.world import World
from dapo_cli.errors import RunStopped, UserError
from dapo_cli.protocols import Finished
from dapo_cli.rollout.completions import end_of_sequence_ids, make_completions, seed_of
from dapo_cli.rollout.weight_group import JOIN_TIMEOUT, Bucket, WeightGroup, in_buckets, own_address
from dapo_cli.types import Completion, Prompt

if TYPE_CHECKING:
    from dapo_cli.pretrained import Pretrained

Result = TypeVar("Result")

PULSE_S = 5.0  # between two questions whether a server is well
WHERE = "start it with `dapo serve RECIPE`, or change rollout.servers"


def check_servers(config: VllmServerRollout, max_tokens: int) -> None:
    """Raises UserError where no server answers, or one is none of vLLM's, or does not take sequences of `max_tokens`.
    Others may be down: they are lost servers from the start."""
    missing = []
    for url in config.servers:
        try:
            answer = httpx.get(f"{url.rstrip('/')}/v1/models", timeout=config.silence_s, trust_env=False)
            longest = int(answer.raise_for_status().json()["data"][0]["max_model_len"])
        except httpx.TransportError as error:
            missing.append(f"{url} does not answer ({_first_line(error)})")
            continue
        except (httpx.HTTPError, httpx.InvalidURL, LookupError, TypeError, ValueError) as error:
            raise UserError(f"rollout.servers: {url} is no server of vLLM's ({_first_line(error)}): {WHERE}") from error
        if longest < max_tokens:
            raise UserError(
                f"rollout.servers: {url} takes sequences of {longest} tokens at most, and the recipe's have "
                f"{max_tokens}: start it again with this recipe"
            )
    if len(missing) == len(config.servers):
        raise UserError(f"rollout.servers: {', '.join(missing)}: {WHERE}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class Lost(Exception):
    """A server does not answer any more, or not as one of vLLM's; the message says how."""


@dataclass(eq=False)
class Server:
    """One server as this rank sees it. `group` is the way of the weights, on rank 0 of the world alone."""

    url: str
    alive: bool = True
    group: WeightGroup | None = None


class VllmServerEngine:
    """See `RolloutEngine`. Prompts go to the servers in turn; those of a server that is lost go to the others.

    A server that is lost is asked again at each sync, and is taken back once it answers and has the weights.
    """

    ranks = 1

    def __init__(self, config: VllmServerRollout, pretrained: "Pretrained", world: World) -> None:
        self.config, self.world = config, world
        self.tokenizer = pretrained.tokenizer
        self.eos_ids = end_of_sequence_ids(pretrained.generation_config, pretrained.tokenizer)
        self.servers = [Server(url.rstrip("/")) for url in config.servers]
        self._http = _Http()
        self._versions = count()
        for server in self.servers:
            self._http.start(self._watch(server))

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: SamplingConfig, key: str
    ) -> Iterator[Finished]:
        """See `RolloutEngine.generate`. Raises RunStopped when no server is left."""
        arrived: SimpleQueue[Finished | BaseException] = SimpleQueue()
        work = self._http.start(self._complete_all(prompts, samples_per_prompt, sampling, key, arrived))
        try:
            waited_for = len(prompts)
            while waited_for:
                try:
                    result = arrived.get(timeout=1.0)
                except Empty:
                    result = {}  # so that whoever reads may give up meanwhile
                if isinstance(result, BaseException):
                    raise result
                waited_for -= len(result)
                yield result
        finally:
            work.cancel()  # a server aborts a request whose connection is closed

    def sync_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Rank 0 sends each bucket of weights to one server after the other. Raises RunStopped when no server is left.

        Collective: every rank must call.
        """
        if not self.world.is_main:
            for _ in weights:  # gathered by all ranks together
                pass
        else:
            self._send(weights)
        alive = self.world.on_main(self._living)
        for server in self.servers:
            server.alive = server.url in alive

    def rest(self) -> None:
        """The memory is the servers' own."""

    def close(self) -> None:
        self._http.close()

    # Completions

    async def _complete_all(
        self,
        prompts: Sequence[Prompt],
        samples: int,
        sampling: SamplingConfig,
        key: str,
        arrived: "SimpleQueue[Finished | BaseException]",
    ) -> None:
        async def one(place: int) -> None:
            body = self._request(prompts[place], samples, sampling, key)
            arrived.put({place: await self._complete(place, prompts[place], body)})

        try:
            async with asyncio.TaskGroup() as tasks:
                for place in range(len(prompts)):
                    tasks.create_task(one(place))
        except* Exception as failures:
            arrived.put(failures.exceptions[0])

    async def _complete(self, place: int, prompt: Prompt, body: dict[str, Any]) -> list[Completion]:
        """Ask one server after the other until one has completed the prompt."""
        turn = place + self.world.rank
        while True:
            living = [server for server in self.servers if server.alive]
            if not living:
                raise self._none_left()
            server = living[turn % len(living)]
            try:
                answer = await self._while_alive(server, self._http.post(server.url, "inference/v1/generate", body))
                return self._completions(prompt, answer)
            except Lost as error:
                self._lose(server, error)
            except (LookupError, TypeError) as error:  # of an answer in another form
                self._lose(server, Lost(f"it answers without completions: {error!r}"))

    async def _while_alive(self, server: Server, request: Coroutine[Any, Any, Any]) -> Any:
        """The answer, or Lost as soon as somebody finds out that the server is gone."""
        task = asyncio.ensure_future(request)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=1.0)
                if not server.alive:
                    raise Lost("it was given up")
            return task.result()
        finally:
            task.cancel()

    async def _watch(self, server: Server) -> None:
        """Ask again and again whether it is well: one that hangs closes no connection."""
        while True:
            await asyncio.sleep(PULSE_S)
            try:
                if server.alive:
                    await self._http.get(server.url, "health", self.config.silence_s)
            except (Lost, UserError) as error:
                self._lose(server, error)

    def _request(self, prompt: Prompt, samples: int, sampling: SamplingConfig, key: str) -> dict[str, Any]:
        return {
            "token_ids": list(prompt.token_ids),
            "sampling_params": {
                "n": samples,
                "seed": seed_of(key, prompt.uid),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "max_tokens": sampling.max_tokens,
                "stop_token_ids": self.eos_ids,
                "logprobs": 0,
                "detokenize": False,
            },
        }

    def _completions(self, prompt: Prompt, answer: dict[str, Any]) -> list[Completion]:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        if any(choice["finish_reason"] not in ("stop", "length") for choice in choices):
            raise Lost("it aborted a request")
        return make_completions(
            prompt,
            [choice["token_ids"] for choice in choices],
            [[each["logprob"] for each in choice["logprobs"]["content"]] for choice in choices],
            self.tokenizer,
            self.eos_ids,
        )

    def _lose(self, server: Server, error: Exception) -> None:
        if server.alive:
            server.alive = False
            print(f"{server.url} is lost ({error}); its prompts go to the others", file=sys.stderr, flush=True)

    def _none_left(self) -> RunStopped:
        return RunStopped(
            f"no server is left of rollout.servers ({', '.join(self.config.servers)}): {WHERE}, and go on from the "
            "last checkpoint with the same command."
        )

    # Weights

    def _send(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """All weights to all servers that answer; the others are left behind."""
        for server in self.servers:
            if not server.alive:
                self._take_back(server)
            self._try(server, self._begin)
        for bucket in in_buckets(weights):
            for server in self.servers:
                self._try(server, self._send_bucket, bucket)
        version = str(next(self._versions))
        for server in self.servers:
            self._try(server, self._finish, version)

    def _try(self, server: Server, step: Callable[..., None], *arguments: Any) -> None:
        """A step with a server that came as far as this; it is lost where the step fails."""
        if not server.alive:
            return
        try:
            step(server, *arguments)
        except (Lost, UserError) as error:
            self._lose(server, error)

    def _take_back(self, server: Server) -> None:
        """A server that was lost, and may have been started again: whatever connected it is over."""
        if server.group is not None:
            server.group.leave()
            server.group = None
        try:
            self._http.start(self._http.get(server.url, "health", PULSE_S)).result()
        except (Lost, UserError):
            return
        print(f"{server.url} answers again", file=sys.stderr, flush=True)
        server.alive = True

    def _begin(self, server: Server) -> None:
        if server.group is None:
            server.group = self._connect(server)
        # Requests that were given up may still run there, and would compute with weights that are half new.
        self._post(server, "pause?mode=abort", None)
        try:
            self._post(server, "start_weight_update", None)
        except Lost as error:
            if "already active" not in str(error):
                raise
            self._post(server, "finish_weight_update", None)  # a run before this one ended in the midst of it
            self._post(server, "start_weight_update", None)

    def _connect(self, server: Server) -> WeightGroup:
        """A process group with the workers of a server."""
        size = 1 + self._http.start(self._http.get(server.url, "get_world_size", PULSE_S)).result()["world_size"]
        host = own_address(urlsplit(server.url).hostname or "")
        store = dist.TCPStore("0.0.0.0", 0, size, is_master=True, timeout=JOIN_TIMEOUT, wait_for_workers=False)
        address = {"host": host, "port": store.port, "size": size}
        joining = self._start_post(server, "init_weight_transfer_engine", {"init_info": address})
        try:
            group = WeightGroup(store, 0, size, self.world.device)
        except RuntimeError as error:  # of torch, after a time limit
            joining.result()
            raise Lost(f"it did not join for weights: {_first_line(error)}") from error
        joining.result()
        return group

    def _send_bucket(self, server: Server, bucket: Bucket) -> None:
        assert server.group is not None
        receiving = self._start_post(server, "update_weights", {"update_info": bucket.record})

        def check() -> None:
            if receiving.done():  # it must not end before the weights are there
                receiving.result()

        try:
            server.group.send([tensor for _, tensor in bucket.weights], check)
        except RuntimeError as error:  # of torch's process group
            receiving.cancel()
            raise Lost(f"weights did not get through: {_first_line(error)}") from error
        receiving.result()

    def _finish(self, server: Server, version: str) -> None:
        self._post(server, "finish_weight_update", {"weight_version": version})
        if not self._post(server, "reset_prefix_cache", None)["success"]:
            raise Lost("it keeps the prefix cache of weights from before")
        self._post(server, "resume", None)

    def _living(self) -> list[str]:
        living = [server.url for server in self.servers if server.alive]
        if not living:
            raise self._none_left()
        return living

    def _post(self, server: Server, path: str, body: Any) -> Any:
        return self._start_post(server, path, body).result()

    def _start_post(self, server: Server, path: str, body: Any) -> "Future[Any]":
        return self._http.start(self._while_alive(server, self._http.post(server.url, path, body)))


class _Http:
    """An event loop in a thread of its own, whose requests end in an answer or in Lost."""

    def __init__(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each prompt of a round is a connection
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="http")
        self._thread.start()
        # A completion takes as long as it takes; whether the server is well is asked apart from it.
        # Connections are not kept: one that the server closes at the wrong moment would look like the server's end.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=10.0), limits=limits, trust_env=False)

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def post(self, url: str, path: str, body: Any) -> Any:
        return await self._answer(self._client.post(f"{url}/{path}", json=body))

    async def get(self, url: str, path: str, timeout_s: float) -> Any:
        return await self._answer(self._client.get(f"{url}/{path}", timeout=timeout_s))

    async def _answer(self, request: Coroutine[Any, Any, httpx.Response]) -> Any:
        try:
            response = await request
            response.raise_for_status()
            return response.json() if response.content else None
        except httpx.HTTPStatusError as error:
            said = f"{error.request.url} answers {error.response.status_code}: {error.response.text[:300]}"
            if error.response.is_client_error:  # it is well, but another server than we take it for
                raise UserError(f"rollout.servers: {said}\nIs it one of `dapo serve` with this recipe?") from error
            raise Lost(said) from error
        except (httpx.HTTPError, ValueError) as error:
            raise Lost(_first_line(error)) from error

    def close(self) -> None:
        async def end() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await self._client.aclose()

        with contextlib.suppress(TimeoutError):
            self.start(end()).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
