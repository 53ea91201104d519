"""`dapo check`: what a run of a recipe would do, cost and get wrong; and its cheap part, which `dapo train` says."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dapo_cli.cli.train import set_threads
from dapo_cli.config.load import load_recipe
from dapo_cli.config.schema import Recipe
from dapo_cli.preflight.findings import Level
from dapo_cli.preflight.lints import recipe_lints, worst_first
from dapo_cli.preflight.probe_result import ProbeSize

if TYPE_CHECKING:
    from dapo_cli.inputs import Inputs

MOST_WARNINGS = 4  # lines of `dapo train`
FAULTY = 2  # exit code: as of every bad input


def check(recipe: str, overrides: Sequence[str], as_json: bool, probe: ProbeSize | None = None) -> int:
    """Print the page, or the same as JSON; the exit code is 2 where an error is found.

    Raises UserError for a recipe that does not load.
    """
    loaded = load_recipe(recipe, overrides)
    if probe is not None:
        set_threads(loaded.recipe.run.threads)  # it is to be as fast as the run
    from dapo_cli.preflight import survey
    from dapo_cli.preflight.page import page_lines

    found = survey.survey(loaded)
    if probe is not None:
        survey.add_probe(found, probe)
    if as_json:
        print(json.dumps({"recipe": loaded.name} | survey.as_json(found), indent=2, allow_nan=False))
    else:
        print("\n".join(page_lines(loaded.name, found)))
    return FAULTY if found.count(Level.ERROR) else 0


def warn(name: str, recipe: Recipe, inputs: "Inputs") -> None:
    """What costs nothing to find out, on stderr before a run starts; nothing where all is well.

    Raises UserError for a reward function that fails whatever it is given.
    """
    from dapo_cli.preflight.answers import check_function
    from dapo_cli.preflight.model_lints import model_lints
    from dapo_cli.pretrained import Pretrained

    check_function(recipe, inputs.prompts, inputs.reward_function)
    findings = recipe_lints(recipe)
    if isinstance(inputs.pretrained, Pretrained):
        findings += model_lints(recipe, inputs.pretrained)
    told = [finding for finding in worst_first(findings) if finding.level is not Level.NOTE]
    for finding in told[:MOST_WARNINGS]:
        print(f"Warning: {finding.text}", file=sys.stderr)
    if len(told) > MOST_WARNINGS:
        print(f"... and {len(told) - MOST_WARNINGS} more: dapo check {name}", file=sys.stderr)
