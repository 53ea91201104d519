"""Proof that the engine computes with the learner's weights: a few fixed prompts, completed after every sync, must have
the log-probs that the learner gives them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dapo_cli.config.schema import Precision, SamplingConfig
from dapo_cli.distributed.world import World
from dapo_cli.errors import OutOfSync
from dapo_cli.protocols import Learner, Metrics, RolloutEngine
from dapo_cli.rollout.completions import complete
from dapo_cli.types import Prompt, TokenSequence

PROMPT_TOKENS = 64  # several blocks of a prefix cache, or a cache that was not reset would not be seen
COMPLETION_TOKENS = 16
EXACT_TOLERANCE = 1e-4  # nats; float32 kernels differ by 1e-6
ROUNDED_TOLERANCE = 0.05  # nats; in bfloat16 they differ by 0.005, and more for larger models
ROUNDING = 1e-6  # a learner whose log-probs moved by more has other weights


@dataclass(frozen=True)
class Reading:
    """Log-probs of all ranks' canary tokens, [N] float32 each, and the sequences that they belong to."""

    sequences: list[TokenSequence]
    engine_N: np.ndarray
    learner_N: np.ndarray

    @property
    def difference_N(self) -> np.ndarray:
        return self.engine_N - self.learner_N

    @property
    def mean_abs(self) -> float:
        return float(np.abs(self.difference_N).mean(dtype=np.float64))


class Canary:
    """Compares engine and learner on `prompts`. `max_tokens` is the engine's longest sequence, `precisions` are the
    types that the two compute in; `tolerance` is in nats, of the mean difference."""

    def __init__(
        self,
        engine: RolloutEngine,
        learner: Learner,
        world: World,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        max_tokens: int,
        tolerance: float | None,
        precisions: set[Precision],
    ) -> None:
        self.engine, self.learner, self.world = engine, learner, world
        self.sampling = replace(sampling, max_tokens=min(COMPLETION_TOKENS, sampling.max_tokens))
        room = min(PROMPT_TOKENS, max_tokens - self.sampling.max_tokens)
        self.prompts = [_lengthened(prompt, place, room) for place, prompt in enumerate(prompts)]
        self.precisions = precisions
        self.tolerance = tolerance or (EXACT_TOLERANCE if precisions == {Precision.float32} else ROUNDED_TOLERANCE)
        self._last: Reading | None = None

    def check(self) -> Metrics:
        """Mean and largest difference of log-probs, in nats. Raises OutOfSync on every rank where they are too far
        apart, or where the engine stays as it was while the learner does not. Collective: every rank must call."""
        last, now = self._last, self._read()
        self._last = now
        stuck = len(self.precisions) == 1 and last is not None and _stuck(last, now)
        if stuck or not now.mean_abs <= self.tolerance:
            raise OutOfSync(
                f"the engine's log-probs differ from the learner's by {now.mean_abs:.2g} nats in the mean on the "
                f"canary's prompts (rollout.canary_tolerance: {self.tolerance:g}). {self._cause(last, now)}"
            )
        return {"canary/mean_abs": now.mean_abs, "canary/max_abs": float(np.abs(now.difference_N).max())}

    def _read(self) -> Reading:
        def own() -> list[tuple[TokenSequence, tuple[float, ...]]]:
            groups = complete(self.engine, self.prompts, 1, self.sampling, key="canary")
            return [
                (TokenSequence(prompt.token_ids, completion.token_ids), completion.logprobs)
                for prompt, (completion,) in zip(self.prompts, groups, strict=True)
            ]

        readings = [reading for rank in self.world.everywhere(own) for reading in rank]
        sequences = [sequence for sequence, _ in readings]
        engine_N = np.concatenate([np.asarray(logprobs, dtype=np.float32) for _, logprobs in readings])
        return Reading(sequences, engine_N, self._learner_logprobs(sequences))

    def _learner_logprobs(self, sequences: list[TokenSequence], temperature: float | None = None) -> np.ndarray:
        logprobs, _ = self.learner.logprobs(sequences, temperature)
        return np.concatenate(logprobs)

    def _cause(self, last: Reading | None, now: Reading) -> str:
        return likely_cause(
            last,
            now,
            self.tolerance,
            self.sampling.temperature,
            lambda temperature: self._learner_logprobs(now.sequences, temperature),
            exact=self.precisions == {Precision.float32},
        )


def likely_cause(
    last: Reading | None,
    now: Reading,
    tolerance: float,
    temperature: float,
    learner_at: Callable[[float], np.ndarray],
    *,
    exact: bool,
) -> str:
    """Which of the known causes fits; `learner_at` gives the learner's log-probs at another temperature, `exact` says
    that rounding cannot be it."""
    if last is not None and _stuck(last, now):
        return "They are those from before the last update: its weights did not reach the engine."
    fits = {
        other: float(np.abs(now.engine_N - learner_at(other)).mean(dtype=np.float64))
        for other in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
        if other != temperature
    }
    best = min(fits, key=lambda other: fits[other])
    if fits[best] <= max(tolerance, 0.1 * now.mean_abs):
        return (
            f"They are those of temperature {best:g}, and sampling.temperature is {temperature:g}: it is applied on "
            "one side only."
        )
    if now.difference_N.min() >= -tolerance:
        return "None is below the learner's: top_p or top_k cuts the engine's distribution and not the learner's."
    if last is not None and exact:
        return "They agreed before the last update: some weights did not reach the engine, or its prefix cache is old."
    if exact:
        return "They did so before any update: the engine computes another model than the learner."
    return (
        "Either some weights did not reach the engine, or rounding does it, since not both compute in float32: "
        "see rollout.dtype and learner.compute_dtype; rollout.canary_tolerance may be raised to what the run can bear."
    )


def _stuck(last: Reading, now: Reading) -> bool:
    """Whether the engine says bit by bit what it said before, and the learner does not."""
    if last.sequences != now.sequences or not np.array_equal(last.engine_N, now.engine_N):
        return False
    return float(np.abs(last.learner_N - now.learner_N).mean(dtype=np.float64)) > ROUNDING


def _lengthened(prompt: Prompt, place: int, tokens: int) -> Prompt:
    """The prompt, repeated up to so many tokens: only a long one would show a prefix cache that was not reset. Each
    canary prompt has a uid, so a noise, of its own."""
    repeats = -(-tokens // len(prompt.token_ids))
    token_ids = (prompt.token_ids * repeats)[: max(tokens, len(prompt.token_ids))]
    return replace(prompt, uid=f"canary/{place}", token_ids=token_ids)
