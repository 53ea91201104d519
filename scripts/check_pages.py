"""Write docs/cluster_recipes.md: what `dapo check` says of each shipped recipe of a real model, by formula.

Models are folders with a config.json alone (scripts/model_configs), and nothing is read from the hub, so any machine
writes the same bytes.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dapo_cli.preflight.survey import Survey

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cluster_recipes.md"
RECIPES = {  # recipe -> folder of its model's configuration
    "dapo_qwen2_5_32b": "Qwen2.5-32B",
    "dapo_qwen2_5_7b": "Qwen2.5-7B",
    "dapo_qwen2_5_7b_math": "Qwen2.5-Math-7B",
    "dapo_qwen3_8b": "Qwen3-8B-Base",
    "dapo_qwen3_1_7b": "Qwen3-1.7B-Base",
    "dapo_0_5b_one_gpu": "Qwen2.5-0.5B",
    "smollm2_cpu": "SmolLM2-135M-Instruct",
}
# Which of them the hub's library says depends on when it was imported.
OFFLINE = r" \((OfflineModeIsEnabled|LocalEntryNotFoundError)\)"
INTRODUCTION = """\
# Recipes of real models, checked by formula

This page is written by `python scripts/check_pages.py`. It holds the words at the head of each recipe and what
`dapo check` says of it. Memory and FLOPs come from the model's configuration (`scripts/model_configs`), without a
weight or a network: so data, prompt lengths and chat templates are not checked here, and prompts count as
`data.max_prompt_tokens` long. On your machine, with the hub in reach, `dapo check RECIPE` checks these, too.

**What has run.** `smollm2_cpu`, on a CPU. The others load, and the arithmetic below holds; nothing of them has run on
a GPU. [scaling.md](scaling.md) has the memory formulas, [preflight.md](preflight.md) what is assumed, and a comparison
with measurement on a CPU.
"""


def page(surveys: dict[str, "Survey"]) -> str:
    """The whole page, of `surveyed()`."""
    from dapo_cli.preflight.page import page_lines

    parts = [INTRODUCTION]
    for recipe, found in surveys.items():
        rows = [f"    {row}".rstrip() for row in page_lines(recipe, found)]
        parts += [f"## {recipe}", "", *header(recipe), "", *rows, ""]
    return "\n".join(parts)


def header(recipe: str) -> Iterator[str]:
    """The recipe's first comment."""
    for line in (ROOT / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        yield line.removeprefix("# ")


def surveyed() -> dict[str, "Survey"]:
    """What `dapo check` finds, but for what depends on this checkout and this machine; the working directory must be
    the root of the checkout."""
    from dapo_cli.config.load import load_recipe
    from dapo_cli.preflight.survey import survey

    surveys = {}
    for recipe, model in RECIPES.items():
        loaded = load_recipe(recipe, [f"model.path=scripts/model_configs/{model}", "model.revision=null"])
        found = survey(loaded, has_gpu=not recipe.endswith("_cpu"))
        found.findings = [finding for finding in found.findings if finding.key != "code of dapo"]
        found.skipped = [re.sub(OFFLINE, "", text) for text in found.skipped]
        surveys[recipe] = found
    return surveys


def main() -> None:
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": empty}  # before the hub's libraries are imported
        text = page(surveyed())
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
