"""What a report says in sentences: what was compared, what came out, and what cannot be told apart."""

from dapo_cli.report.curves import NEAR
from dapo_cli.report.formats import Scale, quoted, scale_of
from dapo_cli.report.provenance import code_name
from dapo_cli.report.results import Results, mean_of
from dapo_cli.report.runs import ROLLOUTS
from dapo_cli.report.statistics import Basis, Estimate
from dapo_cli.report.study import Study
from dapo_cli.wording import counted, listed

KINDS = {
    "ladder": "a ladder, each rung on top of those before it",
    "leave_one_out": "one part left out at a time",
    "grid": "a grid of settings",
    "list": "a list of settings",
    "runs": "run folders side by side",
}
MUCH_MORE = 1.05  # of the rollouts of another point, for a difference to be worth a sentence
MATCHED = {"steps": "training steps", "rollouts": "judged rollouts", "seconds": "seconds of training"}


def scale_for(results: Results) -> Scale:
    values = [one.value for result in results.points for one in result.values.values()]
    return scale_of(results.metric, values)


def compared(study: Study) -> list[tuple[str, str]]:
    """(what, text) of the report's head: kind, recipe, what the points share, seeds, code."""
    seeds = sorted({run.seed for run in study.runs})
    finished = sum(run.finished for run in study.runs)
    codes = list(dict.fromkeys(code_name(run.manifest) for run in study.runs if run.manifest))
    if study.match:
        by, amount = study.match
        match = f"{amount:,.0f} {MATCHED.get(by, by)} a run"
    else:
        match = "nothing but what the recipes say"
    beside = [
        ("Comparison", f"{counted(len(study.points), 'point')}: {KINDS.get(study.kind, study.kind)}"),
        ("Matched by", match),
        ("Baseline", study.baseline.label),
    ]
    return [
        *(beside if len(study.points) > 1 else []),
        ("Recipe", study.recipe),
        ("Seeds", f"{', '.join(map(str, seeds))}; {finished} of {counted(len(study.runs), 'run')} finished"),
        ("Commit", listed(codes) if codes else "unknown: no run has a manifest"),
    ]


def headline(results: Results) -> list[str]:
    """Sentences: the highest point and its difference, what is not distinguishable, and what else to bear in mind."""
    scale, highest = scale_for(results), results.highest
    if highest is None or highest.estimate is None:
        return ["No run of any point has come to its end yet, so there is nothing to compare."]
    if results.alone:
        return [f"Mean {scale.name} at the end of training: {_mean_with_interval(highest.estimate, scale)}."]
    said = [
        f"The highest mean {scale.name} at the end of training is that of “{highest.point.label}”: "
        f"{_mean_with_interval(highest.estimate, scale)}."
    ]
    base = results.baseline
    if highest is base:
        said.append("It is the baseline itself.")
    elif highest.to_baseline:
        said.append(f"Its difference to the baseline “{base.point.label}” is {told(highest.to_baseline, scale)}.")
    else:
        said.append(
            f"It has no finished seed in common with the baseline “{base.point.label}”: no difference is given."
        )
    said += _sorted_out(results)
    if len(results.points) > 2 and highest is not base:
        said.append("As the best of several, its own mean is likelier too high than too low.")
    return said + _spent(results)


def _sorted_out(results: Results) -> list[str]:
    """Which differences to the baseline leave out 0, and which do not."""
    judged = [(result, result.to_baseline) for result in results.others if result.to_baseline]
    above = [result.point.label for result, found in judged if found.distinguishable and found.mean > 0]
    below = [result.point.label for result, found in judged if found.distinguishable and found.mean < 0]
    unclear = [result.point.label for result, found in judged if found.distinguishable is False]
    unjudged = [result.point.label for result, found in judged if found.distinguishable is None]
    absent = [result.point.label for result in results.others if not result.to_baseline]
    parts = [
        (above, "Distinguishably above the baseline at 95 %"),
        (below, "Distinguishably below the baseline at 95 %"),
        (unclear, "Not distinguishable from the baseline at 95 %"),
        (unjudged, "Without an interval, so not judged"),
        (absent, "Without a finished seed in common with the baseline"),
    ]
    return [f"{words}: {listed(quoted(labels))}." for labels, words in parts if labels]


