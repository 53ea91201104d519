"""Batches one step ahead, over hand-made completions: the same groups and sampler states as without."""

import threading
from hashlib import sha256

import pytest

from dapo_cli.algorithm.sampler import DynamicSampler
from dapo_cli.config.load import load_recipe
from dapo_cli.data.stream import PromptStream
from dapo_cli.distributed.world import World
from dapo_cli.errors import UserError
from dapo_cli.reward.overlong import SoftOverlong
from dapo_cli.rounds import Batches, Rounds
from dapo_cli.tracking.clock import PhaseClock
from dapo_cli.types import Completion, Finish, Outcome, Prompt, Verdict
from tests.conftest import make_scored

PROMPTS = [Prompt(f"p{n}", f"{n}?", (n + 1,), "right", "test") for n in range(40)]
STEPS = 5
DEADLINE_S = 20  # for what must come


class Engine:
    """Completions that are right or wrong by a hash of what they are keyed on."""

    ranks = 1

    def generate(self, prompts, samples_per_prompt, sampling, key):
        for place, prompt in enumerate(prompts):
            texts = ["right" if self.coin(key, prompt, i) else "wrong" for i in range(samples_per_prompt)]
            yield {place: [Completion(prompt.uid, i, (5,), (-1.0,), Finish.STOP, text) for i, text in enumerate(texts)]}

    def coin(self, key, prompt, sample) -> bool:
        return sha256(f"{key}/{prompt.uid}/{sample}".encode()).digest()[0] < 40


class ExactVerifier:
    def verify(self, cases):
        outcomes = {True: Outcome.RIGHT, False: Outcome.WRONG}
        return [Verdict(outcomes[text == answer], text, "exact") for _, text, answer in cases]


def make_batches(ahead: int, engine: Engine | None = None, *overrides: str, prompts: list = PROMPTS) -> Batches:
    sizes = ["algorithm.groups_per_step=4", "algorithm.groups_per_update=2", "sampler.max_prompts_per_round=8"]
    recipe = load_recipe("quickstart", [f"run.steps={STEPS}", *sizes, *overrides]).recipe
    recipe.run.ahead = ahead
    sampler = DynamicSampler(recipe.sampler, recipe.algorithm.groups_per_step, PromptStream(prompts, seed=0))
    shaper = SoftOverlong(recipe.overlong, recipe.sampling.max_tokens)
    return Batches(Rounds(recipe, World(), engine or Engine(), sampler, ExactVerifier(), shaper))


def run(batches: Batches) -> list[tuple]:
    """What the loop reads of each step, in its order."""
    sampler = batches.rounds.sampler
    steps = []
    for step in range(1, STEPS + 1):
        judged = batches.take(step, PhaseClock())
        fresh, metrics, staleness = sampler.take(), sampler.metrics(), batches.staleness
        batches.begin(step + 1)
        batch = sampler.batch([make_scored(group, born_step=step) for group in fresh])
        batches.wait()
        known = [[(each.prompt.uid, each.history) for each in groups] for groups in (judged, [s.group for s in batch])]
        steps.append((known, metrics, batches.sampler_state(), staleness))
    batches.close()
    return steps


@pytest.mark.parametrize("surplus", ["discard", "abort"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:7]], ids=["one epoch", "several epochs"])
def test_batches_and_sampler_states_are_those_of_a_run_that_is_not_ahead(surplus, prompts):
    """With all that a group knows of its prompt's earlier visits."""
    overrides = [f"sampler.surplus={surplus}", "sampler.skip_hopeless_below=0.0", "sampler.revisit_after=1"]
    usual, ahead = (run(make_batches(number, None, *overrides, prompts=prompts)) for number in (0, 1))
    assert [step[:3] for step in ahead] == [step[:3] for step in usual]
    assert len({str(step[2]) for step in usual}) == STEPS  # the state moves on with every step
    assert [step[3] for step in usual] == [0] * STEPS
    assert [step[3] for step in ahead] == [0, 1, 1, 1, 1]


def test_the_next_step_is_generated_before_it_is_asked_for():
    reached = threading.Event()

    class Watched(Engine):
        def generate(self, prompts, samples_per_prompt, sampling, key):
            if "/train/2/" in key:
                reached.set()
            return super().generate(prompts, samples_per_prompt, sampling, key)

    batches = make_batches(1, Watched())
    batches.take(1, PhaseClock())
    assert not reached.is_set()
    batches.begin(2)
    assert reached.wait(DEADLINE_S)
    batches.close()


def test_what_ends_the_thread_is_raised_by_the_step_that_needs_it():
    class Failing(Engine):
        def generate(self, prompts, samples_per_prompt, sampling, key):
            if "/train/2/" in key:
                raise OSError("no engine any more")
            return super().generate(prompts, samples_per_prompt, sampling, key)

    batches = make_batches(1, Failing())
    batches.take(1, PhaseClock())
    batches.begin(2)
    batches.wait()
    with pytest.raises(OSError, match="no engine any more"):
        batches.take(2, PhaseClock())


def test_close_gives_up_what_is_being_generated():
    closed = threading.Event()

    class Endless(Engine):
        def generate(self, prompts, samples_per_prompt, sampling, key):
            if "/train/1/" in key:
                yield from super().generate(prompts, samples_per_prompt, sampling, key)
                return
            try:
                while not closed.wait(0.001):
                    yield {}
            finally:
                closed.set()

    batches = make_batches(1, Endless())
    batches.take(1, PhaseClock())
    batches.begin(2)
    batches.close()
    assert closed.wait(DEADLINE_S)


SERVERS = ["rollout=vllm_server", "rollout.servers=[http://localhost:8000]"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["run.ahead=1", "correction.kind=truncated"], ["run.ahead = 1", "rollout=vllm_server", "set 0"]),
        ([*SERVERS, "run.ahead=1"], ["correction.kind = none", "correction.kind=truncated"]),
        (
            [*SERVERS, "run.ahead=1", "correction.kind=masked", "sampler.surplus=carry"],
            ["sampler.surplus = carry", "discard or abort"],
        ),
        (
            [*SERVERS, "run.ahead=1", "correction.kind=truncated", "health.entropy_collapse.action=rollback"],
            ["health.entropy_collapse.action = rollback", "run.ahead=0"],
        ),
        ([*SERVERS, "run.ahead=2", "correction.kind=truncated"], ["run.ahead = 2", "at most 1"]),
        (["rollout=vllm_server", "rollout.servers=[localhost]"], ["rollout.servers has localhost", "http://HOST:PORT"]),
        (["rollout=vllm_server", "rollout.servers=[http://a/v1]"], ["rollout.servers has http://a/v1"]),
        (["rollout=vllm_server", "rollout.servers=[http://a:x]"], ["rollout.servers has http://a:x"]),
        (["rollout=vllm_server", "rollout.servers=[http://a:1,http://a:1]"], ["http://a:1 more than once"]),
        (["rollout=vllm_server", "rollout.servers=[]"], ["rollout.servers = []", "must not be empty"]),
    ],
)
def test_recipes_that_cannot_be(overrides, words):
    with pytest.raises(UserError) as error:
        load_recipe("quickstart", overrides)
    for word in words:
        assert word in str(error.value)
