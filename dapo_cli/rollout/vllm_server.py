"""vLLM servers apart from the learner (`dapo serve`) as one engine: completions come over HTTP."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dapo_cli.config.schema import SamplingConfig, VllmServerRollout
from dapo_cli.distributed.world import World
from dapo_cli.protocols import Finished
from dapo_cli.rollout.completions import end_of_sequence_ids, make_completions, seed_of
from dapo_cli.rollout.server_weights import send_weights
from dapo_cli.rollout.servers import Lost, Servers
from dapo_cli.rollout.vllm_settings import sampling_values
from dapo_cli.types import Completion, Prompt

if TYPE_CHECKING:
    from dapo_cli.pretrained import Pretrained


class VllmServerEngine:
    """See `RolloutEngine`. Prompts go to the servers in turn; those of a server that is lost go to the others.

    A server that is lost is asked again at each sync, and is taken back once it answers and has the weights.
    """

    ranks = 1

    def __init__(self, config: VllmServerRollout, pretrained: "Pretrained", world: World) -> None:
        self.world = world
        self.tokenizer = pretrained.tokenizer
        self.eos_ids = end_of_sequence_ids(pretrained.generation_config, pretrained.tokenizer)
        self.servers = Servers(config)

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: SamplingConfig, key: str
    ) -> Iterator[Finished]:
        """See `RolloutEngine.generate`. Raises RunStopped when no server is left."""
        arrived: SimpleQueue[Finished | BaseException] = SimpleQueue()

        async def one(place: int) -> None:
            values = sampling_values(sampling, samples_per_prompt, seed_of(key, prompts[place].uid), self.eos_ids)
            body = {"token_ids": list(prompts[place].token_ids), "sampling_params": values}
            arrived.put({place: await self._complete(place, prompts[place], body)})

        async def all_of_them() -> None:
            try:
                async with asyncio.TaskGroup() as tasks:
                    for place in range(len(prompts)):
                        tasks.create_task(one(place))
            except* Exception as failures:
                arrived.put(failures.exceptions[0])

        work = self.servers.start(all_of_them())
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
        if self.world.is_main:
            send_weights(self.servers, weights, self.world.device)
        else:
            for _ in weights:  # gathered by all ranks together
                pass
        alive = self.world.on_main(lambda: [server.url for server in self.servers.living])
        for server in self.servers.all:
            server.alive = server.url in alive

    def rest(self) -> None:
        """The memory is the servers' own."""

    def close(self) -> None:
        self.servers.close()

    async def _complete(self, place: int, prompt: Prompt, body: dict[str, Any]) -> list[Completion]:
        """Ask one server after the other until one has completed the prompt."""
        turn = place + self.world.rank
        while True:
            living = self.servers.living
            server = living[turn % len(living)]
            try:
                return self._completions(prompt, await self.servers.ask(server, "inference/v1/generate", body))
            except Lost as error:
                self.servers.lose(server, error)
            except (LookupError, TypeError) as error:  # of an answer in another form
                self.servers.lose(server, Lost(f"it answers without completions: {error!r}"))

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
