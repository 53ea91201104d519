"""Where the recipes and models that come with the package are. Imports the standard library only."""

import re
from pathlib import Path

from dapo_cli.config.suggest import hint
from dapo_cli.errors import UserError

PACKAGE = Path(__file__).resolve().parent.parent
MODELS = PACKAGE / "models"
MODEL_PREFIX = "shipped:"
SUFFIXES = (".yaml", ".yml")
PLAN_KEY = "kind:"  # which no recipe and no option file has


def recipes_folder() -> Path:
    """A wheel carries the recipes inside the package; a checkout has them beside it."""
    installed = PACKAGE / "_recipes"
    return installed if installed.is_dir() else PACKAGE.parent / "recipes"


def recipe_names() -> list[str]:
    """Names of the shipped recipes, those in subfolders as `FOLDER/NAME`; option files are no recipes."""
    return _names_with("run:")  # an option file holds the keys of one section


def plan_names() -> list[str]:
    """Names of the shipped plans of ablations, as `FOLDER/NAME`."""
    return _names_with(PLAN_KEY)


def _names_with(key: str) -> list[str]:
    folder = recipes_folder()
    found = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.yaml") if _has_key(path, key)]
    return sorted(map(str, found))


def _has_key(path: Path, key: str) -> bool:
    return any(line.startswith(key) for line in path.read_text(encoding="utf-8", errors="replace").splitlines())


def first_comment(path: Path) -> str:
    """The first sentence of a file's comment, which says what it is for; empty where there is none."""
    return re.split(r"(?<=\.)\s", comment(path), maxsplit=1)[0]


def comment(path: Path) -> str:
    """The first paragraph of a file's comment, without Hydra's `@package` line."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text:
            break
        if not text.startswith("@package"):
            lines.append(text)
    return " ".join(lines)


def find_plan(path_or_name: str) -> Path:
    """The file meant by a path or by the name of a shipped plan; an existing file wins over a shipped name.

    Raises UserError for what is neither.
    """
    path = Path(path_or_name).expanduser()
    if path.is_file():
        return path
    stem = path_or_name.removesuffix(".yaml").removesuffix(".yml")
    if stem in plan_names():
        return recipes_folder() / f"{stem}.yaml"
    raise UserError(
        f"plan {path_or_name}: no such file{hint(path_or_name, plan_names())}\n"
        f"  shipped plans: {', '.join(plan_names())}"
    )


def shipped_recipe(name: str) -> Path | None:
    """The shipped recipe called `name`, with or without its suffix; None if there is none."""
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    return recipes_folder() / f"{stem}.yaml" if stem in recipe_names() else None


def find_recipe(path_or_name: str) -> Path:
    """The file meant by a path or by the name of a shipped recipe; an existing file wins over a shipped name.

    Raises UserError for what is neither, for a plan of an ablation, and for a folder.
    """
    path = Path(path_or_name).expanduser()
    is_file = path.is_file()
    if (is_file and _has_key(path, PLAN_KEY)) or (not is_file and path_or_name.removesuffix(".yaml") in plan_names()):
        raise UserError(f"recipe {path_or_name}: is the plan of an ablation, not a recipe: dapo ablate {path_or_name}")
    if is_file:
        return path
    shipped = shipped_recipe(path_or_name)
    if shipped:
        return shipped
    if path.is_dir():
        inside = sorted(str(file) for file in path.iterdir() if file.suffix in SUFFIXES)
        remedy = f"give one of its files: {', '.join(inside)}" if inside else "give a recipe file"
        raise UserError(f"recipe {path_or_name}: is a folder; {remedy}")
    near = [str(file) for file in path.parent.iterdir() if file.suffix in SUFFIXES] if path.parent.is_dir() else []
    raise UserError(
        f"recipe {path_or_name}: no such file{hint(path_or_name, near + recipe_names())}\n"
        f"  shipped recipes: {', '.join(recipe_names())}"
    )


def model_names() -> list[str]:
    return sorted(path.name for path in MODELS.glob("*") if (path / "config.json").is_file())


def model_folder(path: str) -> str:
    """`model.path` with `shipped:NAME` replaced by the folder inside the package; other paths come back as they are.

    Raises UserError for an unknown NAME.
    """
    if not path.startswith(MODEL_PREFIX):
        return path
    name = path.removeprefix(MODEL_PREFIX)
    if name not in model_names():
        known = ", ".join(MODEL_PREFIX + known for known in model_names()) or "none"
        raise UserError(f"model.path = {path}: no such shipped model{hint(name, model_names())} (shipped: {known})")
    return str(MODELS / name)
