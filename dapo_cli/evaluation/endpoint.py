"""Completions from an OpenAI-compatible server: vLLM, SGLang, llama.cpp, a hosted model."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from dapo_cli.errors import UserError
from dapo_cli.evaluation.options import Draw
from dapo_cli.evaluation.records import Sample
from dapo_cli.rollout.completions import seed_of
from dapo_cli.types import Finish

CONCURRENT = 32  # requests at a time: enough for a server to batch, few enough for the limits of hosted ones
TRIES = 6  # of one request: over about a minute
FIRST_WAIT_S = 1.0  # doubled after each try
LONGEST_WAIT_S = 60.0
LONGEST_SILENCE_S = 3600.0  # of one request, which a server answers as a whole
SILENT_TRIES = 2
TOO_MANY = 429
NOT_UNDERSTOOD = (400, 422)
NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""What changes no distribution. Sent, since vLLM fills what a request lacks from the model's generation_config."""
KEY_VARIABLE = "OPENAI_API_KEY"

Chat = list[dict[str, str]]


class Endpoint:
    """`/v1/chat/completions` for messages, `/v1/completions` for a text. A key in OPENAI_API_KEY is sent along.

    Whether two runs give the same completions is the server's matter: each request has a seed of its own.
    """

    def __init__(self, url: str, model: str, *, first_wait_s: float = FIRST_WAIT_S) -> None:
        base = url.rstrip("/")
        self.base = base if base.endswith("/v1") else f"{base}/v1"
        self.model = model
        self._first_wait_s = first_wait_s
        key = os.environ.get(KEY_VARIABLE)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._loop = asyncio.new_event_loop()
        self.not_sent: tuple[str, ...] = ()

    def generate(
        self, prompts: Sequence[Chat | str], uids: Sequence[str], draw: Draw
    ) -> Iterator[dict[int, list[Sample]]]:
        """`draw.samples` of each prompt, by its place, as they are done. Closing the iterator gives up the rest.

        Raises UserError for what the server refuses, and where it does not answer after several tries.
        """
        client, waiting = self._client(), iter(range(len(prompts)))
        running: dict[asyncio.Task[list[Sample]], int] = {}
        try:
            while True:
                while len(running) < CONCURRENT and (place := next(waiting, None)) is not None:
                    work = self._samples(client, prompts[place], draw, seed_of(draw.key, uids[place]))
                    running[self._loop.create_task(work)] = place
                if not running:
                    return
                done = self._run(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]
                yield {running.pop(task): task.result() for task in done}
        finally:
            for task in running:
                task.cancel()
            self._run(asyncio.gather(*running, return_exceptions=True))
            self._run(client.aclose())

    def close(self) -> None:
        self._loop.close()

    def _run(self, work: Any) -> Any:
        async def whole() -> Any:
            return await work

        return self._loop.run_until_complete(whole())

    def _client(self) -> httpx.AsyncClient:
        host = urlsplit(self.base).hostname
        return httpx.AsyncClient(
            timeout=httpx.Timeout(LONGEST_SILENCE_S, connect=10.0, pool=None),
            headers=self._headers,
            trust_env=host not in ("localhost", "127.0.0.1", "::1"),  # no proxy stands between a machine and itself
        )

    async def _samples(self, client: httpx.AsyncClient, prompt: Chat | str, draw: Draw, seed: int) -> list[Sample]:
        """One request where the server honours `n`; as many as it takes where it gives fewer."""
        samples: list[Sample] = []
        while len(samples) < draw.samples:
            missing = draw.samples - len(samples)
            answer = await self._post(client, prompt, draw, missing, seed + len(samples))
            try:
                samples += _read(answer, chat=not isinstance(prompt, str))[:missing]
            except (LookupError, TypeError, ValueError) as error:
                said = f"an answer that cannot be judged ({error}): {answer!r:.200}"
                raise UserError(f"--engine {self.base}: {said}") from error
        return samples

    async def _post(self, client: httpx.AsyncClient, prompt: Chat | str, draw: Draw, count: int, seed: int) -> Any:
        chat = not isinstance(prompt, str)
        url = f"{self.base}/chat/completions" if chat else f"{self.base}/completions"
        body = {
            "model": self.model,
            "messages" if chat else "prompt": prompt,
            "n": count,
            "seed": seed % 2**31,  # what every server takes
            "temperature": draw.sampling.temperature,
            "top_p": draw.sampling.top_p,
            "max_tokens": draw.sampling.max_tokens,
        }
        said, silent, extra = "", 0, {**NEUTRAL, "top_k": draw.sampling.top_k or NEUTRAL["top_k"]}
        for attempt in range(TRIES):
            pause = self._first_wait_s * 2**attempt
            sent = {name: value for name, value in extra.items() if name not in self.not_sent}
            try:
                response = await client.post(url, json=body | sent)
                if response.is_success:
                    return response.json()
                said = f"{response.status_code}: {response.text[:300]}"
                unknown = response.status_code in NOT_UNDERSTOOD and any(name in response.text for name in sent)
                if unknown and (neutral := [name for name, value in sent.items() if value == NEUTRAL[name]]):
                    self.not_sent = tuple(neutral)
                    continue
                if response.status_code != TOO_MANY and not response.is_server_error:
                    raise UserError(f"--engine {url} refuses with {said}")
                pause = max(pause, _asked_to_wait(response))
            except httpx.InvalidURL as error:
                raise UserError(f"--engine {self.base}: no address ({error}); write http://HOST:PORT") from error
            except httpx.ReadTimeout:
                said, silent = f"silent for {LONGEST_SILENCE_S:.0f} s", silent + 1
                if silent == SILENT_TRIES:
                    break
            except (httpx.TransportError, ValueError) as error:  # ValueError: not JSON
                said = str(error) or type(error).__name__
            if attempt + 1 < TRIES:
                await asyncio.sleep(min(pause, LONGEST_WAIT_S))
        raise UserError(
            f"--engine {url}: no answer in {attempt + 1} tries, the last time {said}; see to the server: the problems "
            "that were finished are stored, and the same command goes on"
        )


def _asked_to_wait(response: httpx.Response) -> float:
    """Seconds of a Retry-After header; 0 where there is none, or a date."""
    asked = response.headers.get("retry-after", "")
    return float(asked) if asked.replace(".", "", 1).isdecimal() else 0.0


def _read(answer: Any, *, chat: bool) -> list[Sample]:
    """The choices in their order. Tokens are counted for all together, so each has its share."""
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    if not choices:
        raise ValueError("no choices")
    tokens = answer["usage"]["completion_tokens"] / len(choices)
    return [_sample(choice, choice["message"]["content"] if chat else choice["text"], tokens) for choice in choices]


def _sample(choice: dict[str, Any], text: str | None, tokens: float) -> Sample:
    """Raises ValueError for what is no completion of the model: a filtered one, a call of a tool, a missing text. A
    reasoning model that is cut before its answer begins has none, and was truncated."""
    finish = Finish(choice["finish_reason"])
    if text is None and finish is not Finish.LENGTH:
        raise ValueError("a completion without content: start the server without a parser of reasoning or tools")
    return Sample(text or "", finish, tokens)
