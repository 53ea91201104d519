"""The verdict of a row of `dapo selftest`; the rows themselves are tested on ranks, in tests/e2e/test_ranks.py."""

import math

import pytest
from transformers import AutoConfig, Qwen3Config

from dapo_cli.config.shipped import model_folder
from dapo_cli.selftest import FIGURES, LAYERS, Row, shortened


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("value", [2e-5, math.nan, math.inf])
def test_one_figure_that_is_off_or_no_number_is_not_equal(figure, value):
    row = Row("fsdp", 2, 20, 150, 1e-6, 1e-6, 1e-6, 1e-6)
    assert row.equal
    assert not Row(**{**vars(row), figure: value}).equal


def test_a_shortened_model_differs_in_its_number_of_layers_alone():
    config = Qwen3Config(num_hidden_layers=6)
    short = shortened(config)
    assert (short.num_hidden_layers, len(short.layer_types), config.num_hidden_layers) == (LAYERS, LAYERS, 6)
    different = {key for key, value in config.to_dict().items() if short.to_dict()[key] != value}
    assert different == {"num_hidden_layers", "layer_types"}
    tiny = AutoConfig.from_pretrained(model_folder("shipped:tiny-arithmetic"))
    assert shortened(tiny).hidden_size == tiny.hidden_size
