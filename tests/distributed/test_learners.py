"""Every learner on two ranks against the single-process one: one gradient, whatever the split; one form of state."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from dapo_cli.config.schema import LaunchConfig
from dapo_cli.distributed.launch import launch
from tests.distributed import on_ranks

pytest.importorskip("deepspeed", reason="the deepspeed extra is not installed")
pytest.importorskip("peft", reason="the lora extra is not installed")

SAME_METRICS = ("policy/updates", "policy/loss_tokens", "policy/clip_high", "policy/clip_low")
CLOSE_METRICS = ("policy/loss", "policy/grad_norm")
EXTREMES = ("policy/ratio_min", "policy/ratio_max")  # of one token: the rounding of its log-probs


@cache
def on_two_ranks(name: str) -> dict[str, Any]:
    return launch(LaunchConfig(processes_per_node=2), ["-m", "tests.distributed.on_ranks", name], threads=1)


def assert_equal(found: dict[str, Any], expected: dict[str, Any], rtol: float = 1e-5) -> None:
    """Same counts; figures, log-probs and weights equal up to rounding. Weights are compared by tensor: Adam turns the
    rounding of gradients near zero into that of single weights."""
    for ours, theirs in zip(np.ravel(found["metrics"]), np.ravel(expected["metrics"]), strict=True):
        assert {key: ours[key] for key in SAME_METRICS} == {key: theirs[key] for key in SAME_METRICS}
        for key in (*CLOSE_METRICS, *EXTREMES):
            close = 10 * rtol if key in EXTREMES else rtol
            assert ours[key] == (theirs[key] if theirs[key] is None else pytest.approx(theirs[key], rel=close)), key
    assert found["entropy"] == pytest.approx(expected["entropy"], rel=rtol)
    for ours, theirs in zip(found["logprobs"], expected["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=10 * rtol)
    assert found["weights"].keys() == expected["weights"].keys()
    for name, theirs in expected["weights"].items():
        assert np.linalg.norm(np.subtract(found["weights"][name], theirs)) <= rtol * np.linalg.norm(theirs), name


@pytest.mark.parametrize("case", on_ranks.CASES)
def test_two_ranks_are_one_learner(case):
    found, expected = on_two_ranks("beside_single")[case]
    updates = [[each["policy/updates"] for each in step] for step in expected["metrics"]]
    assert updates == [[1, 1, 0]] * on_ranks.STEPS  # the last mini-batch has no loss token
    assert_equal(found, expected)


@pytest.mark.parametrize("case", on_ranks.FAMILY)
def test_two_ranks_are_one_learner_for_every_objective(case):
    """With a reference: rank by rank a part of it, of the weights that the run started from."""
    found, expected = on_two_ranks("family")[case]
    assert_equal(found, expected)
    if on_ranks.FAMILY[case][1].has_reference:
        first, *later = [
            [(ours["policy/kl_reference"], theirs["policy/kl_reference"]) for ours, theirs in zip(*steps, strict=True)]
            for steps in zip(found["metrics"], expected["metrics"], strict=True)
        ]
        assert first[0] == pytest.approx((0.0, 0.0), abs=1e-6)
        for ours, theirs in [pair for step in later for pair in step[:2]]:
            assert ours == pytest.approx(theirs, rel=1e-3) and theirs > 1e-5


def test_a_reference_computes_as_the_policy_does_and_is_split_where_that_is():
    found = on_two_ranks("family")["references"]
    whole = found["whole"]
    for name in ("fsdp", "zero 1", "zero 3"):
        difference, held = found[name]
        assert difference == 0, name
        each = whole if name == "zero 1" else whole / 2
        assert held == pytest.approx([each, each], rel=0.02), name


@pytest.mark.parametrize("case", on_ranks.LOWER)
def test_lower_precision_is_near(case):
    found, exact = on_two_ranks("in_lower_precision")[case]
    for ours, theirs in zip(np.ravel(found["metrics"]), np.ravel(exact["metrics"]), strict=True):
        assert ours["policy/updates"] == theirs["policy/updates"]
        if theirs["policy/updates"]:
            assert ours["policy/grad_norm"] == pytest.approx(theirs["policy/grad_norm"], rel=0.05)
    differences = np.abs(np.concatenate(found["logprobs"]) - np.concatenate(exact["logprobs"]))
    assert 1e-5 < differences.max() < 0.2
    # Adam's first updates are about lr times the gradient's sign: most signs must be the same.
    ours, theirs = (
        np.concatenate([np.subtract(each["weights"][name], start) for name, start in found["start"].items()])
        for each in (found, exact)
    )
    assert np.linalg.norm(ours - theirs) < 0.5 * np.linalg.norm(theirs)


SHARDED = ("fsdp", "zero 1", "zero 2", "zero 3")
PAIRS = [("single", "single")] + [
    pair for name in SHARDED for pair in (("single", name), (name, "single"), (name, name))
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_any_learner_goes_on_from_any_other(source, target):
    """All write one form, so that from and to the single one stands for all pairs."""
    found, expected = on_two_ranks("from_one_to_another")[f"{source} to {target}"]
    assert_equal(found, expected | {"metrics": expected["metrics"][-1:]})


def test_a_checkpoint_without_any_update_holds_the_weights_exactly():
    for name, (weights, moments) in on_two_ranks("without_updates").items():
        assert (weights, moments) == (0, 0), name


def test_scoring_changes_nothing_that_is_saved():
    for name, equal in on_two_ranks("scored_between").items():
        assert equal and all(equal.values()), name


def test_three_ranks_are_one_learner():
    config = LaunchConfig(processes_per_node=3)
    found = launch(config, ["-m", "tests.distributed.on_ranks", "three_ranks"], threads=1)
    for ours, expected in found.values():
        assert_equal(ours, expected)
