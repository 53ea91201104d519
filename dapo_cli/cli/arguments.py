"""The arguments that several commands take, with what completes them."""

from pathlib import Path
from typing import Annotated

import typer

from dapo_cli.cli import completion

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe file or the name of a shipped recipe.",
        autocompletion=completion.recipes,
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=completion.runs)]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Values that replace the recipe's; `dapo recipe keys` lists the keys.",
        autocompletion=completion.overrides,
    ),
]
