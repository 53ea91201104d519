"""`dapo recipe`: list, copy, show and check recipes, and look keys up."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from dapo_cli.cli import completion
from dapo_cli.cli.arguments import OverridesArgument, RecipeArgument
from dapo_cli.errors import UserError

app = typer.Typer(help="List, copy, show and check recipes.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_recipes() -> None:
    """List the shipped recipes; each name works wherever a recipe file does."""
    from dapo_cli.config.shipped import first_comment, recipe_names, shipped_recipe

    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        path = shipped_recipe(name)
        assert path
        typer.echo(f"{name:<{width}}  {first_comment(path)}")


@app.command()
def cp(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped recipe.", autocompletion=completion.shipped)],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="File or folder to copy it to.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite DEST if it exists.")] = False,
) -> None:
    """Copy a shipped recipe, as a start for one of your own."""
    from dapo_cli.config.shipped import recipe_names, shipped_recipe
    from dapo_cli.config.suggest import hint

    source = shipped_recipe(name)
    if source is None:
        raise UserError(
            f"{name}: no shipped recipe of that name{hint(name, recipe_names())} (shipped: {', '.join(recipe_names())})"
        )
    target = dest / source.name if dest.is_dir() else dest
    if target.suffix not in (".yaml", ".yml"):
        target = target.with_name(f"{target.name}.yaml")
    if target.exists() and not force:
        raise UserError(f"{target}: exists; choose another DEST or give --force")
    if not target.parent.is_dir():
        raise UserError(f"{target}: no folder {target.parent}; make it first")
    shutil.copyfile(source, target)
    typer.echo(f"copied {name} to {target}")


@app.command()
def show(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
) -> None:
    """Print every key of a recipe with its value and where that comes from: default, file, option or override.

    What it prints is itself a recipe.
    """
    from dapo_cli.config.load import load_recipe
    from dapo_cli.config.resolved import to_yaml

    typer.echo(to_yaml(load_recipe(recipe, overrides or []), with_origins=True), nl=False)


@app.command("validate")
def validate_recipes(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Recipe files or names of shipped recipes.", autocompletion=completion.recipes
        ),
    ],
) -> None:
    """Check recipes and print every problem of each; the exit code is 2 if there is any."""
    from dapo_cli.config.load import load_recipe

    failures = []
    for path in paths:
        try:
            load_recipe(path)
            typer.echo(f"ok  {path}")
        except UserError as error:
            failures.append(str(error))
    if failures:
        raise UserError("\n".join(failures))


@app.command()
def keys(
    section: Annotated[
        str | None, typer.Argument(metavar="SECTION", help="A section such as `sampler`, or the start of a key.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/keys.md: all keys, with ranges.")] = False,
) -> None:
    """List every key: type, default and meaning."""
    if markdown:
        if section is not None:
            raise UserError(f"--markdown prints the whole page: leave out {section}")
        from dapo_cli.config.reference_page import reference_page

        typer.echo(reference_page(), nl=False)
        return
    from dapo_cli.config.reference import reference_text

    typer.echo(reference_text(section), nl=False)
