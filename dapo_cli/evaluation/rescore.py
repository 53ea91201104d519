"""Another verifier over stored generations: no model is loaded, nothing is generated."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_cli.config.schema import RewardConfig
from dapo_cli.errors import UserError
from dapo_cli.evaluation.records import Generation, problem_scores
from dapo_cli.evaluation.results import read_results, results_of, write_results
from dapo_cli.evaluation.store import EvaluationFolder, Rows, read_generations, remedy_for
from dapo_cli.evaluation.votes import equivalence
from dapo_cli.reward.modes import build_verifier, mode_name
from dapo_cli.tracking.files import json_line, write_atomically

VERDICT_KEYS = ("uid", "sample_index", "outcome", "extracted", "rule")


@dataclass(frozen=True)
class Rescored:
    """`before` are the stored results, None where there are generations alone; `changed` counts completions by
    (outcome before, outcome now) where they differ, out of `completions`; `files` are what was written."""

    before: dict[str, Any] | None
    now: dict[str, Any]
    changed: Counter[tuple[str, str]]
    completions: int
    files: list[Path]


def rescore(
    path: Path, reward: RewardConfig, progress: Callable[[int, int], None] = lambda done, total: None
) -> Rescored:
    """Judge the generations of an evaluation's folder, or of a generations file, by the verifier of `reward`.

    Verdicts, results and problems go beside them under names with the mode, so that those of the evaluation stay.
    Raises UserError where there are no generations, an evaluation that is not finished or is being written, or where
    the verifier cannot serve.
    """
    file = path / "generations.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"--rescore {path}: there is no {file.name}; {remedy_for(path, 'generations.jsonl')}")
    with EvaluationFolder(file.parent).lock():
        return _rescored(file, reward, progress)


def _rescored(file: Path, reward: RewardConfig, progress: Callable[[int, int], None]) -> Rescored:
    folder = EvaluationFolder(file.parent)
    recipe, asked = dict[str, Any](), 1  # of generations alone
    if folder.manifest_file.exists():
        manifest = folder.read_manifest()
        try:
            recipe, asked = dict(manifest["recipe"]), int(manifest["data"][0]["prompts"])
        except (LookupError, TypeError, ValueError):
            where = f"{folder.manifest_file}: names no recipe and number of prompts"
            raise UserError(f"{where}; restore the file, or give the generations.jsonl in a folder alone") from None
    problems = list(read_generations(file, recipe.get("k"))[0].values())
    if len(problems) < asked:
        raise UserError(
            f"--rescore {file}: holds {len(problems)} whole problems of {asked}; go on with the evaluation first"
        )
    before = read_results(folder.results_file) if folder.results_file.exists() else None
    judged, mode = _judged(problems, reward, progress), mode_name(reward)
    with equivalence(reward) as same:
        scores = problem_scores(judged, same)
    described = {key: value for key, value in (before or recipe).items() if key not in NOT_DESCRIBING}
    described |= {"mode": mode, "problems": len(problems), "k": len(problems[0])}
    results = results_of(described, scores, recipe.get("seed", 0))
    names = [f"verdicts.{_in_file(mode)}.jsonl", f"results.{_in_file(mode)}.json", f"problems.{_in_file(mode)}.csv"]
    verdicts_file, results_file, table = (file.with_name(name) for name in names)
    write_atomically(verdicts_file, b"".join(_verdict_line(row) for rows in judged for row in rows))
    write_results(results, scores, results_file, table)
    pairs = [
        (old, new) for olds, news in zip(problems, judged, strict=True) for old, new in zip(olds, news, strict=True)
    ]
    changed = Counter((old.outcome, new.outcome) for old, new in pairs if old.outcome != new.outcome)
    return Rescored(before, results, changed, len(pairs), [results_file, table, verdicts_file])


NOT_DESCRIBING = ("figures", "parts", "interval", "reward", "rollout")


def _judged(problems: Sequence[Rows], reward: RewardConfig, progress: Callable[[int, int], None]) -> list[Rows]:
    rows = [row for own in problems for row in own]
    with build_verifier(reward) as pool:
        pool.wait_until_ready()
        timed = pool.verify_timed([row.case for row in rows], lambda done: progress(done, len(rows)))
    fresh = iter([row.with_verdict(each.verdict) for row, each in zip(rows, timed, strict=True)])
    return [[next(fresh) for _ in own] for own in problems]


def _verdict_line(row: Generation) -> bytes:
    return json_line({key: getattr(row, key) for key in VERDICT_KEYS})


def _in_file(mode: str) -> str:
    """`my_reward.py:verify` -> `my_reward.py-verify`: a colon is no part of a file's name everywhere."""
    return mode.replace(":", "-")
