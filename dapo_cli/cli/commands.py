"""The commands of `dapo` and their options. Bodies import what they need, so that help and completion stay fast and
load no torch."""

from pathlib import Path
from typing import Annotated

import typer

from dapo_cli.cli import completion, recipe
from dapo_cli.cli.arguments import OverridesArgument, RecipeArgument, RunArgument
from dapo_cli.cli.eval_command import evaluate
from dapo_cli.cli.provenance_commands import diff, reproduce
from dapo_cli.errors import UserError
from dapo_cli.preflight.probe_result import PROMPTS, ProbeSize

app = typer.Typer(
    name="dapo",
    help="Reinforcement learning from verifiable rewards on language models: DAPO, exact and reproducible.",
    epilog="First steps: `dapo recipe list`, then `dapo train quickstart`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Look at data.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(recipe.app, name="recipe")
app.add_typer(data_app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"dapo {version('dapo-cli')}")
        except PackageNotFoundError:
            typer.echo("dapo, run from a source folder that is not installed")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere on the line.")
    ] = False,
) -> None:
    """Read by their callback and by `main`, which takes --debug out of the arguments before this runs."""


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe file, the name of a shipped recipe, or a run folder to continue.",
            autocompletion=completion.recipes_and_runs,
        ),
    ],
    overrides: OverridesArgument = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Resume although recipe, data or code differ from the run folder's; recorded in its manifest.",
        ),
    ] = False,
) -> None:
    """Train a model, or continue a run.

    Everything a run leaves lies in its run folder (key run.dir). Training again with the same recipe continues the
    run found there; a changed recipe, data or code is refused, with the difference shown.

    \b
    dapo train quickstart
    dapo train my_recipe.yaml optimizer.lr=1e-6 run.dir=runs/low-lr
    dapo train runs/low-lr
    """
    from dapo_cli.cli.train import train as run_training

    run_training(recipe, overrides or [], allow_changes)


@app.command()
def check(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Load the weights and generate a little: pass rates, lengths, speed.")
    ] = False,
    probe_prompts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Prompts of the probe; else {PROMPTS}.")
    ] = None,
    probe_samples: Annotated[
        int | None, typer.Option(min=2, metavar="K", help="Completions of each; else algorithm.samples_per_prompt.")
    ] = None,
) -> int:
    """Say what a run would do, cost and get wrong, before it starts.

    Whether it is DAPO, the arithmetic of a step, the data and its answers, memory and FLOPs by formula, and what is
    doubtful, each with its key and remedy. No weights are loaded but for --probe, which generates, judges and trains on
    one mini-batch, and leaves no file behind. The exit code is 2 where an error is found.

    \b
    dapo check quickstart
    dapo check quickstart --probe
    dapo check my_recipe.yaml learner=fsdp_bf16 --json
    """
    from dapo_cli.cli.check import check as run_check

    if not probe and (probe_prompts or probe_samples):
        raise UserError("--probe-prompts and --probe-samples are the size of a probe: give --probe, too")
    asked = ProbeSize(probe_prompts or PROMPTS, probe_samples) if probe else None
    return run_check(recipe, overrides or [], as_json, asked)


@app.command()
def ablate(
    plan: Annotated[
        str | None,
        typer.Argument(
            metavar="PLAN",
            help="A plan file, or the name of a shipped plan (--list).",
            autocompletion=completion.plans,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, help="Runs at a time; else one a GPU (or launch.processes_per_node), or a CPU core."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the points and what each changes against the baseline; run nothing."),
    ] = False,
    slurm: Annotated[
        Path | None,
        typer.Option("--slurm", metavar="OUT.sbatch", help="Write a Slurm job array, one task a run; run nothing."),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="POINT/seed_N", help="Run this one alone, as tasks of --slurm do.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try runs again that failed, from their last checkpoints.")
    ] = False,
    list_plans: Annotated[bool, typer.Option("--list", help="List the shipped plans.")] = False,
) -> int:
    """Train the points of a plan over seeds, to see what each part of a recipe is worth.

    All points are checked before the first run starts. Each run is an ordinary `dapo train` in a process and folder of
    its own; one that fails stops no other. The same command goes on where an interrupted one ended.

    \b
    dapo ablate ablations/paper_ladder_quickstart
    dapo ablate my_plan.yaml --dry-run
    dapo ablate my_plan.yaml --slurm my_plan.sbatch
    """
    from dapo_cli.cli import ablate as command

    if list_plans:
        command.list_plans()
        return 0
    chosen = [name for name, given in (("--dry-run", dry_run), ("--slurm", slurm), ("--only", only)) if given]
    if plan is None or len(chosen) > 1:
        raise UserError("give one PLAN (`dapo ablate --list` has some)" if plan is None else f"give one of {chosen}")
    if dry_run:
        command.describe(plan)
    elif slurm is not None:
        command.write_script(plan, slurm, jobs)
    elif only is not None:
        return command.run_only(plan, only)
    else:
        return command.ablate(plan, jobs, retry_failed)
    return 0


