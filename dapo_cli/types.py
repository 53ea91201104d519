"""What flows through a step: Prompt -> Completion -> Rollout -> Group -> ScoredGroup. One complete type a stage.

A group of two, built by hand:

>>> prompt = Prompt(uid="p1", text="1+1=?\\n", token_ids=(4, 13, 4), answer="2", source="arithmetic")
>>> right = Completion("p1", 0, (19, 5, 1), (-0.1, -0.2, -0.1), Finish.STOP, "Answer: 2")
>>> wrong = Completion("p1", 1, (19, 6, 1), (-0.1, -2.0, -0.1), Finish.STOP, "Answer: 3")
>>> group = Group(prompt, (
...     Rollout(right, Verdict(Outcome.RIGHT, "2", "answer_line"), correctness=1.0, length_penalty=0.0),
...     Rollout(wrong, Verdict(Outcome.WRONG, "3", "answer_line"), correctness=-1.0, length_penalty=-0.5)))
>>> group.num_correct, group.informative, group.rewards
(1, True, (1.0, -1.5))
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np


class Finish(Enum):
    """Why a completion ended: end of sequence, or max_tokens reached (truncated)."""

    STOP = "stop"
    LENGTH = "length"


class Outcome(Enum):
    """The verifier's answer. FAILED is the verifier's own fault or time limit, never the model's."""

    RIGHT = "right"
    WRONG = "wrong"
    FAILED = "failed"


@dataclass(frozen=True)
class Prompt:
    """One question. `uid` is a hash of the question and answer, the same in every run; `text` is what the model reads,
    template included, and `token_ids` its tokens; `source` names the data set."""

    uid: str
    text: str
    token_ids: tuple[int, ...]
    answer: str
    source: str


@dataclass(frozen=True)
class Completion:
    """One sampled answer. `token_ids` [T] include the end of sequence where reached; `logprobs` [T] float32 are the
    engine's, of each token under the sampling temperature."""

    prompt_uid: str
    sample_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    text: str

    @property
    def truncated(self) -> bool:
        return self.finish is Finish.LENGTH


class TokenSequence(NamedTuple):
    """One prompt with its completion, as the learner reads it. Equal prompts of a micro-batch are read once."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


class Case(NamedTuple):
    """What a verifier judges: the text that the model read, the text that it wrote, and the reference answer."""

    prompt: str
    completion: str
    answer: str


@dataclass(frozen=True)
class Verdict:
    """`extracted` is the answer read from the completion (None where none was stated), `rule` how it was found, or how
    verification failed."""

    outcome: Outcome
    extracted: str | None
    rule: str

    @property
    def tells_answer(self) -> bool:
        """Whether `extracted` says what was stated: neither a failed verdict does, nor a function's bare bool."""
        return self.outcome is not Outcome.FAILED and self.rule != BARE_BOOL


BARE_BOOL = "function"  # rule of a verdict that a user's function gave as a bool


@dataclass(frozen=True)
class Rollout:
    """A judged completion. `correctness` is Eq. 7 (+1 or -1), `length_penalty` Eq. 13 (-1 to 0)."""

    completion: Completion
    verdict: Verdict
    correctness: float
    length_penalty: float

    @property
    def reward(self) -> float:
        return self.correctness + self.length_penalty


class RewardHistory(NamedTuple):
    """The rewards of a prompt over its visits: their number, mean, and sum of squared differences from the mean, which
    unlike the sum of squares loses no digits where rewards are nearly equal.

    >>> RewardHistory().after([1.0, -1.0]).after([1.0, 1.0])
    RewardHistory(visits=2, size=4, mean=0.5, squares=3.0)
    """

    visits: int = 0
    size: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def after(self, rewards: Sequence[float]) -> "RewardHistory":
        """With one more visit, by the parallel update of Chan, Golub and LeVeque (1979)."""
        new_mean = math.fsum(rewards) / len(rewards)
        new_squares = math.fsum((reward - new_mean) ** 2 for reward in rewards)
        size, apart = self.size + len(rewards), new_mean - self.mean
        return RewardHistory(
            visits=self.visits + 1,
            size=size,
            mean=self.mean + apart * len(rewards) / size,
            squares=self.squares + new_squares + apart**2 * self.size * len(rewards) / size,
        )


FIRST_VISIT = RewardHistory()


@dataclass(frozen=True)
class Group:
    """The G rollouts of one prompt, in order of sample index. `history` are the rewards of the prompt's visits before
    this one, which the sampler's ledger gives."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    history: RewardHistory = FIRST_VISIT

    @property
    def num_correct(self) -> int:
        return sum(rollout.verdict.outcome is Outcome.RIGHT for rollout in self.rollouts)

    @property
    def informative(self) -> bool:
        """Eq. 11 on correctness counts alone, so that no length penalty or rounding lets a uniform group through."""
        return 0 < self.num_correct < len(self.rollouts)

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(rollout.reward for rollout in self.rollouts)


@dataclass(frozen=True)
class ScoredGroup:
    """A kept group with pi_old: `old_logprobs[i]` is a [T_i] float32 array, by the learner's weights of `born_step`.
    `ref_logprobs` are the reference model's, in the same form, where the recipe has one."""

    group: Group
    old_logprobs: tuple[np.ndarray, ...]
    born_step: int
    ref_logprobs: tuple[np.ndarray, ...] | None = None


def scored_group_to_dict(scored: ScoredGroup) -> dict[str, Any]:
    """JSON-able; float32 values survive the round trip exactly, since JSON writes the shortest exact float64."""
    return {
        "prompt": asdict(scored.group.prompt),
        "rollouts": [
            asdict(rollout)
            | {
                "completion": asdict(rollout.completion) | {"finish": rollout.completion.finish.value},
                "verdict": asdict(rollout.verdict) | {"outcome": rollout.verdict.outcome.value},
            }
            for rollout in scored.group.rollouts
        ],
        "history": list(scored.group.history),
        "old_logprobs": [values.tolist() for values in scored.old_logprobs],
        "born_step": scored.born_step,
        "ref_logprobs": None if scored.ref_logprobs is None else [values.tolist() for values in scored.ref_logprobs],
    }


def scored_group_from_dict(state: dict[str, Any]) -> ScoredGroup:
    """The inverse of `scored_group_to_dict`."""
    prompt = Prompt(**state["prompt"] | {"token_ids": tuple(state["prompt"]["token_ids"])})
    rollouts = tuple(
        Rollout(
            completion=Completion(
                **rollout["completion"]
                | {
                    "token_ids": tuple(rollout["completion"]["token_ids"]),
                    "logprobs": tuple(rollout["completion"]["logprobs"]),
                    "finish": Finish(rollout["completion"]["finish"]),
                }
            ),
            verdict=Verdict(**rollout["verdict"] | {"outcome": Outcome(rollout["verdict"]["outcome"])}),
            correctness=rollout["correctness"],
            length_penalty=rollout["length_penalty"],
        )
        for rollout in state["rollouts"]
    )
    ref = state["ref_logprobs"]
    return ScoredGroup(
        Group(prompt, rollouts, RewardHistory(*state["history"])),
        _arrays(state["old_logprobs"]),
        state["born_step"],
        None if ref is None else _arrays(ref),
    )


def _arrays(lists: list[list[float]]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(values, dtype=np.float32) for values in lists)
