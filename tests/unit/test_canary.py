"""The canary on a real learner and a real engine with a model of its own: it is quiet where they agree, and names the
cause where they do not."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from dapo_cli.algorithm.objective import Clip
from dapo_cli.canary import (
    COMPLETION_TOKENS,
    EXACT_TOLERANCE,
    PROMPT_TOKENS,
    ROUNDED_TOLERANCE,
    Canary,
    Reading,
    likely_cause,
)
from dapo_cli.config.schema import LearnerConfig, OptimizerConfig, Precision, SamplingConfig
from dapo_cli.distributed.world import World
from dapo_cli.errors import OutOfSync
from dapo_cli.learner.base import Objective
from dapo_cli.learner.single import SingleLearner
from dapo_cli.protocols import Finished
from dapo_cli.rollout.transformers_engine import TransformersEngine
from dapo_cli.types import TokenSequence
from tests.conftest import DEVICE, eq_9, make_group, make_prompt

FLOAT32 = {Precision.float32}
MAX_TOKENS = 112  # the longest sequence


class RecordingEngine(TransformersEngine):
    """Keeps what it is asked for, and may sample by another recipe than the one that it is given."""

    change: Callable[[SamplingConfig], SamplingConfig] = staticmethod(lambda sampling: sampling)

    def generate(self, prompts, samples_per_prompt, sampling, key) -> Iterator[Finished]:
        self.asked = list(prompts), samples_per_prompt, sampling, key
        return super().generate(prompts, samples_per_prompt, self.change(sampling), key)


@pytest.fixture
def learner(model) -> SingleLearner:
    return make_learner(model)


def make_learner(model, temperature: float = 1.0) -> SingleLearner:
    objective = Objective(Clip(0.2, 0.28), temperature, filter_truncated=False)
    optimizer = OptimizerConfig(lr=1e-2, warmup_steps=0)
    return SingleLearner(World(device=DEVICE), model, objective, optimizer, LearnerConfig())


@pytest.fixture
def engine(model, tokenizer) -> RecordingEngine:
    return RecordingEngine(copy.deepcopy(model), tokenizer, 64)


@pytest.fixture
def prompts(tokenizer):
    return [make_prompt(tokenizer, text) for text in ("1+2=?\n", "6+9-8+4=?\n", "3=?\n", "7+7=?\n")]


def make_canary(engine, learner, prompts, *, precisions=FLOAT32, tolerance=None, max_tokens=MAX_TOKENS, **sampling):
    return Canary(
        engine,
        learner,
        World(device=DEVICE),
        prompts,
        SamplingConfig(max_tokens=80, **sampling),
        max_tokens=max_tokens,
        tolerance=tolerance,
        precisions=precisions,
    )


@pytest.fixture
def canary(engine, learner, prompts) -> Canary:
    return make_canary(engine, learner, prompts)


def update(learner: SingleLearner, seed: int = 1) -> None:
    scored, _ = learner.score([make_group([6, 9, 12], [True, False, False], seed=seed)], step=1)
    assert learner.update(scored, eq_9(scored), learner.optimizer_config.lr).updates == 1


def sync(engine, learner) -> None:
    engine.sync_weights((name, weight.clone()) for name, weight in learner.named_weights())


class TestAgreement:
    def test_is_near_zero_as_long_as_every_update_is_synced(self, canary, engine, learner):
        for seed in range(3):
            metrics = canary.check()
            assert metrics.keys() == {"canary/mean_abs", "canary/max_abs"}
            assert 0 <= metrics["canary/mean_abs"] <= metrics["canary/max_abs"] < 1e-5
            update(learner, seed)
            sync(engine, learner)

    def test_an_update_that_changes_nothing_is_no_fault(self, canary):
        canary.check()
        canary.check()

    @pytest.mark.parametrize("temperature", [0.6, 1.0])
    def test_both_sides_are_taken_at_the_sampling_temperature(self, model, engine, prompts, temperature):
        canary = make_canary(engine, make_learner(model, temperature), prompts, temperature=temperature)
        assert canary.check()["canary/max_abs"] < 1e-5

    def test_reports_the_mean_and_the_largest_difference(self, canary, engine, learner):
        canary.tolerance = 10
        with torch.no_grad():
            engine.model.model.embed_tokens.weight.mul_(1.1)
        metrics = canary.check()
        _, _, sampling, key = engine.asked
        differences = []
        for finished in TransformersEngine(engine.model, engine.tokenizer, 64).generate(
            canary.prompts, 1, sampling, key
        ):
            for place, (completion,) in finished.items():
                sequence = [*canary.prompts[place].token_ids, *completion.token_ids]
                with torch.no_grad():
                    logits = learner.model(torch.tensor([sequence], device=DEVICE)).logits[0].log_softmax(-1).cpu()
                at = range(len(sequence) - len(completion.token_ids), len(sequence))
                learners = [logits[position - 1, sequence[position]].item() for position in at]
                differences += np.subtract(completion.logprobs, learners).tolist()
        assert metrics["canary/mean_abs"] == pytest.approx(np.mean(np.abs(differences)), rel=1e-3)
        assert metrics["canary/max_abs"] == pytest.approx(np.max(np.abs(differences)), rel=1e-3)
        assert metrics["canary/mean_abs"] > 0.01


class TestPrompts:
    def test_are_long_enough_to_be_cached_and_differ_in_their_noise(self, canary, engine, prompts):
        canary.check()
        asked, samples, sampling, _ = engine.asked
        assert samples == 1 and sampling.max_tokens == COMPLETION_TOKENS
        assert len({prompt.uid for prompt in asked}) == len(asked) == 4
        for prompt, original in zip(asked, prompts, strict=True):
            assert len(prompt.token_ids) == PROMPT_TOKENS
            repeated = original.token_ids * (1 + PROMPT_TOKENS // len(original.token_ids))
            assert prompt.token_ids == repeated[:PROMPT_TOKENS]

    @pytest.mark.parametrize(("max_tokens", "expected"), [(40, 24), (1000, 64), (79, 63), (80, 64)])
    def test_leave_room_for_their_completions(self, engine, learner, prompts, max_tokens, expected):
        canary = make_canary(engine, learner, prompts, max_tokens=max_tokens)
        assert {len(prompt.token_ids) for prompt in canary.prompts} == {expected}
        assert expected + canary.sampling.max_tokens <= max_tokens

    def test_equal_ones_get_noise_of_their_own(self, engine, learner, prompts):
        canary = make_canary(engine, learner, prompts[:1] * 3)
        canary.check()
        completions = [sequence.completion_ids for sequence in canary._last.sequences]
        assert len(set(completions)) == 3


class TestCauses:
    def test_a_sync_that_was_not_done(self, canary, learner):
        canary.check()
        update(learner)
        with pytest.raises(OutOfSync, match="before the last update: its weights did not reach the engine"):
            canary.check()

    def test_a_sync_that_was_not_done_is_seen_within_the_tolerance(self, engine, learner, prompts):
        """A learning rate so small that no log-prob moves by the tolerance."""
        canary = make_canary(engine, learner, prompts, tolerance=100)
        canary.check()
        update(learner)
        with pytest.raises(OutOfSync, match="did not reach the engine"):
            canary.check()

    def test_without_a_common_precision_an_engine_that_stays_may_be_rounding(self, engine, learner, prompts):
        canary = make_canary(
            engine, learner, prompts, tolerance=100, precisions={Precision.float32, Precision.bfloat16}
        )
        canary.check()
        update(learner)
        assert canary.check()["canary/mean_abs"] > 1e-3

    def test_a_sync_that_stops_after_some_steps(self, canary, engine, learner):
        for seed in range(2):
            canary.check()
            update(learner, seed)
            sync(engine, learner)
        canary.check()
        update(learner, 3)
        with pytest.raises(OutOfSync, match="before the last update"):
            canary.check()

    @pytest.mark.parametrize("left_out", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
    def test_a_weight_that_was_left_out(self, canary, engine, learner, left_out):
        canary.check()
        update(learner)
        engine.sync_weights((name, weight) for name, weight in learner.named_weights() if name != left_out)
        with pytest.raises(
            OutOfSync, match="They agreed before the last update: some weights did not reach the engine"
        ):
            canary.check()

    def test_another_model_from_the_start(self, canary, engine):
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            for weight in engine.model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
        with pytest.raises(OutOfSync, match="before any update: the engine computes another model than the learner"):
            canary.check()

    @pytest.mark.parametrize(("ours", "theirs"), [(1.0, 0.6), (0.6, 1.0), (1.0, 1.2)])
    def test_another_temperature(self, model, engine, prompts, ours, theirs):
        engine.change = lambda sampling: replace(sampling, temperature=theirs)
        canary = make_canary(engine, make_learner(model, ours), prompts, temperature=ours)
        said = f"those of temperature {theirs:g}, and sampling.temperature is {ours:g}"
        with pytest.raises(OutOfSync, match=said):
            canary.check()

    @pytest.mark.parametrize("cut", [{"top_p": 0.7}, {"top_k": 5}])
    def test_a_cut_distribution(self, canary, engine, cut):
        engine.change = lambda sampling: replace(sampling, **cut)
        with pytest.raises(OutOfSync, match="top_p or top_k cuts the engine's distribution"):
            canary.check()

    def test_the_message_says_how_far_and_by_which_key(self, canary, engine):
        engine.change = lambda sampling: replace(sampling, top_k=2)
        with pytest.raises(
            OutOfSync, match=r"differ from the learner's by [\d.]+ nats.*rollout\.canary_tolerance: 0\.0001"
        ):
            canary.check()

    def test_log_probs_that_are_no_numbers(self, canary, learner):
        """They compare with no tolerance, so they must not pass for small."""
        canary.tolerance = 1e9
        with torch.no_grad():
            learner.model.model.norm.weight.fill_(torch.nan)
        with pytest.raises(OutOfSync):
            canary.check()


@pytest.mark.parametrize(
    ("precisions", "tolerance", "expected"),
    [
        ({Precision.float32}, None, EXACT_TOLERANCE),
        ({Precision.float32, Precision.bfloat16}, None, ROUNDED_TOLERANCE),
        ({Precision.bfloat16}, None, ROUNDED_TOLERANCE),
        ({Precision.float32}, 0.3, 0.3),
    ],
)
def test_tolerance(engine, learner, prompts, precisions, tolerance, expected):
    assert make_canary(engine, learner, prompts, precisions=precisions, tolerance=tolerance).tolerance == expected


SEQUENCES = [TokenSequence((1, 2), (3, 4, 5))]


def reading(engine: list[float], learner: list[float], sequences=SEQUENCES) -> Reading:
    return Reading(sequences, np.array(engine, dtype=np.float32), np.array(learner, dtype=np.float32))


class TestLikelyCause:
    """On readings made by hand; `learner_at` never fits unless the case says so."""

    LAST = reading([-1, -2, -3], [-1, -2, -3])
    APART = reading([-1.5, -2, -2.5], [-1, -2, -3])

    def cause(self, last, now, *, fits: dict[float, list[float]] | None = None, exact=True, temperature=1.0) -> str:
        def learner_at(other: float) -> np.ndarray:
            assert other != temperature
            return np.array((fits or {}).get(other, [-50, -50, -50]), dtype=np.float32)

        return likely_cause(last, now, 1e-4, temperature, learner_at, exact=exact)

    def test_stuck(self):
        assert "did not reach the engine" in self.cause(self.LAST, reading([-1, -2, -3], [-1.5, -2, -2.5]))

    def test_not_stuck_where_the_learner_stays_or_the_sequences_are_others(self):
        now = reading([-1, -2, -3], [-1, -2, -3])
        assert "before the last update: its" not in self.cause(self.LAST, now)
        others = reading([-1, -2, -3], [-1.5, -2, -2.5], [TokenSequence((1, 2), (3, 4, 6))])
        assert "before the last update: its" not in self.cause(self.LAST, others)

    def test_the_best_of_the_temperatures_that_fit(self):
        fits = {0.6: [-1.5, -2, -2.5], 0.7: [-1.50005, -2, -2.5]}
        assert "temperature 0.6, and" in self.cause(None, self.APART, fits=fits)
        assert "temperature 1, and sampling.temperature is 0.6" in self.cause(
            None, self.APART, fits={1.0: [-1.5, -2, -2.5]}, temperature=0.6
        )

    def test_a_temperature_that_hardly_fits_better_is_not_named(self):
        # Off by 0.1 in the mean, of 1/3: nearer, and not the cause.
        assert "temperature" not in self.cause(None, self.APART, fits={0.6: [-1.6, -2.1, -2.6]})

    def test_none_below(self):
        assert "top_p or top_k" in self.cause(None, reading([-0.5, -2, -3.00005], [-1, -2, -3]))
        assert "top_p or top_k" not in self.cause(None, reading([-0.5, -2, -3.1], [-1, -2, -3]))

    def test_what_is_left(self):
        assert "agreed before the last update" in self.cause(self.LAST, self.APART)
        assert "before any update" in self.cause(None, self.APART)
        for last in (None, self.LAST):
            assert "rounding does it" in self.cause(last, self.APART, exact=False)
