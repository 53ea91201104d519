"""The one place that talks to Hydra: a recipe's `defaults` list and chosen options go in, its layers come out.

Hydra settles which files and options a recipe is laid over, and in what order. Their values it would read as YAML 1.1,
so the layers are read by `source.py` and merged here.
"""

import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dapo_cli.config import schema
from dapo_cli.config.keys import choice_key
from dapo_cli.config.shipped import recipes_folder
from dapo_cli.config.source import nest, yaml_complaint
from dapo_cli.errors import UserError

RECIPE = "dapo_recipe"  # its name inside Hydra; a user's file name never becomes one, so any file name works


@dataclass(frozen=True)
class Layer:
    """One entry of the final defaults list. `path` is a file, or None for an option class of the schema. `package` is
    the section that it fills; empty for an inherited recipe, and for a preset: an option file with keys of several
    sections (`# @package _global_`)."""

    package: str
    config_path: str
    path: Path | None

    @property
    def key(self) -> str:
        return choice_key(self.group, self.package) if self.package else self.group

    @property
    def group(self) -> str:
        return self.config_path.rpartition("/")[0]

    @property
    def option(self) -> str:
        return self.config_path.rpartition("/")[2]


class Composer:
    """What a recipe may name: files in its own folder, then the shipped ones, then the options of the schema."""

    def __init__(self, path: Path) -> None:
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

    def layers(self, defaults: list[Any], choices: dict[str, str]) -> list[Layer]:
        """The options and inherited recipes that a recipe with these `defaults` is laid over, first to last.

        `choices` (`data@eval.data` -> `hub`) replace the recipe's own; those that it leaves open come first, so that
        it may set their keys. Raises UserError.
        """
        made = {layer.key for layer in self._layers(defaults, {})} if choices else set()
        added = [{key: option} for key, option in choices.items() if key not in made]
        return self._layers([*added, *defaults], {key: option for key, option in choices.items() if key in made})

    def _layers(self, defaults: list[Any], replaced: dict[str, str]) -> list[Layer]:
        _register_options()
        search = [f"file://{folder}" for folder in self.folders[1:]]
        ConfigStore.instance().store(
            name=RECIPE, node={"defaults": ["_self_", *defaults], "hydra": {"searchpath": search}}
        )
        assignments = [f"{key}='{option}'" for key, option in replaced.items()]
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(str(self.folders[0]), version_base="1.3"):
                loader = GlobalHydra.instance().config_loader()
                found = loader.compute_defaults_list(RECIPE, assignments, RunMode.RUN).defaults
        except yaml.YAMLError as error:
            raise UserError(yaml_complaint(error)) from error
        except (HydraException, ValueError) as error:
            raise UserError(_translated(error)) from error
        except RecursionError as error:
            raise UserError("defaults: a recipe inherits itself, directly or through another; rename one") from error
        paths = [((entry.config_path or "").removesuffix(".yaml"), entry.package or "") for entry in found]
        return [
            Layer(package, path, self.find(path))
            for path, package in paths
            if path not in ("", RECIPE) and not path.startswith("hydra/")
        ]


@cache
def _register_options() -> None:
    for group, options in schema.OPTIONS.items():
        for name, option in options.items():
            ConfigStore.instance().store(group=group, name=name, node=option)


def compose(options: dict[str, type], values: dict[str, Any]) -> DictConfig:
    """The schema's defaults for these options (`eval.data` -> HubData), with `values` by dotted key laid over them.

    Interpolations are left as they stand.
    """
    config = OmegaConf.structured(schema.Recipe)
    for slot, option in options.items():
        OmegaConf.update(config, slot, option)
    return cast(DictConfig, OmegaConf.unsafe_merge(config, nest(values)))  # unsafe: `config` itself is reused


def _translated(error: Exception) -> str:
    """Hydra's complaint about a defaults list, with this program's remedy."""
    first_line = re.sub(f"'?{RECIPE}'?", "the recipe", str(error).strip().splitlines()[0])
    if "appears more than once" in str(error):
        return f"defaults: {first_line}; to replace an inherited choice, write `- override GROUP: OPTION`"
    return f"defaults: {first_line}"
