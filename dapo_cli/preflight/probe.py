"""A short generation with the recipe's own parts: what no formula knows of it. Leaves no file behind."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from tempfile import TemporaryDirectory

import torch

from dapo_cli.algorithm.advantage import batch_advantages
from dapo_cli.algorithm.ledger import SHARES
from dapo_cli.build import build_parts
from dapo_cli.config.schema import (
    LaunchConfig,
    LearnerConfig,
    Recipe,
    SingleLearner,
    Surplus,
    VllmRollout,
)
from dapo_cli.distributed.world import join_world
from dapo_cli.errors import Diverged, OutOfSync, UserError
from dapo_cli.inputs import read_inputs
from dapo_cli.preflight.estimates import StepForecast, expected_yield, forecast_step
from dapo_cli.preflight.memory import processes
from dapo_cli.preflight.probe_result import Probe, ProbeSize
from dapo_cli.protocols import Metrics
from dapo_cli.reward.overlong import buffer_start
from dapo_cli.tracking.clock import PhaseClock
from dapo_cli.tracking.metrics import (
    length_metrics,
    mean,
    num_tokens,
    per_second,
    prefixed,
    rollout_metrics,
    rollouts_of,
    verifier_metrics,
)
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.train import Parts
from dapo_cli.types import Group


def run_probe(recipe: Recipe, size: ProbeSize) -> Probe:
    """Generate and judge the first prompts of the training stream by the starting weights: with the recipe's group
    size, completions of the run's own first round. Then score and train on one mini-batch of them, to time it.

    Raises UserError for data, model or weights that cannot serve, and where one process cannot hold the parts.
    """
    alone = _on_one_process(recipe)
    inputs = read_inputs(recipe)
    count = min(size.prompts, len(inputs.prompts))
    asked = _asking(alone, count, size.samples or recipe.algorithm.samples_per_prompt)
    clock = PhaseClock()
    grouped = not isinstance(alone.learner, SingleLearner)
    world = join_world(with_group=grouped)
    try:
        with TemporaryDirectory() as path:
            folder = RunFolder(path)
            with closing(build_parts(asked, inputs, folder, world)) as parts:
                return _probe(recipe, parts, clock, len(inputs.prompts))
    except OutOfSync as error:
        raise UserError(str(error)) from error
    except Diverged as error:
        raise UserError(
            f"model: {error.args[0]}, by its starting weights: give other weights or another type"
        ) from error
    except torch.OutOfMemoryError as error:
        raise UserError(
            "--probe: the GPU has no room for it: lower rollout.max_batch_completions, sampling.max_tokens or "
            "learner.micro_batch_tokens"
        ) from error
    finally:
        if grouped and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _on_one_process(recipe: Recipe) -> Recipe:
    """The recipe for this process alone. A learner that is split over several becomes one that holds all weights, to
    generate with; its updates say nothing of theirs."""
    if processes(recipe) == 1:
        return recipe
    if isinstance(recipe.rollout, VllmRollout) and recipe.rollout.tensor_parallel > 1:
        raise UserError(
            f"--probe: rollout.tensor_parallel = {recipe.rollout.tensor_parallel} splits the engine over processes, "
            "and a probe is one; set it to 1 for the probe, where the model fits"
        )
    shared = {field.name: getattr(recipe.learner, field.name) for field in fields(LearnerConfig)}
    return replace(recipe, learner=SingleLearner(**shared), launch=LaunchConfig())


def _asking(recipe: Recipe, prompts: int, samples: int) -> Recipe:
    """A step of one round, which keeps every group."""
    sampler = replace(
        recipe.sampler,
        dynamic=False,
        max_rounds=1,
        max_prompts_per_round=prompts,
        surplus=Surplus.discard,
        skip_solved_above=None,
        skip_hopeless_below=None,
    )
    algorithm = replace(recipe.algorithm, samples_per_prompt=samples, groups_per_step=prompts)
    return replace(recipe, sampler=sampler, algorithm=algorithm, run=replace(recipe.run, ahead=0))


def _probe(recipe: Recipe, parts: Parts, clock: PhaseClock, prompts: int) -> Probe:
    algorithm, dynamic = recipe.algorithm, recipe.sampler.dynamic
    with clock("sync"):
        parts.engine.sync_weights(parts.learner.named_weights())
        if parts.canary:
            parts.canary.check()
    parts.verifier.wait_until_ready()  # a run starts its workers once, not in every step
    judged = parts.batches.take(1, clock)
    parts.engine.rest()
    samples = len(judged[0].rollouts)
    informative = expected_yield([group.num_correct for group in judged], samples, algorithm.samples_per_prompt)
    step = forecast_step(recipe.sampler, algorithm.groups_per_step, informative.rate if dynamic else 1.0, prompts)
    trained = _train(recipe, parts, judged, clock) if processes(recipe) == 1 else 0
    seconds = phase_seconds(recipe, step, clock.seconds, len(rollouts_of(judged)), trained)
    known = parts.sampler.metrics()
    return Probe(
        prompts=len(judged),
        samples=samples,
        informative=informative,
        step=step,
        figures=_figures(judged, buffer_start(recipe.overlong, recipe.sampling.max_tokens)),
        no_answer=no_answer_share(judged),
        pass_rates={name: known[f"ledger/{name}"] for name in SHARES},
        tokens=num_tokens(judged),
        generating_s=clock.seconds["rollout"],
        tokens_per_s=per_second(num_tokens(judged), clock.seconds["rollout"]),
        seconds=seconds,
        step_seconds=step_seconds(recipe, seconds) if trained else None,
    )


def _train(recipe: Recipe, parts: Parts, judged: Sequence[Group], clock: PhaseClock) -> int:
    """Score and train on one mini-batch, of informative groups where there are any; returns its completions."""
    algorithm = recipe.algorithm
    lessons = [group for group in judged if group.informative] or judged
    chosen = lessons[: algorithm.groups_per_update]
    with clock("score"):
        scored, _ = parts.learner.score(chosen, step=1)
    with clock("update"):
        parts.learner.update(scored, batch_advantages(chosen, algorithm.advantage), lr=recipe.optimizer.lr)
    return len(rollouts_of(chosen))


def phase_seconds(
    recipe: Recipe, step: StepForecast, measured: Mapping[str, float], generated: int, trained: int
) -> dict[str, float]:
    """Of each phase of a step, in proportion to its completions: `measured` is what it took to generate and judge
    `generated` of them, and to score and train on `trained`, 0 where that was not measured. Several processes generate
    at the same time."""
    samples, passes = recipe.algorithm.samples_per_prompt, recipe.algorithm.passes
    tried = step.prompts * samples / generated / processes(recipe)
    times = {"rollout": tried, "verify": tried}
    if trained:
        kept = step.groups * samples / trained
        times |= {"score": kept, "update": kept * passes}
    return {phase: measured[phase] * count for phase, count in (times | {"sync": 1.0}).items()}


def step_seconds(recipe: Recipe, seconds: dict[str, float]) -> float:
    """One after the other, but for a step ahead, which is generated while this one trains."""
    making, training = seconds["rollout"] + seconds["verify"], seconds["score"] + seconds["update"]
    return seconds["sync"] + (max(making, training) if recipe.run.ahead else making + training)


def _figures(judged: Sequence[Group], buffer_begins: int | None) -> Metrics:
    """A part of those that a step of a run has."""
    return (
        prefixed("judged", rollout_metrics(judged))
        | prefixed("length", length_metrics(judged, buffer_begins))
        | prefixed("verifier", verifier_metrics(judged))
    )


def no_answer_share(judged: Sequence[Group]) -> float | None:
    """Of the completions that ended by themselves, those in which the verifier found no answer."""
    ended = [rollout for rollout in rollouts_of(judged) if not rollout.completion.truncated]
    told = [rollout.verdict for rollout in ended if rollout.verdict.tells_answer]
    return mean([verdict.extracted is None for verdict in told])
