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
from dapo_cli.health.event import HealthEvent
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
from dapo_cli.types import Prompt


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


def train(
    parts: Parts, tracker: Tracker, start_step: int, budget: Budget, health: Health, stop: StopRequest
) -> int | HealthEvent:
    """Steps `start_step` + 1 to `run.steps`, each: rounds until the batch is full, pi_old, updates, weight sync.
    Returns the last step, an earlier one where the budget is spent, or the rollback that an alarm asks for.

    Raises RunStopped after saving where a signal or an alarm asks for it, OutOfSync where the engine does not follow
    the learner. Collective: every rank must call.
    """
    recipe, engine, learner, sampler = parts.recipe, parts.engine, parts.learner, parts.sampler
    world = parts.world
    algorithm, clock = recipe.algorithm, PhaseClock()
    device_peak = peak_flops(world.device, recipe.learner.compute_dtype)
    batches = parts.batches
    buffer_begins = buffer_start(recipe.overlong, recipe.sampling.max_tokens)
    learner.lr_factor = health.lr_factor
    _sync(parts)
    if start_step == 0:
        _evaluate(parts, tracker, 0)
    for step in range(start_step + 1, recipe.run.steps + 1):
        if budget.spent:
            return step - 1
        clock.reset()
        parts.profiler.begin(step)
        judged = batches.take(step, clock)
        engine.rest()
        fresh, sampled, staleness = sampler.take(), sampler.metrics(), batches.staleness
        batches.begin(step + 1)
        with clock("score"):
            scored, entropy = learner.score(fresh, step)
        batch = sampler.batch(scored)
        advantages = batch_advantages([each.group for each in batch], algorithm.advantage)
        stats = UpdateStats()
        with clock("update"):
            for start in algorithm.passes * list(range(0, len(batch), algorithm.groups_per_update)):
                part = slice(start, start + algorithm.groups_per_update)
                stats = stats.merge(learner.update(batch[part], advantages[part], step))
        if recipe.run.ahead:
            with clock("wait"):
                batches.wait()
        with clock("sync"):
            in_sync = _sync(parts)

        kept = [scored.group for scored in batch]
        lr = learner.lr_factor * learning_rate(recipe.optimizer, step)
        policy = {"policy/entropy": entropy, "policy/lr": lr} | stats.metrics()
        engines = mismatch_metrics(batch, recipe.correction) | in_sync
        if recipe.run.ahead:
            engines["mismatch/staleness"] = staleness
        # The slowest rank's clock, so that all ranks agree.
        budget.spend(len(rollouts_of(judged)), max(world.gather(clock.total)))
        sampled[ROLLOUTS_TOTAL] = budget.rollouts
        metrics = step_metrics(judged, kept, buffer_begins) | sampled | policy | engines
        tracker.rollouts(step, judged, {group.prompt.uid for group in kept})
        tracker.step(step, metrics)
        response = _watch(parts, tracker, health, step, metrics)
        if response.rolled_back:
            parts.profiler.end(step)
            return response.rolled_back
        last = step == recipe.run.steps or budget.spent is not None
        with clock("evaluate"):
            if last or (recipe.eval.every and step % recipe.eval.every == 0):
                _evaluate(parts, tracker, step)
        # Read once: a signal that comes after the save waits for the next step.
        stopping = next(filter(None, world.gather(stop.requested)), None)
        with clock("checkpoint"):
            if last or stopping or response.saves or step % recipe.checkpoint.every == 0:
                parts.checkpoints.save(step, learner, batches.sampler_state(), for_good=response.for_good)
        own = RankTimings({**clock.seconds, "step": clock.total}, peak_memory_bytes(), learner.take_model_flops())
        parts.profiler.end(step)
        tracker.timings(step, step_timings(world.gather(own), judged, fresh, kept, device_peak))
        if not last:
            _end_early(parts, response, step, stopping, stop)
    return recipe.run.steps


def _sync(parts: Parts) -> Metrics:
    """The learner's weights to the engine, and proof that they arrived."""
    parts.engine.sync_weights(parts.learner.named_weights())
    return parts.canary.check() if parts.canary else {}


def _watch(parts: Parts, tracker: Tracker, health: Health, step: int, metrics: Metrics) -> Response:
    """What the step's figures say of the run's health, and what is to be done about it. A rollback undoes the step, and
    with it all else that is said of it."""
    events = health.feed(step, metrics)
    response = health.respond(events, parts.world.on_main(parts.checkpoints.steps) if events else [])
    for event in [response.rolled_back] if response.rolled_back else events:
        tracker.health(event)
    return response


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
