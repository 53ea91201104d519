"""Completions -> judged groups: verdict, Eq. 7 and Eq. 13 in one place."""

from collections.abc import Sequence

from dapo_cli.protocols import RewardShaper, Verifier
from dapo_cli.types import Case, Completion, Group, Outcome, Prompt, Rollout


def judge(
    prompts: Sequence[Prompt],
    completions: Sequence[Sequence[Completion]],
    verifier: Verifier,
    shaper: RewardShaper,
    failed_reward: float,
) -> list[Group]:
    """One group per prompt, in order. Right is +1 and wrong -1, Eq. 7; a failed verification counts `failed_reward`."""
    cases = cases_of(prompts, completions)
    correctness = {Outcome.RIGHT: 1.0, Outcome.WRONG: -1.0, Outcome.FAILED: failed_reward}
    verdicts = iter(verifier.verify(cases))
    groups = []
    for prompt, samples in zip(prompts, completions, strict=True):
        rollouts = []
        for completion in samples:
            verdict = next(verdicts)
            rollouts.append(Rollout(completion, verdict, correctness[verdict.outcome], shaper.penalty(completion)))
        groups.append(Group(prompt, tuple(rollouts)))
    return groups


def cases_of(prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]]) -> list[Case]:
    """One case per completion, in order."""
    return [
        Case(prompt.text, completion.text, prompt.answer)
        for prompt, samples in zip(prompts, completions, strict=True)
        for completion in samples
    ]
