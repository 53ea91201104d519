"""The options of `dapo eval`. The defaults are the DAPO paper's evaluation: section 4.1."""

from pathlib import Path
from typing import Annotated

import typer

from dapo_cli.cli import completion
from dapo_cli.cli.arguments import OverridesArgument
from dapo_cli.errors import UserError

COMPARE_READS = {"compare", "common", "as_json"}
RESCORE_READS = {"rescore", "mode", "as_json", "model", "overrides"}  # `model` is the first KEY=VALUE there


def evaluate(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="Hugging Face folder, hub id, shipped:NAME, or a run folder.",
            autocompletion=completion.runs,
        ),
    ] = None,
    overrides: OverridesArgument = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="File, folder, or data option (aime_2024, aime_2025, amc23, math_500, gsm8k, minerva_math); may be "
            "given several times. Of a run: else its eval.data.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option("-k", "--samples", min=1, help="Completions of one problem.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, help="Divides the logits; 0 is greedy, with -k 1.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=1e-6, max=1.0, help="Nucleus share.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of a completion; at most what the context leaves.")] = 20480,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            help="Verifier: math, authors, strict_boxed, or your own FILE.py[:FUNCTION]; else the run's, or math. "
            "Several with --rescore.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="transformers, vllm, or http://HOST:PORT of an OpenAI-compatible server; else as the run's."),
    ] = None,
    served_model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The model's name at the server; else MODEL_OR_RUN.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of sampling and of the bootstrap.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many problems of each set.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="OUT", help="Folder of the results; else a name in evals/.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Checkpoint of a run; else the newest.")] = None,
    all_checkpoints: Annotated[
        bool, typer.Option("--all-checkpoints", help="Every checkpoint that the run kept, as a curve.")
    ] = False,
    instruction: Annotated[
        str | None, typer.Option(help="none, or authors (where the data has none); else the run's, or authors.")
    ] = None,
    chat_template: Annotated[
        bool | None, typer.Option("--chat-template/--no-chat-template", help="Else the run's, or where there is one.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16; else the run's, or float32 on a CPU and bfloat16 on a GPU."),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Go on although code or packages differ from the folder's.")
    ] = False,
    rescore: Annotated[
        Path | None,
        typer.Option(metavar="FILE_OR_FOLDER", help="Judge stored generations by --mode; no model is loaded."),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="A B", help="Paired difference of two evaluations, B - A.")
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="Compare on the problems that both evaluations have.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, as they are stored.")] = False,
) -> None:
    """Evaluate a model or a run's checkpoints: avg@k, pass@j, cons@k with intervals, every completion stored.

    The defaults are the DAPO paper's evaluation. An evaluation that was interrupted goes on when the same command is
    given again.

    \b
    dapo eval Qwen/Qwen2.5-7B --data aime_2024 --data aime_2025 --engine vllm
    dapo eval runs/x --all-checkpoints
    dapo eval --rescore evals/x --mode authors
    dapo eval --compare evals/base evals/trained
    """
    from dapo_cli.cli import eval as run

    if compare is not None and rescore is not None:
        raise UserError("--compare and --rescore exclude each other; give one")
    if compare is not None:
        _refuse_unread(ctx, "--compare", COMPARE_READS)
        run.compare(*compare, common, as_json)
        return
    if rescore is not None:
        _refuse_unread(ctx, "--rescore", RESCORE_READS)
        texts = [text for text in (model, *(overrides or [])) if text is not None]
        if other := [text for text in texts if "=" not in text or not text.startswith("reward.")]:
            raise UserError(f"--rescore reads no {other[0]}: only reward.KEY=VALUE; leave it out")
        run.rescore(rescore, mode or [], texts, as_json)
        return
    if common:
        raise UserError("--common is read by --compare alone; leave it out")
    run.evaluate(
        run.options_of(
            model,
            data=tuple(data or ()),
            samples=samples,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            modes=mode or [],
            engine=engine,
            seed=seed,
            limit=limit,
            out=out,
            step=step,
            all_checkpoints=all_checkpoints,
            instruction=instruction,
            chat_template=chat_template,
            dtype=dtype,
            served_model=served_model,
            overrides=tuple(overrides or ()),
            allow_changes=allow_changes,
        ),
        as_json,
    )


def _refuse_unread(ctx: typer.Context, way: str, read: set[str]) -> None:
    """Raises UserError for what was given on the command line and is not among what this `way` reads."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name not in read and source is not None and source.name == "COMMANDLINE":
            name = parameter.opts[0] if parameter.param_type_name == "option" else ctx.params[str(parameter.name)]
            raise UserError(f"{way} does not read {name}; leave it out")