@app.command()
def serve(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    host: Annotated[str, typer.Option(help="Address to listen at; whoever reaches it can change the weights.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8000,
) -> None:
    """Run one of the vLLM servers that a recipe with rollout vllm_server generates with, until it is stopped.

    It serves the recipe's model; `dapo train` brings the weights. Start it before the run, once for each of
    rollout.servers.

    \b
    dapo serve my_recipe.yaml --host 10.0.0.5 --port 8000
    """
    from dapo_cli.cli.serve import serve as run_server

    run_server(recipe, overrides or [], host, port)


@app.command()
def selftest(
    recipe: RecipeArgument = "quickstart",
    overrides: OverridesArgument = None,
) -> None:
    """Show that the recipe's learner computes the same updates however they are split, on this machine or cluster.

    Log-probs, loss, gradient norm and updated weights of two layers of the recipe's model class with random weights, in
    float32, under several numbers of processes and sizes of micro-batches, beside one process on everything at once.
    The table goes into the run folder, and with it into the run's manifest.

    \b
    dapo selftest
    dapo selftest my_recipe.yaml learner=fsdp launch.processes_per_node=8
    """
    from dapo_cli.cli.selftest import selftest as run_selftest

    run_selftest(recipe, overrides or [])


@app.command()
def verify(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSONL, JSON, CSV or parquet with responses and reference answers.")
    ],
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            help="math (the default), authors, strict_boxed, or your own FILE.py[:FUNCTION]; given twice or more, the "
            "responses on which they differ are shown.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="OUT.jsonl", help="Write the (first) mode's verdicts, a line a response."),
    ] = None,
    response_column: Annotated[str | None, typer.Option(help="Column of the response; else response, output …")] = None,
    answer_column: Annotated[str | None, typer.Option(help="Column of the reference; else answer, gts …")] = None,
    prompt_column: Annotated[str | None, typer.Option(help="Column of the prompt; else prompt, question …")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of labels; else correct or is_correct.")] = None,
    workers: Annotated[int | None, typer.Option(help="Verifier processes; else one a CPU.")] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Limit of one verdict, in seconds; else 5.")] = None,
    memory_limit_mib: Annotated[
        int | None, typer.Option(help="Address space of one verifier process, in MiB; 0 sets no limit; else 2048.")
    ] = None,
    differences: Annotated[int, typer.Option(min=0, help="Differing responses to show.")] = 20,
) -> None:
    """Judge the responses of a file: outcomes, accuracy where it has labels, and where two modes differ.

    \b
    dapo verify responses.jsonl -o verdicts.jsonl
    dapo verify responses.parquet --mode math --mode authors
    dapo verify runs/x/rollouts/step_000001.jsonl --mode my_reward.py
    """
    from dapo_cli.cli.verify import verify as run_verification
    from dapo_cli.data.responses import Columns

    columns = Columns(response_column, answer_column, prompt_column, label_column)
    memory = "null" if memory_limit_mib == 0 else memory_limit_mib
    limits = {"workers": workers, "timeout_s": timeout_s, "memory_limit_mib": memory}
    overrides = [f"reward.{key}={value}" for key, value in limits.items() if value is not None]
    run_verification(file, mode or ["math"], columns, overrides, out, differences)


app.command("eval")(evaluate)


@app.command()
def audit(
    run: RunArgument,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Completions to show.")] = 10,
    outcome: Annotated[str, typer.Option(help="right, wrong or failed.")] = "right",
) -> None:
    """Show rewarded completions of a run for reading by hand, those of the oddest format first."""
    from dapo_cli.cli.audit import audit as run_audit

    run_audit(run, samples, outcome)


@app.command()
def watch(
    run: RunArgument,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
) -> None:
    """Follow a run in the terminal: its curves, progress, state and health alarms, until it ends or Ctrl-C.

    Reads the run's files alone, so it can be started and ended at any time. Piped, it prints one frame.

    \b
    dapo watch runs/quickstart-seed0
    dapo watch runs/quickstart-seed0 --once
    """
    from dapo_cli.cli.watch import watch as run_watch

    run_watch(run, once)


@app.command()
def report(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... | ABLATION",
            help="Run folders, or the folder of one ablation.",
            autocompletion=completion.runs,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="REPORT.html", help="Write a page; else print its tables."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Point, or run, that the others are compared with; else the first.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="What is compared: a figure of evals.jsonl or metrics.jsonl.")
    ] = "eval/accuracy",
) -> None:
    """Compare runs: means over seeds with 95 % intervals, paired differences to a baseline, curves, what was changed.

    Runs whose recipes are equal but for the seed are seeds of one point. The page is one file that needs no network;
    its figures (PNG) and tables (CSV) also lie beside it, in REPORT_files/.

    \b
    dapo report ablations/paper_ladder -o report.html
    dapo report runs/base-* runs/low-lr-* --baseline runs/base-0
    dapo report runs/a runs/b --metric judged/reward
    """
    from dapo_cli.cli.report import report as run_report

    run_report(paths, out, baseline, metric)


app.command()(reproduce)
app.command()(diff)


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder for the model.")],
    step: Annotated[int | None, typer.Option(help="Step of the checkpoint; else the newest.")] = None,
) -> None:
    """Write a checkpoint of a run as a Hugging Face folder: model and tokenizer."""
    from dapo_cli.cli.export import export as run_export

    run_export(run, step, out)


@data_app.command("show")
def data_show(
    recipe_or_file: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE_OR_FILE",
            help="A recipe (its data section is read) or a bare data file.",
            autocompletion=completion.recipes,
        ),
    ],
    overrides: OverridesArgument = None,
    samples: Annotated[int, typer.Option("-n", "--samples", min=0, help="Prompts to print.")] = 3,
) -> None:
    """Print what a recipe's data section, or a data file, gives: counts, what was dropped and why, and some prompts."""
    from dapo_cli.cli.data import show

    show(recipe_or_file, overrides or [], samples)
