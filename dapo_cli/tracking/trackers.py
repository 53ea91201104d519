"""Several trackers as one."""

from collections.abc import Sequence

from dapo_cli.health.event import HealthEvent
from dapo_cli.protocols import Metrics, Tracker
from dapo_cli.types import Group


class Trackers:
    """Hands every call to each of its trackers, in order. Of none, it is the null tracker."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def step(self, step: int, metrics: Metrics) -> None:
        for tracker in self.trackers:
            tracker.step(step, metrics)

    def timings(self, step: int, timings: Metrics) -> None:
        for tracker in self.trackers:
            tracker.timings(step, timings)

    def evaluation(self, step: int, metrics: Metrics) -> None:
        for tracker in self.trackers:
            tracker.evaluation(step, metrics)

    def rollouts(self, step: int, judged: Sequence[Group], kept_uids: set[str]) -> None:
        for tracker in self.trackers:
            tracker.rollouts(step, judged, kept_uids)

    def health(self, event: HealthEvent) -> None:
        for tracker in self.trackers:
            tracker.health(event)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()
