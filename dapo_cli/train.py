"""Algorithm 1 of the paper: the loop that every run is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dapo_cli.algorithm.advantage import batch_advantages
from dapo_cli.algorithm.correction import mismatch_metrics
from dapo_cli.algorithm.objective import UpdateStats
from dapo_cli.budget import ROLLOUTS_TOTAL, Budget
from dapo_cli.canary import Canary
from dapo_cli.checkpoint import Checkpoints
from dapo_cli.config.schema import HealthAction, Recipe
from dapo_cli.distributed.world import World
from dapo_cli.errors import RunStopped
from dapo_cli.evaluation.evaluate import evaluate
from dapo_cli.health.event import RolledBack
from dapo_cli.health.monitor import Health, Response
from dapo_cli.health.pause import wait_until_removed
from dapo_cli.interrupt import StopRequest
from dapo_cli.learner.optim import learning_rate
from dapo_cli.protocols import Learner, Metrics, RolloutEngine, Sampler, Tracker, Verifier
from dapo_cli.reward.overlong import buffer_start
from dapo_cli.rounds import Batches
from dapo_cli.tracking.clock import PhaseClock
from dapo_cli.tracking.metrics import rollouts_of, step_metrics
from dapo_cli.tracking.profiler import StepProfiler
from dapo_cli.tracking.timings import RankTimings, peak_flops, peak_memory_bytes, step_timings
from dapo_cli.types import Group, Prompt, ScoredGroup


@dataclass
class Parts:
    """A recipe's parts, as `build.py` wires them."""

    recipe: Recipe
    world: World
    engine: RolloutEngine
    canary: Canary | None
    learner: Learner
    verifier: Verifier
    batches: Batches
    sampler: Sampler
    checkpoints: Checkpoints
    profiler: StepProfiler
    eval_prompts: Sequence[Prompt]
    paused_file: Path
    exact_evaluation: Callable[[], Metrics] | None = None
    """Takes the place of sampled evaluation where a policy is small enough to be summed over."""

    def close(self) -> None:
        self.batches.close()
        self.verifier.close()
        self.engine.close()


@dataclass(frozen=True)
class _Trained:
    """A step that has trained: its judged groups, those of them that were scored in it, and its batch; whether the run
    ends with it."""

    number: int
    judged: Sequence[Group]
    fresh: Sequence[Group]
    batch: Sequence[ScoredGroup]
    last: bool

    @property
    def kept(self) -> list[Group]:
        return [scored.group for scored in self.batch]


def train(parts: Parts, tracker: Tracker, start_step: int, budget: Budget, health: Health, stop: StopRequest) -> int:
    """Steps `start_step` + 1 to `run.steps`, each: rounds until the batch is full, pi_old, updates, weight sync.
    Returns the last step, an earlier one where the budget is spent.

    Raises RunStopped after saving where a signal or an alarm asks for it, RolledBack where an alarm asks for that,
    OutOfSync where the engine does not follow the learner. Collective: every rank must call.
    """
    recipe, engine, learner, sampler, batches = parts.recipe, parts.engine, parts.learner, parts.sampler, parts.batches
    algorithm, clock = recipe.algorithm, PhaseClock()
    _sync(parts)
    if start_step == 0:
        _evaluate(parts, tracker, 0)
    for step in range(start_step + 1, recipe.run.steps + 1):
        if budget.spent:
            return step - 1
        clock.reset()
        learner.take_model_flops()  # of a step that was rolled back from
        with parts.profiler(step):
            judged = batches.take(step, clock)
            engine.rest()
            fresh, sampled, staleness = sampler.take(), sampler.metrics(), batches.staleness
            batches.begin(step + 1)
            with clock("score"):
                scored, entropy = learner.score(fresh, step)
            batch = sampler.batch(scored)
            advantages = batch_advantages([each.group for each in batch], algorithm.advantage)
            lr, stats = health.lr_factor * learning_rate(recipe.optimizer, step), UpdateStats()
            with clock("update"):
                for start in algorithm.passes * list(range(0, len(batch), algorithm.groups_per_update)):
                    part = slice(start, start + algorithm.groups_per_update)
                    stats = stats.merge(learner.update(batch[part], advantages[part], lr))
            if recipe.run.ahead:
                with clock("wait"):
                    batches.wait()
            with clock("sync"):
                in_sync = _sync(parts) | ({"mismatch/staleness": staleness} if recipe.run.ahead else {})

            # The slowest rank's clock, so that all ranks agree.
            budget.spend(len(rollouts_of(judged)), max(parts.world.gather(clock.total)))
            sampled[ROLLOUTS_TOTAL] = budget.rollouts
            policy = {"policy/entropy": entropy, "policy/lr": lr} | stats.metrics()
            last = step == recipe.run.steps or budget.spent is not None
            trained = _Trained(step, judged, fresh, batch, last)
            metrics = _figures(recipe, trained, sampled | policy, in_sync)
            tracker.rollouts(step, judged, {group.prompt.uid for group in trained.kept})
            tracker.step(step, metrics)
            response = _watch(parts, tracker, health, step, metrics)
            signal = _finish(parts, tracker, trained, response, clock, stop)
        if not last:
            _end_early(parts, response, step, signal, stop)
    return recipe.run.steps


