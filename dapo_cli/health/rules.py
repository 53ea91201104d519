"""The failure modes of a run by their signs: each rule is a function of the last steps' figures and its thresholds.

A window holds lines of metrics.jsonl in the order of their steps, the latest one last. None means no alarm. What was
not measured is no sign. Figures have the names of the metrics that they are of. docs/health.md says where the
thresholds come from.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from dapo_cli.config.schema import (
    EntropyCollapse,
    EntropyExplosion,
    GradNormSpike,
    LengthRunaway,
    MismatchDrift,
    ResamplingSpiral,
    VerifierFailures,
    ZeroRewardColdStart,
)
from dapo_cli.health.event import Signs
from dapo_cli.health.failures import failures_by_cause, named
from dapo_cli.health.window import Course, Record, average, number, numbers, trailing
from dapo_cli.wording import counted

FALLEN = 0.2  # of accuracy, from the best in the window: more than draws of prompts make of it

ACCURACY, ENTROPY = "judged/accuracy", "policy/entropy"
INFORMATIVE, NGRAMS = "sampler/informative_rate", "repetition/ngram_share"
PENALTY, IN_BUFFER, TRUNCATED = "judged/length_penalty", "length/in_buffer", "judged/truncated"
LENGTH = "length/mean"
MEAN_ABS, KL, GRAD_NORM = "mismatch/mean_abs", "mismatch/kl", "policy/grad_norm"
NEVER_SOLVED, JUDGED = "ledger/never_solved", "sampler/rollouts_total"
FAILED, FAILED_SHARE = "verifier/failed", "verifier/failed_share"


def entropy_collapse(window: Sequence[Record], rule: EntropyCollapse) -> Signs | None:
    """The policy grows sure of what it is not right about: its groups turn all right or all wrong."""
    course = Course.of(window, ENTROPY, INFORMATIVE, ACCURACY)
    if course is None:
        return None
    (before, now), (informative_before, informative) = course.change(ENTROPY), course.change(INFORMATIVE)
    _, accuracy = course.change(ACCURACY)
    rise = informative_before - informative
    if now > rule.entropy_left * before or rise < rule.zero_variance_rise or accuracy > rule.max_accuracy:
        return None
    return Signs(
        since=course.turned_after(ENTROPY, max),
        message=(
            f"policy/entropy fell from {before:.3g} to {now:.3g} nats, and the share of groups that are all right or "
            f"all wrong rose from {1 - informative_before:.0%} to {1 - informative:.0%} at an accuracy of "
            f"{accuracy:.0%}: the policy grows sure of what it has not learned. Lower optimizer.lr, or raise "
            "algorithm.clip_high."
        ),
        figures={
            f"{ENTROPY}_before": before,
            ENTROPY: now,
            f"{INFORMATIVE}_before": informative_before,
            INFORMATIVE: informative,
            ACCURACY: accuracy,
        },
    )


def entropy_explosion(window: Sequence[Record], rule: EntropyExplosion) -> Signs | None:
    """The policy falls apart into text that repeats itself."""
    course = Course.of(window, ENTROPY, NGRAMS)
    if course is None:
        return None
    (before, now), (ngrams_before, ngrams) = course.change(ENTROPY), course.change(NGRAMS)
    if now < rule.entropy_growth * before or ngrams - ngrams_before < rule.ngram_rise:
        return None
    return Signs(
        since=course.turned_after(ENTROPY, min),
        message=(
            f"policy/entropy rose from {before:.3g} to {now:.3g} nats, and the share of repeated 4-grams from "
            f"{ngrams_before:.1%} to {ngrams:.1%}: completions fall apart. Lower optimizer.lr or algorithm.clip_high, "
            "and read the step's completions in rollouts/."
        ),
        figures={f"{ENTROPY}_before": before, ENTROPY: now, f"{NGRAMS}_before": ngrams_before, NGRAMS: ngrams},
    )


def resampling_spiral(window: Sequence[Record], rule: ResamplingSpiral) -> Signs | None:
    """Nearly all that is generated is thrown away, or trained on without a gradient."""
    stretch = trailing(window, lambda record: _at_most(number(record, INFORMATIVE), rule.informative_rate))
    if len(stretch) < rule.steps:
        return None
    rate, accuracy = average(stretch, INFORMATIVE), average(stretch, ACCURACY)
    prompts = f"{1 / rate:.1f} prompts are generated for each one" if rate else "no prompt generated is one"
    best = max(numbers(window, ACCURACY), default=0.0)
    if best - (accuracy or 0.0) > FALLEN:
        advice = f"The accuracy was {best:.0%}: the policy broke. Lower optimizer.lr, from a checkpoint of then on."
    elif (accuracy or 0.0) > 0.5:
        advice = "The data is nearly solved: give harder prompts, set sampler.skip_solved_above, or end the run."
    else:
        advice = (
            "The data is too hard: give easier prompts, raise algorithm.samples_per_prompt, or set "
            "sampler.skip_hopeless_below."
        )
    return Signs(
        since=stretch[0]["step"],
        message=(
            f"{rate:.0%} of the groups were informative over {counted(len(stretch), 'step')}, at an accuracy "
            f"of {_percent(accuracy)}: {prompts} that can be learned from. {advice}"
        ),
        figures={INFORMATIVE: rate, ACCURACY: accuracy, "steps": len(stretch)},
    )


def length_runaway(window: Sequence[Record], rule: LengthRunaway) -> Signs | None:
    """Completions grow into the last tokens before max_tokens, or are there from the start."""
    stretch = trailing(window, lambda record: (number(record, PENALTY) or 0.0) < -rule.mean_penalty)
    last = window[-1]
    if len(stretch) >= rule.steps:
        penalty = average(stretch, PENALTY) or 0.0
        return Signs(
            since=stretch[0]["step"],
            message=(
                f"the length penalty took {-penalty:.2f} off the mean reward over {counted(len(stretch), 'step')}, "
                f"with {_percent(number(last, TRUNCATED))} of the completions cut: it teaches more than the answers "
                "do. Raise sampling.max_tokens, or look for text that repeats itself in rollouts/."
            ),
            figures={PENALTY: penalty, TRUNCATED: number(last, TRUNCATED), "steps": len(stretch)},
        )
    key, place = (TRUNCATED, "cut") if number(last, IN_BUFFER) is None else (IN_BUFFER, "in Eq. 13's buffer")
    course = Course.of(window, key)
    if course is None:
        return None
    before, now = course.change(key)
    if now - before < rule.in_buffer_rise:
        return None
    return Signs(
        since=course.turned_after(key, min),
        message=(
            f"the share of completions {place} rose from {before:.0%} to {now:.0%} (mean length "
            f"{average(course.earlier, LENGTH) or 0:,.0f} to {average(course.recent, LENGTH) or 0:,.0f} tokens): "
            "they run into sampling.max_tokens. Raise it, or look for text that repeats itself in rollouts/."
        ),
        figures={f"{key}_before": before, key: now},
    )


def verifier_failures(window: Sequence[Record], rule: VerifierFailures) -> Signs | None:
    """Rewards that say nothing of the answers, since no verdict was reached."""
    stretch = trailing(window, lambda record: (number(record, FAILED_SHARE) or 0.0) > rule.failed_share)
    if not stretch:
        return None
    last = stretch[-1]
    failed, verdicts = last[FAILED], last[FAILED] + last["verifier/right"] + last["verifier/wrong"]
    causes = failures_by_cause(last)
    return Signs(
        since=stretch[0]["step"],
        message=(
            f"{failed} of {verdicts} verdicts failed ({named(causes)}), each of them a reward that says nothing. Look "
            "at `outcome: failed` in rollouts/; raise reward.timeout_s or reward.memory_limit_mib where that is the "
            "cause, or mend the reward function."
        ),
        figures={FAILED_SHARE: last[FAILED_SHARE], FAILED: failed, "verdicts": verdicts}
        | {f"{FAILED}_{cause}": count for cause, count in causes.items()},
    )


def mismatch_drift(window: Sequence[Record], rule: MismatchDrift) -> Signs | None:
    """The engine does not generate by the weights that learn, or rounds too differently."""

    def apart(record: Record) -> bool:
        return (number(record, MEAN_ABS) or 0.0) > rule.mean_abs or (number(record, KL) or 0.0) > rule.kl

    stretch = trailing(window, apart)
    if len(stretch) < rule.steps:
        return None
    mean_abs, kl = number(stretch[-1], MEAN_ABS), number(stretch[-1], KL)
    return Signs(
        since=stretch[0]["step"],
        message=(
            f"the engine's log-probs are {mean_abs:.3g} nats from the learner's on average (KL {kl:.3g}), and were too "
            f"far for {counted(len(stretch), 'step')}: it generates by other weights or other arithmetic. Look at "
            "rollout.dtype, set correction.kind=truncated, or start again from a checkpoint."
        ),
        figures={MEAN_ABS: mean_abs, KL: kl, "steps": len(stretch)},
    )


def grad_norm_spike(window: Sequence[Record], rule: GradNormSpike) -> Signs | None:
    """One gradient far beyond the others. One that is not finite never gets here: the learner stops at it."""
    norm = number(window[-1], GRAD_NORM)
    before = [each for each in numbers(window[:-1], GRAD_NORM) if each > 0]  # 0: a step with nothing to learn from
    if norm is None or len(before) < rule.steps or norm <= rule.factor * (usual := median(before)):
        return None
    return Signs(
        since=window[-1]["step"],
        message=(
            f"policy/grad_norm is {norm:.3g}, {norm / usual:.1f} times the median {usual:.3g} of the "
            f"{counted(len(before), 'step')} before. One spike may pass, since optimizer.max_grad_norm bounds it; "
            "where they come again, lower optimizer.lr or raise optimizer.warmup_steps."
        ),
        figures={GRAD_NORM: norm, f"{GRAD_NORM}_median": usual, "steps": len(before)},
    )


def zero_reward_cold_start(window: Sequence[Record], rule: ZeroRewardColdStart) -> Signs | None:
    """Nothing to learn from: no group has a right answer, so none has an advantage."""
    last = window[-1]
    if last["step"] < rule.steps or number(last, NEVER_SOLVED) != 1.0:
        return None
    judged = last[JUDGED]
    return Signs(
        since=1,
        message=(
            f"none of {judged:,} completions was right since the run began, so there is nothing to learn from. Look "
            "at them in rollouts/: is the prompt's form the one that the verifier reads, are the gold answers right, "
            "can the model do the task at all?"
        ),
        figures={NEVER_SOLVED: 1.0, JUDGED: judged},
    )


RULES: dict[str, Callable[[Sequence[Record], Any], Signs | None]] = {
    rule.__name__: rule
    for rule in (
        entropy_collapse,
        entropy_explosion,
        resampling_spiral,
        length_runaway,
        verifier_failures,
        mismatch_drift,
        grad_norm_spike,
        zero_reward_cold_start,
    )
}
"""By their names in the recipe's section `health`."""


def _at_most(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.0%}"
