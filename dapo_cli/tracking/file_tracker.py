"""The tracker behind the run folder's files: metrics, timings, evaluations, alarms, a sample of judged completions."""

from collections.abc import Sequence
from typing import Any

from dapo_cli.health.event import HealthEvent
from dapo_cli.protocols import Metrics
from dapo_cli.tracking.files import append_line
from dapo_cli.tracking.metrics import in_order, is_right, mean
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.types import Group, Rollout

Judged = tuple[Group, Rollout]


class FileTracker:
    """Every line is durable when its call returns."""

    def __init__(self, folder: RunFolder, rollouts_per_step: int) -> None:
        self.folder = folder
        self.rollouts_per_step = rollouts_per_step

    def step(self, step: int, metrics: Metrics) -> None:
        append_line(self.folder.metrics_file, {"step": step, **in_order(metrics)})

    def timings(self, step: int, timings: Metrics) -> None:
        append_line(self.folder.timings_file, {"step": step, **in_order(timings)})

    def evaluation(self, step: int, metrics: Metrics) -> None:
        append_line(self.folder.evals_file, {"step": step, **in_order(metrics)})

    def rollouts(self, step: int, judged: Sequence[Group], kept_uids: set[str]) -> None:
        if self.rollouts_per_step == 0:
            return
        chosen = choose_rollouts(judged, self.rollouts_per_step)
        records = [
            rollout_record(step, group, rollout, kept=group.prompt.uid in kept_uids) for group, rollout in chosen
        ]
        self.folder.write_rollouts(step, records)

    def health(self, event: HealthEvent) -> None:
        append_line(self.folder.health_file, event.record)

    def close(self) -> None:
        """Nothing is held open between lines."""


def choose_rollouts(groups: Sequence[Group], count: int) -> list[Judged]:
    """A sample to read by hand: half right answers (more where others are few), each half spread over the groups.

    A reward that was not earned shows only among the right ones, and these are rare early in a run: so they come first
    and in a fixed number. The choice is a function of the groups alone, so that a resumed run makes the same.
    """
    right = by_depth([[(group, rollout) for rollout in group.rollouts if is_right(rollout)] for group in groups])
    others = by_depth([[(group, rollout) for rollout in group.rollouts if not is_right(rollout)] for group in groups])
    num_right = max((count + 1) // 2, count - sum(map(len, others)))
    chosen_right = spread(right, num_right)
    return chosen_right + spread(others, count - len(chosen_right))


def by_depth(rows: list[list[Judged]]) -> list[list[Judged]]:
    """The first of every row, then the second of every row that has one, and so on.

    >>> by_depth([["a1", "a2"], [], ["c1"]])
    [['a1', 'c1'], ['a2']]
    """
    depth = max(map(len, rows), default=0)
    return [[row[level] for row in rows if level < len(row)] for level in range(depth)]


def spread(layers: list[list[Judged]], count: int) -> list[Judged]:
    """At most `count`: whole layers while they fit, then evenly spaced ones of the next layer.

    >>> spread([["a1", "b1", "c1", "d1"], ["a2"]], 2), spread([["a1", "b1"], ["a2", "b2"]], 3)
    (['b1', 'd1'], ['a1', 'b1', 'b2'])
    """
    chosen: list[Judged] = []
    for layer in layers:
        wanted = min(count - len(chosen), len(layer))
        chosen += [layer[(2 * place + 1) * len(layer) // (2 * wanted)] for place in range(wanted)]
    return chosen


def rollout_record(step: int, group: Group, rollout: Rollout, *, kept: bool) -> dict[str, Any]:
    """One line of rollouts/step_000001.jsonl: all that went into the reward, and whether the step trains on it."""
    completion, verdict = rollout.completion, rollout.verdict
    return {
        "step": step,
        "uid": group.prompt.uid,
        "sample": completion.sample_index,
        "prompt": group.prompt.text,
        "completion": completion.text,
        "answer": group.prompt.answer,
        "outcome": verdict.outcome.value,
        "extracted": verdict.extracted,
        "rule": verdict.rule,
        "correctness": rollout.correctness,
        "length_penalty": rollout.length_penalty,
        "reward": rollout.reward,
        "finish": completion.finish.value,
        "tokens": len(completion.token_ids),
        "mean_logprob": mean(completion.logprobs),
        "kept": kept,
    }
