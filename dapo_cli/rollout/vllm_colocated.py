"""vLLM inside the training process: each rank its own engine, or several ranks one, split by tensor parallelism."""

import contextlib
import gc
import logging
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dapo_cli.config.schema import Precision, SamplingConfig, VllmColocatedRollout
from dapo_cli.distributed.world import World
from dapo_cli.errors import UserError
from dapo_cli.protocols import Finished
from dapo_cli.rollout.completions import end_of_sequence_ids, make_completions, seed_of
from dapo_cli.rollout.vllm_settings import COLOCATED_GPU_SHARE, engine_settings, sampling_values
from dapo_cli.types import Prompt

if TYPE_CHECKING:
    from dapo_cli.pretrained import Pretrained

LOG_LINES = 10  # of an engine that does not start; a probe's log is gone afterwards
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, where the learner's tensors are
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads are the learner's, too
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


class VllmColocatedEngine:
    """See `RolloutEngine`. A completion's seed is a function of (key, prompt uid, sample index), so its noise is that
    of no other and the same in every batch."""

    def __init__(
        self,
        config: VllmColocatedRollout,
        pretrained: "Pretrained",
        world: World,
        *,
        dtype: Precision,
        max_tokens: int,
        log_file: Path,
    ) -> None:
        """`max_tokens` bounds prompt and completion together. vLLM's own messages go to `log_file`.

        Collective: every rank must call. Raises UserError where vLLM cannot serve the model here.
        """
        self.ranks = config.tensor_parallel
        self.tokenizer = pretrained.tokenizer
        self.eos_ids = end_of_sequence_ids(pretrained.generation_config, pretrained.tokenizer)
        self._sleeps = config.sleep and world.device.type == "cuda"
        try:
            with _undisturbed(), _into(log_file):
                os.environ.update(SETTINGS)
                self._llm = _start(config, pretrained.folder, world, dtype, max_tokens, self._sleeps)
                # Some models fail only when they compute.
                list(self.generate([Prompt("", "", (self.eos_ids[0],), "", "")], 1, SamplingConfig(max_tokens=2), ""))
        except Exception as error:  # each kind of unfit model and setting has its own
            said = re.sub(r"(?s).*Value error, (.*?) \[type=.*", r"\1", str(error))  # out of a validator's report
            log = log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
            told = [f"rollout vllm_colocated: vLLM does not start: {said}; the end of {log_file.name}:"]
            raise UserError("\n  ".join([*told, *log[-LOG_LINES:]])) from error
        self._awake = True

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: SamplingConfig, key: str
    ) -> Iterator[Finished]:
        """See `RolloutEngine.generate`. All are handed to vLLM at once; those unfinished are aborted on `close`."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        running: dict[str, str] = {}  # our name of a request -> vLLM's
        for place, prompt in enumerate(prompts):
            values = sampling_values(sampling, samples_per_prompt, seed_of(key, prompt.uid), self.eos_ids)
            params = SamplingParams(
                **values, flat_logprobs=True, output_kind=RequestOutputKind.FINAL_ONLY, skip_clone=True
            )
            running[str(place)] = engine.add_request(str(place), tokens_input(list(prompt.token_ids)), params)
        try:
            while running:
                with torch.random.fork_rng(devices=[]):  # on a CPU it draws, for requests that have seeds, too
                    outputs = [output for output in engine.step() if output.finished]
                for output in outputs:
                    del running[output.request_id]
                yield {
                    int(output.request_id): self._completions(prompts[int(output.request_id)], output)
                    for output in outputs
                }
        finally:
            if running:
                engine.abort_request(list(running.values()), internal=True)

    def sync_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Stream the weights into vLLM, one at a time, and forget what was computed with those before."""
        llm = self._llm
        if not self._awake:
            llm.wake_up(tags=["weights"])
        llm.start_weight_update()
        for name, weight in weights:
            llm.update_weights({"update_info": {"weights": [(name, weight)]}})
        llm.finish_weight_update()
        if not self._awake:
            llm.wake_up(tags=["kv_cache"])
            self._awake = True
        if not llm.reset_prefix_cache():
            raise RuntimeError("vLLM keeps the prefix cache of weights from before")

    def rest(self) -> None:
        if self._sleeps and self._awake:
            self._llm.sleep(level=2)  # nothing is kept: the next sync brings all weights
            self._awake = False

    def close(self) -> None:
        """Ends torch's default process group, too: nothing collective may follow."""
        self._llm.llm_engine.engine_core.shutdown()

    def _completions(self, prompt: Prompt, output: Any) -> Any:
        samples = sorted(output.outputs, key=lambda sample: sample.index)
        return make_completions(
            prompt,
            [list(sample.token_ids) for sample in samples],
            [list(sample.logprobs.logprobs) for sample in samples],
            self.tokenizer,
            self.eos_ids,
        )


def _start(
    config: VllmColocatedRollout, folder: str, world: World, dtype: Precision, max_tokens: int, sleeps: bool
) -> Any:
    from vllm import LLM
    from vllm.config import WeightTransferConfig

    from dapo_cli.rollout.weight_sync import IN_PROCESS

    settings = engine_settings(
        config,
        dtype=dtype,
        max_tokens=max_tokens,
        on_gpu=world.device.type == "cuda",
        gpu_memory_share=COLOCATED_GPU_SHARE,
    )
    settings |= {
        "model": folder,
        "enable_sleep_mode": sleeps,
        "weight_transfer_config": WeightTransferConfig(backend=IN_PROCESS),
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if world.size > 1:  # each rank takes its own GPU, and its place among those that share an engine
        settings["distributed_executor_backend"] = "external_launcher"
    llm = LLM(**settings)
    llm.init_weight_transfer_engine({"init_info": {}})
    return llm


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """vLLM sets environment variables, reseeds generators, replaces torch.set_num_threads and freezes the garbage
    collector; after it all is as before."""
    environment, set_num_threads, threads = dict(os.environ), torch.set_num_threads, torch.get_num_threads()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda_state = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state)
        gc.unfreeze()


@contextlib.contextmanager
def _into(log_file: Path) -> Iterator[None]:
    """What vLLM logs goes to the file from now on; what it and its libraries print, within this block."""
    stream = log_file.open("a")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("vllm")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, number in zip(kept, (1, 2), strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
