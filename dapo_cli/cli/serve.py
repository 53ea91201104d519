"""`dapo serve`: one of the servers that a recipe's rollout vllm_server generates with."""

import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from dapo_cli.config.load import load_recipe
from dapo_cli.config.schema import VllmServerRollout
from dapo_cli.errors import UserError
from dapo_cli.rollout.vllm_settings import ALONE_GPU_SHARE, engine_settings, require_vllm


def serve(recipe: str, overrides: Sequence[str], host: str, port: int) -> NoReturn:
    """Become vLLM's own server, of the recipe's model and with what a run needs of it. Never returns.

    Raises UserError for a recipe without rollout vllm_server, a model that cannot be found, and where vLLM is missing.
    """
    loaded = load_recipe(recipe, overrides)
    config = loaded.recipe.rollout
    if not isinstance(config, VllmServerRollout):
        raise UserError(f"{recipe}: its rollout is not vllm_server; choose it: dapo serve {recipe} rollout=vllm_server")
    require_vllm("dapo serve")

    import torch

    from dapo_cli.inputs import check_lengths, longest_sequence
    from dapo_cli.pretrained import open_pretrained

    pretrained = open_pretrained(loaded.recipe.model)
    check_lengths(loaded.recipe, pretrained.context)
    settings = engine_settings(
        config,
        dtype=config.dtype or loaded.recipe.learner.compute_dtype,
        max_tokens=longest_sequence(loaded.recipe),
        on_gpu=torch.cuda.is_available(),
        gpu_memory_share=ALONE_GPU_SHARE,
    )
    settings |= {
        "model": pretrained.folder,
        "host": host,
        "port": port,
        "enable_scale_out": True,  # opens the address that takes and gives tokens
        "worker_extension_cls": "dapo_cli.rollout.weight_sync.WorkerExtension",
        "weight_transfer_config": json.dumps({"backend": "dapo_group"}),
    }
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # opens the addresses of weight updates
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # else all servers of a machine take its first cores
    module = "vllm.entrypoints.openai.api_server"
    os.execv(sys.executable, [sys.executable, "-m", module, *_flags(settings)])


def _flags(settings: dict[str, object]) -> list[str]:
    flags = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            flags += ["--no-" + flag.removeprefix("--")]
        else:
            flags += [flag] if value is True else [flag, str(value)]
    return flags