def _sync(parts: Parts) -> Metrics:
    """The learner's weights to the engine, and proof that they arrived."""
    parts.engine.sync_weights(parts.learner.named_weights())
    return parts.canary.check() if parts.canary else {}


def _figures(recipe: Recipe, step: _Trained, policy: Metrics, in_sync: Metrics) -> Metrics:
    """A line of metrics.jsonl."""
    groups = step_metrics(step.judged, step.kept, buffer_start(recipe.overlong, recipe.sampling.max_tokens))
    return groups | policy | mismatch_metrics(step.batch, recipe.correction) | in_sync


def _watch(parts: Parts, tracker: Tracker, health: Health, step: int, metrics: Metrics) -> Response:
    """What the step's figures say of the run's health, and what is to be done about it, as the main rank judges.

    Raises RolledBack where that is a rollback, which undoes the step, and with it all else that is said of it.
    Collective: every rank must call.
    """

    def judge() -> Response:
        events = health.feed(step, metrics)
        response = health.respond(events, parts.checkpoints.steps() if events else [])
        for event in [response.rolled_back] if response.rolled_back else events:
            tracker.health(event)
        return response

    response = parts.world.on_main(judge)
    if response.rolled_back:
        raise RolledBack(response.rolled_back)
    return response


def _finish(
    parts: Parts, tracker: Tracker, step: _Trained, response: Response, clock: PhaseClock, stop: StopRequest
) -> str | None:
    """Evaluate, save and tell of the time where it is due. Returns the name of a signal that asked any rank to stop.
    Collective: every rank must call."""
    recipe, world, number = parts.recipe, parts.world, step.number
    with clock("evaluate"):
        if step.last or (recipe.eval.every and number % recipe.eval.every == 0):
            _evaluate(parts, tracker, number)
    # Read once: a signal that comes after the save waits for the next step.
    signal = next(filter(None, world.gather(stop.requested)), None)
    with clock("checkpoint"):
        if step.last or signal or response.saves or number % recipe.checkpoint.every == 0:
            parts.checkpoints.save(number, parts.learner, parts.batches.sampler_state(), for_good=response.for_good)
    own = RankTimings({**clock.seconds, "step": clock.total}, peak_memory_bytes(), parts.learner.take_model_flops())
    peak = peak_flops(world.device, recipe.learner.compute_dtype)
    tracker.timings(number, step_timings(world.gather(own), step.judged, step.fresh, step.kept, peak))
    return signal


def _end_early(parts: Parts, response: Response, step: int, signal: str | None, stop: StopRequest) -> None:
    """After a step that is saved: raises RunStopped where a signal or an alarm asks for it, and waits where an alarm
    pauses the run. Collective: every rank must call."""
    if response.action is HealthAction.pause and signal is None:
        signal = wait_until_removed(parts.paused_file, response.reason, parts.world, stop)
    stopped = f"stopped after step {step} of {parts.recipe.run.steps}; the same command goes on."
    if signal is not None:
        raise RunStopped(f"{signal}: {stopped}")
    if response.action is HealthAction.stop:
        raise RunStopped(f"{response.reason} The run is {stopped}")


def _evaluate(parts: Parts, tracker: Tracker, step: int) -> None:
    if parts.exact_evaluation:
        tracker.evaluation(step, parts.exact_evaluation())
    elif parts.eval_prompts:
        metrics = evaluate(
            parts.world, parts.engine, parts.verifier, parts.eval_prompts, parts.recipe.eval, parts.recipe.run.seed
        )
        tracker.evaluation(step, metrics)
