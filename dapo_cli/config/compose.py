"""The one place that talks to Hydra: a recipe and chosen options go in, its layers and its composition come out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from dapo_cli.config import schema
from dapo_cli.config.shipped import recipes_folder
from dapo_cli.errors import UserError

# Names inside Hydra; a user's file name never becomes one, so any file name works.
SCHEMA, RECIPE, OVERRIDES, ROOT = "dapo_schema", "dapo_recipe", "dapo_overrides", "dapo_root"


@dataclass(frozen=True)
class Layer:
    """One entry of the final defaults list. `path` is a file, or None for an option class of the schema."""

    package: str
    config_path: str
    path: Path | None

    @property
    def key(self) -> str:
        """What chooses it on a command line: `learner`, `data@eval.data`."""
        return self.group if self.group == self.package else f"{self.group}@{self.package}"

    @property
    def group(self) -> str:
        return self.config_path.rpartition("/")[0]

    @property
    def option(self) -> str:
        return self.config_path.rpartition("/")[2]


@dataclass(frozen=True)
class Choices:
    """Options chosen on the command line: in place of the recipe's own, and for groups that the recipe leaves open.

    The latter are laid below the recipe, so that it may set their keys.
    """

    replaced: dict[str, str]
    added: dict[str, str]


class Composer:
    """Hydra over one recipe: its folder comes first in the search, then the shipped recipes, then the schema."""

    def __init__(self, path: Path, defaults: list[Any]) -> None:
        self.path = path
        self.defaults = defaults
        self.folders = [path.resolve().parent, recipes_folder()]

    def groups(self) -> set[str]:
        """Names of option groups: the schema's, and the folders of option files for a section."""
        sections = [field.name for field in fields(schema.Recipe)]
        return set(schema.OPTIONS) | {name for name in sections if any(self.options_in_files(name))}

    def options(self, group: str) -> list[str]:
        built_in = list(schema.OPTIONS[group]) if group in schema.OPTIONS else []
        return sorted({*built_in, *self.options_in_files(group)})

    def options_in_files(self, group: str) -> list[str]:
        return [file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")]

    def find(self, config_path: str) -> Path | None:
        """The file that Hydra takes for a config path; None when the schema provides it."""
        files = [folder / f"{config_path}.yaml" for folder in self.folders]
        return next((file for file in files if file.is_file()), None)

    def split(self, choices: dict[str, str]) -> Choices:
        """Sort the command line's option choices by whether the recipe already makes one for that group and section."""
        if not choices:
            return Choices({}, {})
        with self._hydra({}, {}, {}):
            made = {layer.key for layer in self._defaults_list({})}
        return Choices(
            replaced={key: option for key, option in choices.items() if key in made},
            added={key: option for key, option in choices.items() if key not in made},
        )

    def layers(self, choices: Choices) -> list[Layer]:
        """The options and inherited recipes that the recipe is laid over, first to last. Raises UserError."""
        with self._hydra(choices.added, {}, {}):
            return self._defaults_list(choices.replaced)

    def compose(self, choices: Choices, body: dict[str, Any], overrides: dict[str, Any]) -> DictConfig:
        """The composed recipe; interpolations are left as they stand. Raises what Hydra raises."""
        with self._hydra(choices.added, body, overrides):
            return compose(ROOT, overrides=_assignments(choices.replaced))

    def _defaults_list(self, replaced: dict[str, str]) -> list[Layer]:
        loader = GlobalHydra.instance().config_loader()
        try:
            found = loader.compute_defaults_list(ROOT, _assignments(replaced), RunMode.RUN).defaults
        except (HydraException, ValueError) as error:
            raise UserError(_translated(error)) from error
        except RecursionError as error:
            raise UserError("defaults: a recipe inherits itself, directly or through another; rename one") from error
        own = (SCHEMA, RECIPE, OVERRIDES, ROOT)
        paths = [(entry.config_path, entry.package or "") for entry in found if entry.config_path not in own]
        return [
            Layer(package, path, self.find(path)) for path, package in paths if path and not path.startswith("hydra/")
        ]

    @contextmanager
    def _hydra(self, added: dict[str, str], body: dict[str, Any], overrides: dict[str, Any]) -> Iterator[None]:
        store = ConfigStore.instance()
        store.store(name=SCHEMA, node=schema.Recipe)
        for group, options in schema.OPTIONS.items():
            for name, option in options.items():
                store.store(group=group, name=name, node=option)
        store.store(name=RECIPE, node={"defaults": self.defaults, **body})
        store.store(name=OVERRIDES, node=overrides)
        # A recipe cannot forget its schema: the root, not the recipe, names it.
        order = [SCHEMA, *({key: option} for key, option in added.items()), RECIPE, OVERRIDES, "_self_"]
        search = [f"file://{folder}" for folder in self.folders[1:]]
        store.store(name=ROOT, node={"defaults": order, "hydra": {"searchpath": search}})
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(self.folders[0]), version_base="1.3"):
            yield


def _assignments(choices: dict[str, str]) -> list[str]:
    return [f"{key}='{option}'" for key, option in choices.items()]


def _translated(error: Exception) -> str:
    """Hydra's complaint about a defaults list, with this program's remedy."""
    first_line = str(error).strip().splitlines()[0].replace(f"'{RECIPE}'", "the recipe")
    if "appears more than once" in str(error):
        return f"defaults: {first_line}; to replace an inherited choice, write `- override GROUP: OPTION`"
    return f"defaults: {first_line}"
