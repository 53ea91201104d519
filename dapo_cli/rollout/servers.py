"""vLLM servers as peers that may go away: requests to them, and how one is found to be lost."""

import asyncio
import contextlib
import resource
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from dapo_cli.config.schema import VllmServerRollout
from dapo_cli.errors import RunStopped, UserError, first_line
from dapo_cli.rollout.weight_group import WeightGroup

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
            missing.append(f"{url} does not answer ({first_line(error)})")
            continue
        except (httpx.HTTPError, httpx.InvalidURL, LookupError, TypeError, ValueError) as error:
            raise UserError(f"rollout.servers: {url} is no server of vLLM's ({first_line(error)}): {WHERE}") from error
        if longest < max_tokens:
            raise UserError(
                f"rollout.servers: {url} takes sequences of {longest} tokens at most, and the recipe's have "
                f"{max_tokens}: start it again with this recipe"
            )
    if len(missing) == len(config.servers):
        raise UserError(f"rollout.servers: {', '.join(missing)}: {WHERE}")


class Lost(Exception):
    """A server does not answer any more, or not as one of vLLM's; the message says how."""


@dataclass(eq=False)
class Server:
    """One server as this rank sees it. `group` is the way of the weights, on rank 0 of the world alone."""

    url: str
    alive: bool = True
    group: WeightGroup | None = None


class Servers:
    """All servers of a recipe. Each is asked again and again whether it is well: one that hangs closes no
    connection."""

    def __init__(self, config: VllmServerRollout) -> None:
        self.all = [Server(url.rstrip("/")) for url in config.servers]
        self._silence_s = config.silence_s
        self._http = Http()
        for server in self.all:
            self._http.start(self._watch(server))

    @property
    def living(self) -> list[Server]:
        """Those that are not lost. Raises RunStopped where none is left."""
        living = [server for server in self.all if server.alive]
        if not living:
            raise RunStopped(
                f"no server is left of rollout.servers ({', '.join(server.url for server in self.all)}): {WHERE}, and "
                "go on from the last checkpoint with the same command."
            )
        return living

    def lose(self, server: Server, error: Exception) -> None:
        if server.alive:
            server.alive = False
            print(f"{server.url} is lost ({error}); its prompts go to the others", file=sys.stderr, flush=True)

    def find(self, server: Server) -> None:
        """One that was lost answers again."""
        print(f"{server.url} answers again", file=sys.stderr, flush=True)
        server.alive = True

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return self._http.start(work)

    def get(self, server: Server, path: str) -> Any:
        """The answer to a question that takes no time. Raises Lost."""
        return self.start(self._http.get(server.url, path, PULSE_S)).result()

    def post(self, server: Server, path: str, body: Any = None) -> Any:
        return self.start_post(server, path, body).result()

    def start_post(self, server: Server, path: str, body: Any) -> "Future[Any]":
        return self.start(self.ask(server, path, body))

    async def ask(self, server: Server, path: str, body: Any) -> Any:
        """The answer, or Lost as soon as somebody finds out that the server is gone."""
        task = asyncio.ensure_future(self._http.post(server.url, path, body))
        try:
            while not task.done():
                await asyncio.wait([task], timeout=1.0)
                if not server.alive:
                    raise Lost("it was given up")
            return task.result()
        finally:
            task.cancel()

    def close(self) -> None:
        self._http.close()

    async def _watch(self, server: Server) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            try:
                if server.alive:
                    await self._http.get(server.url, "health", self._silence_s)
            except (Lost, UserError) as error:
                self.lose(server, error)


class Http:
    """An event loop in a thread of its own, whose requests end in an answer, in Lost, or for a client's error in
    UserError."""

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
            raise Lost(first_line(error)) from error

    def close(self) -> None:
        if not self._thread.is_alive():
            return

        async def end() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await self._client.aclose()

        with contextlib.suppress(TimeoutError):
            self.start(end()).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
