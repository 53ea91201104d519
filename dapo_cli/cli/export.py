"""`dapo export`: a checkpoint of a run as a Hugging Face folder."""

from pathlib import Path

from dapo_cli.config.load import load_recipe
from dapo_cli.errors import UserError
from dapo_cli.tracking.run_folder import RunFolder


def export(run: Path, step: int | None, out: Path) -> None:
    """Write model and tokenizer of checkpoint `step` (None: the newest) of the run folder `run` to the folder `out`.

    Raises UserError where there is no such run or checkpoint, or something lies at `out`.
    """
    folder = RunFolder(run)
    if not folder.started:
        raise UserError(f"{run}: no run folder (it has no manifest.json)")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists; give the name of a new folder")
    recipe = load_recipe(str(folder.recipe_file), []).recipe

    from dapo_cli.checkpoint import Checkpoints
    from dapo_cli.export import export as write_export
    from dapo_cli.inputs import open_model

    checkpoints = Checkpoints(folder.checkpoints, recipe.checkpoint.keep)
    found = write_export(recipe, open_model(recipe.model), checkpoints, step, out)
    print(f"step {found} of {run} is in {out}/")