def _spent(results: Results) -> list[str]:
    """A comparison at equal steps is none at equal cost; say so where the cost differs."""
    known = [(value, result.point.label) for result in results.points if (value := result.training[ROLLOUTS])]
    matched_by = results.study.match[0] if results.study.match else ""
    if matched_by == ROLLOUTS or len(known) < 2:
        return []
    (least, by_least), (most, by_most) = (choose(known, key=lambda pair: pair[0]) for choose in (min, max))
    if most < MUCH_MORE * least:
        return []
    said = [
        f"The points did not spend the same: {most:,.0f} rollouts a run by “{by_most}”, {least:,.0f} by “{by_least}”."
    ]
    if results.common_rollouts is None or not results.metric.startswith("eval/"):
        return said
    measured = [result for result in results.points if result.estimate]
    if far := [result.point.label for result in measured if not result.at_common]:
        said.append(
            f"Which is ahead at {results.common_rollouts:,.0f} rollouts each cannot be told: {listed(quoted(far))} "
            f"{'has a run' if len(far) == 1 else 'have runs'} without evaluations within {100 * NEAR:.0f} % of there; "
            "a smaller eval.every gives them."
        )
    else:
        ahead = max(measured, key=lambda result: mean_of(result.at_common))
        said.append(
            f"At {results.common_rollouts:,.0f} rollouts each, the highest mean is that of “{ahead.point.label}”: "
            f"{scale_for(results).value(mean_of(ahead.at_common))}."
        )
    return said


def _mean_with_interval(found: Estimate, scale: Scale) -> str:
    if found.half_width is None:
        return f"{scale.value(found.mean)} ({counted(found.count, 'seed')}, {NO_INTERVAL[found.basis]})"
    over = counted(found.count, "seed") if found.basis is Basis.SEEDS else "the evaluation's prompts, of one seed"
    low, high = scale.number(found.low), scale.number(found.high)
    return f"{scale.value(found.mean)} (95 % interval {low} to {high}, over {over})"


NO_INTERVAL = {
    Basis.ALIKE: "no interval: all values are equal",
    Basis.UNKNOWN: "no interval: one seed, and no standard error",
}


def told(found: Estimate, scale: Scale) -> str:
    """A difference in words, with the plain statement of what it can be told from."""
    size = f"{scale.number(found.mean, signed=True)} {scale.difference_unit}".strip()
    if found.half_width is None:
        if found.basis is Basis.ALIKE and found.mean == 0 and found.count > 1:
            return f"0: the two are equal in each of {counted(found.count, 'seed')}"
        return f"{size} ({counted(found.count, 'seed')}, {NO_INTERVAL[found.basis]})"
    how = f"paired over {counted(found.count, 'seed')}" if found.basis is Basis.SEEDS else "one seed, over prompts"
    low, high = scale.number(found.low, signed=True), scale.number(found.high, signed=True)
    verdict = "distinguishable from 0" if found.distinguishable else "not distinguishable from 0"
    return f"{size} (95 % interval {low} to {high}, {how}): {verdict}"


def multiple_comparisons(results: Results) -> list[str]:
    """The caution that the number of intervals calls for."""
    count = results.comparisons
    if results.alone:
        return []
    if not count:
        return ["No interval of a difference is shown."]
    by_chance = 0.05 * count
    said = [
        f"{counted(count, 'interval')} of differences {'is' if count == 1 else 'are'} shown, each at 95 % by itself. "
        f"If nothing differed at all, about {by_chance:.2g} of them would leave out 0 by chance alone."
    ]
    if len(results.others) > 1:
        kept = [result.point.label for result in results.corrected]
        said.append(
            f"With all {len(results.others)} differences to the baseline held together at 95 % (Bonferroni: each "
            f"interval at {100 - 5 / len(results.others):.4g} %), "
            + (f"distinguishable: {listed(quoted(kept))}." if kept else "none is distinguishable.")
        )
    return said


def statements(results: Results) -> list[str]:
    """A sentence for each point but the baseline: each of its differences, with what it can be told from."""
    scale, study = scale_for(results), results.study
    said = []
    for result in results.others:
        before = study.before(result.point)
        found = [f"against the baseline {_told_or_absent(result.to_baseline, scale)}"]
        if before and before is not study.baseline:
            found.append(f"against the rung before {_told_or_absent(result.to_before, scale)}")
        said.append(f"“{result.point.label}”: {'; '.join(found)}.")
    return said


def _told_or_absent(found: Estimate | None, scale: Scale) -> str:
    return told(found, scale) if found else "no difference: no finished seed in common"
