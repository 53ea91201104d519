"""Collectives of two ranks, and what a user reads when one of them fails."""

import os
import time

import pytest

from dapo_cli.config.schema import LaunchConfig
from dapo_cli.distributed.launch import launch
from dapo_cli.errors import Diverged, ProcessFailed
from tests.distributed.test_learners import on_two_ranks


def test_collectives():
    found = on_two_ranks("collectives")
    assert found["spread"] == ["a0", "b1", "c0", "d1", "e0"]
    assert found["one item"] == ["a0"]
    assert found["on main"] == 0
    assert found["UserError"] == [["UserError", "a file is missing"]] * 2
    assert found["Diverged"][0] == found["Diverged"][1] and "the logits are not finite" in found["Diverged"][0][1]
    assert found["KeyError"] == [["RankFailed", "rank 1: KeyError: 'surprise'"], ["KeyError", "'surprise'"]]


def test_the_traceback_of_the_rank_that_failed_first_reaches_the_user():
    began = time.monotonic()
    with pytest.raises(ProcessFailed) as raised:
        launch(LaunchConfig(processes_per_node=2), ["-m", "tests.distributed.on_ranks", "fails_on_rank_1"], threads=1)
    assert time.monotonic() - began < 30
    lines = str(raised.value).splitlines()
    assert lines[0] == "rank 1:" and lines[-1] == "LookupError: nothing to be found"
    assert any("fails_on_rank_1" in line for line in lines)
    assert len(lines) < 12


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_what_ends_all_ranks_on_purpose_is_raised_as_it_was_and_not_tried_again(max_restarts):
    config = LaunchConfig(processes_per_node=2, max_restarts=max_restarts)
    with pytest.raises(Diverged, match=r"^training diverged: the test says so"):
        launch(config, ["-m", "tests.distributed.on_ranks", "diverges_everywhere"], threads=1)


def test_leaves_the_environment_as_it_was():
    before = dict(os.environ)
    launch(LaunchConfig(processes_per_node=1), ["-c", "print()"], threads=1)
    assert dict(os.environ) == before
