"""Checkpoints are whole or absent, pruned, and restore the step after them exactly."""

import errno
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import SafetensorError

from dapo_cli.algorithm.sampler import DynamicSampler
from dapo_cli.checkpoint import Checkpoints, write_folder_atomically
from dapo_cli.config.schema import SamplerConfig, Surplus
from dapo_cli.data.stream import PromptStream
from dapo_cli.errors import UserError
from dapo_cli.types import RewardHistory, scored_group_from_dict, scored_group_to_dict
from tests.conftest import make_group, make_scored, train_on
from tests.unit.test_single_learner import GROUPS, make_learner


def make_sampler() -> DynamicSampler:
    prompts = [make_group([1, 1], [True, False], uid=str(n)).prompt for n in range(10)]
    return DynamicSampler(SamplerConfig(surplus=Surplus.carry), 2, PromptStream(prompts, seed=0))


def test_restores_learner_sampler_and_random_state(model, tmp_path):
    learner, sampler = make_learner(model), make_sampler()
    train_on(learner, GROUPS, 1)
    sampler.begin_step(1)
    sampler.stream.take(13)
    sampler.carried = [make_scored(GROUPS[0], born_step=1, logprob=-0.1)]
    Checkpoints(tmp_path, keep=2).save(1, learner, sampler.state_dict())
    expected_draw = torch.rand(1)
    expected_prompts = [prompt.uid for prompt in sampler.stream.take(5)]
    weights = {name: weight.clone() for name, weight in model.named_parameters()}

    for weight in model.parameters():
        weight.data.zero_()
    restored = make_sampler()
    assert Checkpoints(tmp_path, keep=2).restore(make_learner(model), restored) == 1
    assert torch.rand(1) == expected_draw
    assert [prompt.uid for prompt in restored.stream.take(5)] == expected_prompts
    assert restored.carried[0].group == GROUPS[0]
    assert all(torch.equal(weights[name], weight) for name, weight in model.named_parameters())


def test_scored_group_survives_json_exactly():
    group = replace(GROUPS[1], history=RewardHistory(visits=2, size=6, mean=1 / 3, squares=0.1))
    scored = make_scored(group, born_step=4, logprob=-0.1)
    back = scored_group_from_dict(json.loads(json.dumps(scored_group_to_dict(scored))))
    assert (back.group, back.born_step) == (scored.group, 4)
    for before, after in zip(scored.old_logprobs, back.old_logprobs, strict=True):
        assert before.dtype == after.dtype and before.tobytes() == after.tobytes()


def test_keeps_the_newest(model, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 10):
        checkpoints.save(step, make_learner(model), make_sampler().state_dict())
    assert checkpoints.steps() == [3, 10]


@pytest.mark.parametrize(("keep", "reach_back", "every"), [(1, 4, 1), (2, 3, 2), (1, 5, 7)])
def test_what_a_rollback_may_need_is_kept(model, tmp_path, keep, reach_back, every):
    """Before each step there is a checkpoint that is as old as the step's alarm may ask for, as soon as one can be."""
    checkpoints = Checkpoints(tmp_path, keep, reach_back=reach_back)
    learner, state = make_learner(model), make_sampler().state_dict()
    for step in range(1, 21):
        saved = checkpoints.steps()
        assert any(each <= step - reach_back for each in saved) == (step - reach_back >= every)
        assert len(saved) <= keep + 2
        if step % every == 0:
            checkpoints.save(step, learner, state)


def test_a_checkpoint_saved_for_good_stays_and_later_ones_can_be_dropped(model, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, make_learner(model), make_sampler().state_dict(), for_good=step == 2)
    assert checkpoints.steps() == [2, 4]
    assert checkpoints.restore(make_learner(model), make_sampler()) == 4
    checkpoints.drop_after(2)
    assert checkpoints.steps() == [2]


def test_a_kill_amid_a_removal_leaves_whole_checkpoints_and_no_rest(model, tmp_path, monkeypatch):
    learner, state = make_learner(model), make_sampler().state_dict()
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, learner, state)

    def killed(folder, ignore_errors=False):
        if folder.exists():
            (folder / "state.json").unlink()
            raise KeyboardInterrupt

    def whole_after(remove):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(shutil, "rmtree", killed)
            remove()
        assert Checkpoints(tmp_path, keep=3).restore(make_learner(model), make_sampler()) == checkpoints.steps()[-1]
        return checkpoints.steps()

    assert whole_after(lambda: checkpoints.drop_after(1)) == [1, 2]
    checkpoints.drop_after(1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    checkpoints.save(2, learner, state)
    checkpoints.keep = 1
    assert whole_after(lambda: checkpoints.save(3, learner, state)) == [2, 3]
    checkpoints.save(4, learner, state)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


def test_no_checkpoint_is_step_zero(model, tmp_path):
    assert Checkpoints(tmp_path / "none", keep=1).restore(make_learner(model), make_sampler()) == 0


def test_a_full_disk_leaves_the_older_checkpoint_whole(model, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    learner = make_learner(model)
    checkpoints.save(1, learner, make_sampler().state_dict())

    for error in (
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ):

        def full_disk(folder, error=error):
            (folder / "model.safetensors").write_bytes(b"half")
            raise error

        learner.save = full_disk
        with pytest.raises(OSError, match="No space left") as raised:
            checkpoints.save(2, learner, make_sampler().state_dict())
        assert raised.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    assert checkpoints.restore(make_learner(model), make_sampler()) == 1


def test_a_folder_left_unfinished_by_a_kill_is_no_checkpoint(model, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, make_learner(model), make_sampler().state_dict())
    (tmp_path / "step_000002.unfinished").mkdir()
    (tmp_path / "step_000002.unfinished" / "model.safetensors").write_bytes(b"half")
    assert checkpoints.steps() == [1]
    checkpoints.save(2, make_learner(model), make_sampler().state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000002"]


def test_a_damaged_checkpoint_is_named_with_the_remedy(model, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(7, make_learner(model), make_sampler().state_dict())
    weights = tmp_path / "step_000007" / "__0_0.distcp"
    whole = weights.read_bytes()
    flipped = bytes([*whole[:-9], whole[-9] ^ 0x40, *whole[-8:]])
    for damaged in (whole[:100], flipped):
        weights.write_bytes(damaged)
        with pytest.raises(UserError, match=r"step_000007.*does not load.*Remove this folder"):
            checkpoints.restore(make_learner(model), make_sampler())
    weights.write_bytes(whole)
    assert checkpoints.restore(make_learner(model), make_sampler()) == 7
    (tmp_path / "step_000007").rename(tmp_path / "step_000009")
    with pytest.raises(UserError, match="it is of step 7"):
        checkpoints.restore(make_learner(model), make_sampler())


def test_an_existing_folder_is_replaced_only_by_a_whole_one(tmp_path):
    final = tmp_path / "export"
    write_folder_atomically(final, lambda folder: (folder / "a").write_text("1"))

    def fails(folder):
        (folder / "a").write_text("2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder_atomically(final, fails)
    assert (final / "a").read_text() == "1"
    write_folder_atomically(final, lambda folder: (folder / "b").write_text("3"))
    assert [path.name for path in final.iterdir()] == ["b"]
