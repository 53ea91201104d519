"""docs/paper_map.md names real things, and the schema's defaults are the paper's."""

import importlib
import re
from pathlib import Path

import pytest

from dapo_cli.config.schema import (
    Aggregation,
    AlgorithmConfig,
    OptimizerConfig,
    OverlongConfig,
    RatioLevel,
    SamplerConfig,
    SamplingConfig,
    Surplus,
    Surrogate,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper_map.md").read_text()


def resolve(name: str) -> object:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(dapo_cli[\w.]*)`", PAGE))))
def test_every_symbol_exists(name):
    assert resolve(name) is not None


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[\w/.]*)`", PAGE))))
def test_every_test_file_exists(path):
    assert (ROOT / path).is_file()


def test_defaults_are_section_4_1():
    algorithm, optimizer, overlong = AlgorithmConfig(), OptimizerConfig(), OverlongConfig()
    assert (algorithm.samples_per_prompt, algorithm.groups_per_step) == (16, 512)
    # "mini-batch size 512" counts responses: 32 groups of 16, which makes 16 updates a step
    assert algorithm.groups_per_update * algorithm.samples_per_prompt == 512
    assert algorithm.groups_per_step / algorithm.groups_per_update == 16
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip) == (0.2, 0.28, None)
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.weight_decay) == (1e-6, 20, 0.1)
    assert SamplingConfig() == SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, max_tokens=20480)
    assert (algorithm.surrogate, algorithm.aggregation) == (Surrogate.clip, Aggregation.token_mean)
    assert (algorithm.ratio, algorithm.kl_coefficient) == (RatioLevel.token, 0.0)
    assert (
        overlong.penalty
        and overlong.cache_tokens == 4096
        and SamplingConfig().max_tokens - overlong.cache_tokens == 16384
    )
    assert SamplerConfig().dynamic and SamplerConfig().surplus is Surplus.discard
