"""What stands below figures and above tables: what is shown, of how many runs, and how the intervals are made."""

from dapo_cli.report.curves import NEAR, runs_to_draw, window
from dapo_cli.report.figures import MOST_CURVES, points_drawn
from dapo_cli.report.formats import FIGURES
from dapo_cli.report.results import TRAINING, Results
from dapo_cli.report.runs import ACCURACY
from dapo_cli.report.statistics import Basis
from dapo_cli.report.words import scale_for
from dapo_cli.wording import counted

OUTCOME, OVER_STEPS, OVER_ROLLOUTS, DIFFICULTY = "outcome", "curves_over_steps", "curves_over_rollouts", "difficulty"
ALTERNATIVES = {
    OUTCOME: "Final figure of each point with its interval and seeds, and paired differences; Table 1 has the numbers.",
    OVER_STEPS: "Curves over training steps; curves.csv has the numbers.",
    OVER_ROLLOUTS: "Curves over rollouts spent; curves.csv has the numbers.",
    DIFFICULTY: "Histograms of the prompts' pass rates at the first and the last step.",
}

DIFFERENCES = (
    (
        "paired difference",
        "per seed, point − baseline of the same seed; then mean and interval of these over the seeds that both "
        "have finished",
    ),
    (
        "distinguishable",
        "the interval of the paired difference leaves out 0. Two means whose own intervals overlap may still be "
        "distinguishable, since pairing takes out what the seeds share; not distinguishable is not equal",
    ),
)


def figure(name: str, results: Results) -> str:
    return {
        OUTCOME: _outcome,
        OVER_STEPS: lambda results: _curves(results, "training steps"),
        OVER_ROLLOUTS: lambda results: _curves(results, "rollouts spent"),
        DIFFICULTY: lambda results: (
            "Difficulty of the prompts seen so far, by the pass rate of their last visit, at the first and the last "
            "step; mean over the finished runs of each point."
        ),
    }[name](results)


def _outcome(results: Results) -> str:
    scale = scale_for(results)
    said = (
        f"{scale.name} at the end of training; black, the mean with its 95 % interval ({basis(results)}); blue, the "
        f"seeds ({_seeds(results)})"
    )
    reach = "An interval may reach beyond the axis."
    if results.alone:
        said = f"{said[0].upper()}{said[1:]}. {reach}"
    else:
        said = (
            f"Left: {said}; dashed, the baseline's mean. {reach} Right: mean paired difference by seed with its 95 % "
            "interval; filled markers are distinguishable from 0, hollow ones are not."
        )
    if results.study.is_ladder:
        said += " The ladder climbs from the baseline at the bottom; each rung holds those below it."
    if any(point.reference is not None for point in results.study.points):
        said += (
            " Reference: the values that the plan quotes, of another set-up; only their order and signs can be "
            "compared with ours, so they have an axis of their own."
        )
    return said


def _seeds(results: Results) -> str:
    counts = sorted({len(result.values) for result in results.points})
    return counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds a point"


def _curves(results: Results, over: str) -> str:
    points = points_drawn(results)
    runs = [run for point in points for run in runs_to_draw(point)]
    said = (
        f"Training over {over}. Lines: mean over the finished runs of a point; bands: from the lowest to the "
        "highest seed. "
    )
    if not results.alone:
        said += "The baseline's line is wider. "
    widest = max((window(run) for run in runs), default=1)
    if widest > 1:
        said += f"Figures of single steps are running means over {widest} steps; evaluations are as measured. "
    if over == "rollouts spent":
        said += "Where seeds measured at different places, their lines are read straight between their own. "
    if over == "training steps" and any(run.alarms for run in runs):
        said += "Triangles at the upper edge: steps that raised a health alarm on that figure. "
    left_out = sum(bool(runs_to_draw(point)) for point in results.study.points) - len(points)
    if left_out:
        said += (
            f"Of the points, the baseline and the {MOST_CURVES - 1} of the highest mean are drawn; {left_out} more are "
            "in curves.csv. "
        )
    return said.strip()


def basis(results: Results) -> str:
    """What the intervals of this report are taken over."""
    found = {result.estimate.basis for result in results.points if result.estimate}
    kinds = {
        Basis.SEEDS: "Student's t over seeds",
        Basis.PROMPTS: "of a single seed, marked (p): from its standard error over the evaluation's prompts",
    }
    told = [words for kind, words in kinds.items() if kind in found]
    return "; ".join(told) if told else "none could be given"


def of_tables(results: Results) -> dict[str, str]:
    scale = scale_for(results)
    at_end = (
        "the last evaluation" if results.metric.startswith("eval/") else "the mean over the last tenth of the steps"
    )
    said = (
        f"{scale.name.capitalize()} at the end of training ({at_end}) over finished runs; {_seeds(results)}. "
        f"95 % intervals: {basis(results)}."
    )
    if not results.alone:
        said += (
            f" Differences are paired by seed, {'in percentage points, ' if scale.unit == '%' else ''}with their 95 % "
            "interval in brackets; bold where it leaves out 0. A dash: not measured, or no seed in common; in "
            "brackets: no interval can be given."
        )
    if not results.alone and any(result.at_common for result in results.points):
        said += (
            " Mean at equal rollouts: where every run had spent as many as the thriftiest did in all; a dash where a "
            f"run was not evaluated within {100 * NEAR:.0f} % of there."
        )
    return {
        "results": said,
        "training": (
            "The training behind Table 1, means over finished runs. Reward, entropy, length and informative groups: "
            "mean over the last tenth of the steps. Rollouts: judged completions of the whole run. Training time: "
            "without evaluations and checkpoints."
        ),
        "changed": (
            "Keys of the resolved recipes that differ from the baseline's; the seed and keys that decide no number "
            "(folders, checkpoints, tracking, launch) are left out."
        ),
        "provenance": (
            "Every run. Recipe: hash of the resolved recipe without its seed and the keys that decide no number, so "
            "equal within a point. Data: hash over the manifest's record of training and held-out data. Model: the "
            "hub's commit, or a hash over its files' hashes."
        ),
        "health": (
            "Alarms of the runs' own health rules, from the first step of what a rule looks for to the step that "
            "ended it. Action: what the recipe has such an alarm do."
        ),
    }


def definitions(results: Results) -> list[tuple[str, str]]:
    """Each figure in a line, then the statistics."""
    keys = [key for key in dict.fromkeys([results.metric, ACCURACY, *TRAINING]) if key in FIGURES]
    own = [] if results.metric in FIGURES else [(results.metric, "as the run's files hold it; docs/metrics.md")]
    return [
        *own,
        *((FIGURES[key].name, FIGURES[key].definition) for key in keys),
        (
            "95 % interval",
            "mean ± t(0.975, n − 1) · s / √n over n seeds, s the sample standard deviation (n − 1). It takes seeds for "
            "independent and about normal: with two or three it is wide, and may reach beyond what a share can be",
        ),
        (
            "one seed",
            "t · standard error over the evaluation's prompts. It covers the choice of prompts, not the spread between "
            "seeds; of a difference, the two errors add in squares as if the evaluations shared no prompts",
        ),
        *([] if results.alone else DIFFERENCES),
        ("no interval", "one value without a standard error, or values that are all equal"),
    ]
