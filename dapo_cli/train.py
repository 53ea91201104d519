"""Algorithm 1 of the paper: the loop that every run is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dapo_cli.algorithm.advantage import batch_advantages
from dapo_cli.algorithm.correction import mismatch_metrics
from dapo_cli.algorithm.objective import UpdateStats
from dapo_cli.budget import ROLLOUTS_TOTAL, Budget
from dapo_cli.canary import Canary
from dapo_cli.checkpoint import Checkpoints
from dapo_cli.config.schema import Recipe
from dapo_cli.distributed.world import World
from dapo_cli.errors import RunStopped
from dapo_cli.evaluation.evaluate import evaluate
from dapo_cli.interrupt import StopRequest
from dapo_cli.learner.optim import learning_rate
from dapo_cli.protocols import Learner, Metrics, RolloutEngine, Sampler, Tracker, Verifier
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
    exact_evaluation: Callable[[], Metrics] | None = None
    """Takes the place of sampled evaluation where a policy is small enough to be summed over."""

    def close(self) -> None:
        self.batches.close()
        self.verifier.close()
        self.engine.close()


def train(parts: Parts, tracker: Tracker, start_step: int, budget: Budget, stop: StopRequest) -> int:
    """Steps `start_step` + 1 to `run.steps`, each: rounds until the batch is full, pi_old, updates, weight sync.
    Returns the last step, an earlier one where the budget is spent.

    Raises RunStopped after saving where a signal asks for it, OutOfSync where the engine does not follow the learner.
    Collective: every rank must call.
    """
    recipe, engine, learner, sampler = parts.recipe, parts.engine, parts.learner, parts.sampler
    world = parts.world
    algorithm, clock = recipe.algorithm, PhaseClock()
    device_peak = peak_flops(world.device, recipe.learner.compute_dtype)
    batches = parts.batches
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
        policy = {"policy/entropy": entropy, "policy/lr": learning_rate(recipe.optimizer, step)} | stats.metrics()
        engines = mismatch_metrics(batch, recipe.correction) | in_sync
        if recipe.run.ahead:
            engines["mismatch/staleness"] = staleness
        # The slowest rank's clock, so that all ranks agree.
        budget.spend(len(rollouts_of(judged)), max(world.gather(clock.total)))
        sampled[ROLLOUTS_TOTAL] = budget.rollouts
        metrics = step_metrics(judged, kept, recipe.reward.alarm_failed_share) | sampled | policy | engines
        tracker.rollouts(step, judged, {group.prompt.uid for group in kept})
        tracker.step(step, metrics)
        last = step == recipe.run.steps or budget.spent is not None
        with clock("evaluate"):
            if last or (recipe.eval.every and step % recipe.eval.every == 0):
                _evaluate(parts, tracker, step)
        # Read once: a signal that comes after the save waits for the next step.
        stopping = next(filter(None, world.gather(stop.requested)), None)
        with clock("checkpoint"):
            if last or stopping or step % recipe.checkpoint.every == 0:
                parts.checkpoints.save(step, learner, batches.sampler_state())
        own = RankTimings({**clock.seconds, "step": clock.total}, peak_memory_bytes(), learner.take_model_flops())
        parts.profiler.end(step)
        tracker.timings(step, step_timings(world.gather(own), judged, fresh, kept, device_peak))
        if stopping and not last:
            raise RunStopped(f"{stopping}: stopped after step {step} of {recipe.run.steps}; the same command goes on.")
    return recipe.run.steps


def _sync(parts: Parts) -> Metrics:
    """The learner's weights to the engine, and proof that they arrived."""
    parts.engine.sync_weights(parts.learner.named_weights())
    return parts.canary.check() if parts.canary else {}


def _evaluate(parts: Parts, tracker: Tracker, step: int) -> None:
    if parts.exact_evaluation:
        tracker.evaluation(step, parts.exact_evaluation())
    elif parts.eval_prompts:
        metrics = evaluate(
            parts.world, parts.engine, parts.verifier, parts.eval_prompts, parts.recipe.eval, parts.recipe.run.seed
        )
        tracker.evaluation(step, metrics)
