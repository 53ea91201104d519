"""What the loop asks of its parts. Each implementation lives in the package of that name and is chosen in
`build.py`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dapo_cli.types import Case, Completion, Group, Prompt, ScoredGroup, TokenSequence, Verdict

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dapo_cli.algorithm.objective import UpdateStats
    from dapo_cli.config.schema import SamplingConfig
    from dapo_cli.health.event import HealthEvent


Metrics = dict[str, float | int | None]
"""Flat, slash-separated names; None where a mean has nothing to be taken over."""

Finished = dict[int, list[Completion]]
"""Completions of some prompts, by the place of the prompt among those asked for."""


class RolloutEngine(Protocol):
    ranks: int
    """Ranks that make up one engine: they are given the same prompts, and each has the completions."""

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: "SamplingConfig", key: str
    ) -> Iterator[Finished]:
        """`samples_per_prompt` completions of each prompt, as soon as all of a prompt's are there; each prompt comes
        once, in any order. Closing the iterator early gives up the rest.

        The noise of a completion is a function of (`key`, prompt uid, sample index) alone, never of the batch.
        """
        ...

    def sync_weights(self, weights: Iterable[tuple[str, "torch.Tensor"]]) -> None:
        """Take over the learner's weights, streamed as (name, tensor). Collective: every rank must call."""
        ...

    def rest(self) -> None:
        """Give back the memory that only generating needs, until the next `sync_weights`."""
        ...

    def close(self) -> None: ...


class Verifier(Protocol):
    def verify(self, cases: Sequence[Case]) -> list[Verdict]:
        """One verdict per case, in order. Never raises for what a text contains."""
        ...

    def wait_until_ready(self) -> None:
        """Returns when nothing is left to start before the first verdict."""
        ...

    def close(self) -> None: ...


class RewardShaper(Protocol):
    def penalty(self, completion: Completion) -> float:
        """What is added to Eq. 7's reward; 0 or negative."""
        ...


class Learner(Protocol):
    """Each method is collective: every rank must call it, with the same groups."""

    def score(self, groups: Sequence[Group], step: int) -> tuple[list[ScoredGroup], float | None]:
        """pi_old of each group's tokens under the current weights, the reference model's log-probs where there is one,
        and the mean entropy per token in nats (None where there is no token)."""
        ...

    def logprobs(
        self, sequences: Sequence[TokenSequence], temperature: float | None = None
    ) -> tuple[list["np.ndarray"], float | None]:
        """Of each sequence's completion tokens under the current weights, [T_i] float32, and their mean entropy; at the
        sampling temperature or another one."""
        ...

    def update(self, groups: Sequence[ScoredGroup], advantages: Sequence[Sequence[float]], lr: float) -> "UpdateStats":
        """One optimizer update on one mini-batch at the learning rate `lr`; `advantages[g][i]` is that of rollout i of
        group g."""
        ...

    def take_model_flops(self) -> dict[str, float]:
        """This rank's model FLOPs of `score` and `update` since the last call; a phase is missing where unknown."""
        ...

    def named_weights(self) -> Iterable[tuple[str, "torch.Tensor"]]:
        """Whole weights by the plain model's names, for an engine; all of them must be read."""
        ...

    def save(self, folder: Path) -> None:
        """Weights and optimizer state into `folder`."""
        ...

    def load(self, folder: Path) -> None:
        """What a learner of any kind saved, on any number of ranks."""
        ...


class Sampler(Protocol):
    rounds: int
    """Rounds of the current step so far."""

    def begin_step(self, step: int) -> None: ...

    def next_prompts(self) -> list[Prompt]:
        """The prompts of the next round; empty when the batch is full or the rounds are used up."""
        ...

    def enough(self, informative: Sequence[bool]) -> bool:
        """Whether the first groups of a round make the rest of it unneeded."""
        ...

    def keep(self, results: Sequence[Group | None]) -> list[Group]:
        """Take in a round's judged groups, in stream order, None for prompts given up; returns those that count."""
        ...

    def take(self) -> list[Group]:
        """The groups of this step that need pi_old."""
        ...

    def batch(self, scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """The step's batch, in stream order."""
        ...

    def metrics(self) -> Metrics: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Tracker(Protocol):
    def step(self, step: int, metrics: Metrics) -> None:
        """The step's figures, before its checkpoint: a function of the recipe alone."""
        ...

    def timings(self, step: int, timings: Metrics) -> None:
        """What the clock says of the step, evaluation and checkpoint included; ends it."""
        ...

    def rollouts(self, step: int, judged: Sequence[Group], kept_uids: set[str]) -> None: ...

    def evaluation(self, step: int, metrics: Metrics) -> None: ...

    def health(self, event: "HealthEvent") -> None:
        """An alarm that begins or ends with the step, or a rollback; before the step's checkpoint."""
        ...

    def close(self) -> None: ...
