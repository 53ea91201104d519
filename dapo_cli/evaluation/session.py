"""Carry out a plan: generate what is missing, judge it while more is generated, store it, and write the results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from dapo_cli.evaluation.engines import Generator, open_generator
from dapo_cli.evaluation.plan import EvaluationPlan, Task
from dapo_cli.evaluation.records import Problem, Sample, judged_rows, problem_scores
from dapo_cli.evaluation.results import curve, results_of, write_curve, write_results
from dapo_cli.evaluation.store import Rows
from dapo_cli.evaluation.votes import equivalence
from dapo_cli.reward.modes import build_verifier
from dapo_cli.reward.pool import VerifierPool
from dapo_cli.rounds import judge_as_they_finish
from dapo_cli.tracking.clock import PhaseClock
from dapo_cli.types import Case

TellJudged = Callable[[Task, int], None]
"""Is told how many problems of a task are judged."""

Results = dict[str, Any]


def carry_out(plan: EvaluationPlan, progress: TellJudged = lambda task, judged: None) -> dict[str, list[Results]]:
    """The results of each data set, one a checkpoint, in the order of steps; all in their folders, too.

    What an earlier call left in the folders is not generated again. Raises UserError where a folder holds another
    evaluation, before anything is generated.
    """
    with ExitStack() as stack:
        for task in plan.tasks:
            stack.enter_context(task.folder.lock())
        changes = [task.folder.check(task.manifest, allow_changes=plan.options.allow_changes) for task in plan.tasks]
        judged = [task.folder.recover(task.draw.samples) for task in plan.tasks]
        for task, changed in zip(plan.tasks, changes, strict=True):
            task.folder.begin(task.manifest, plan.code.patch, changed)
        _generate_missing(plan, judged, progress)
        for task, known in zip(plan.tasks, judged, strict=True):
            task.folder.put_in_order([known[problem.prompt.uid] for problem in task.data.problems])
        return _write_all(plan, judged)


def _generate_missing(plan: EvaluationPlan, judged: list[dict[str, Rows]], progress: TellJudged) -> None:
    """Fill `judged` up; no engine is started where nothing is missing. All sets of a checkpoint come before the next
    one, since its weights are loaded once."""
    order = sorted(range(len(plan.tasks)), key=lambda place: plan.tasks[place].step or 0)
    unfinished = [place for place in order if len(judged[place]) < len(plan.tasks[place].data.problems)]
    if not unfinished:
        return
    with ExitStack() as stack:
        pool = stack.enter_context(build_verifier(plan.reward, plan.user_function))
        pool.wait_until_ready()  # what is wrong with a user's file shows before the weights load
        generator = stack.enter_context(closing(_open_generator(plan, plan.tasks[unfinished[0]])))
        loaded: int | None = None
        for place in unfinished:
            task = plan.tasks[place]
            if task.step != loaded:
                generator.load(task.step)
                loaded = task.step
            _complete(task, judged[place], generator, pool, progress)


def _open_generator(plan: EvaluationPlan, first: Task) -> Generator:
    return open_generator(
        plan.options, plan.subject, plan.rollout, plan.dtype, plan.longest_sequence, first.folder.engine_log
    )


def _complete(
    task: Task, known: dict[str, Rows], generator: Generator, pool: VerifierPool, progress: TellJudged
) -> None:
    """Generate and judge the problems of a task that `known` lacks."""
    problems = unfinished_batches(task.data.problems, known.keys(), generator.together)
    before, clock = len(known), PhaseClock()
    progress(task, before)

    def judge(asked: list[Problem], samples: list[list[Sample]]) -> list[Rows]:
        rows = judge_problems(asked, samples, pool)
        fresh = {each[0].uid: each for each in rows if each[0].uid not in known}
        task.folder.record_not_sent(generator.not_sent)
        task.folder.append(fresh.values())
        known.update(fresh)
        progress(task, len(known))
        return rows

    with _timed(task, known, before, clock):
        judge_as_they_finish(problems, generator.generate(task.data, problems, task.draw), judge, clock)


@contextmanager
def _timed(task: Task, known: dict[str, Rows], before: int, clock: PhaseClock) -> Iterator[None]:
    """Leave a line of timings, after an interrupt, too. Tokens that were generated again count with the time that they
    took only where they were kept."""
    try:
        yield
    finally:
        fresh = list(known.values())[before:]
        task.folder.add_timing(
            {
                "problems": len(fresh),
                "completions": sum(len(rows) for rows in fresh),
                "tokens": sum(row.tokens for rows in fresh for row in rows),
                "generate_s": clock.seconds["rollout"],
                "judge_s": clock.seconds["verify"],
            }
        )


def unfinished_batches(problems: Sequence[Problem], finished: Any, together: int) -> list[Problem]:
    """The problems to generate: every batch of `together` that is not all `finished`, whole. A batch always has the
    same problems then, and so, to the last bit, the same completions, whatever an interruption left."""
    batches = [problems[start : start + together] for start in range(0, len(problems), together)]
    return [problem for batch in batches if any(each.prompt.uid not in finished for each in batch) for problem in batch]


def judge_problems(problems: Sequence[Problem], samples: Sequence[Sequence[Sample]], pool: VerifierPool) -> list[Rows]:
    """The rows of each problem."""
    cases = [
        Case(problem.prompt.text, sample.text, problem.prompt.answer)
        for problem, own in zip(problems, samples, strict=True)
        for sample in own
    ]
    verdicts = iter(pool.verify(cases))
    return [
        judged_rows(problem, own, [next(verdicts) for _ in own]) for problem, own in zip(problems, samples, strict=True)
    ]


def _write_all(plan: EvaluationPlan, judged: list[dict[str, Rows]]) -> dict[str, list[Results]]:
    found: dict[str, list[Results]] = {}
    with equivalence(plan.reward) as same:
        for task, known in zip(plan.tasks, judged, strict=True):
            scores = problem_scores([known[problem.prompt.uid] for problem in task.data.problems], same)
            results = results_of(describe(plan, task), scores, plan.options.seed)
            write_results(results, scores, task.folder.results_file, task.folder.problems_file)
            found.setdefault(task.data.name, []).append(results)
    if plan.options.all_checkpoints:
        for name, series in found.items():
            write_curve(curve(series), plan.roots[name])
    return found


def describe(plan: EvaluationPlan, task: Task) -> dict[str, Any]:
    """What the figures are of."""
    settings = {key: value for key, value in task.manifest["recipe"].items() if key not in ("reward", "rollout")}
    return {
        "model": plan.subject.name,
        "step": task.step,
        "data": task.data.name,
        "problems": len(task.data.problems),
        "problems_too_long": task.data.too_long,
        "max_tokens_asked": task.tokens_asked,
        **settings,
    }
