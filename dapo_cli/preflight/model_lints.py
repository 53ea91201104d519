"""What is doubtful where recipe and tokenizer meet."""

from collections.abc import Iterator

from dapo_cli.config.schema import DataConfig, Recipe
from dapo_cli.preflight.findings import Finding, Level
from dapo_cli.pretrained import Pretrained


def model_lints(recipe: Recipe, pretrained: Pretrained) -> list[Finding]:
    return [*_templates(recipe, pretrained), *_ends(pretrained)]


def sections(recipe: Recipe) -> dict[str, DataConfig]:
    """The data sections that the run reads, by name."""
    return {"data": recipe.data} | ({"eval.data": recipe.eval.data} if recipe.eval.data is not None else {})


def _templates(recipe: Recipe, pretrained: Pretrained) -> Iterator[Finding]:
    has_one = pretrained.tokenizer.chat_template is not None
    for name, data in sections(recipe).items():
        if data.chat_template and not has_one:
            problem = f"the tokenizer of {pretrained.path} has no chat template"
            yield Finding(Level.ERROR, f"{name}.chat_template", "true", problem, "set it to false")
        if not data.chat_template and has_one:
            problem = f"the tokenizer of {pretrained.path} has a chat template, which prompts do without"
            remedy = "right for a base model; set it to true for one that was trained to chat"
            yield Finding(Level.NOTE, f"{name}.chat_template", "false", problem, remedy)


def _ends(pretrained: Pretrained) -> Iterator[Finding]:
    tokenizer = pretrained.tokenizer
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        problem = "the end of sequence is also the padding; harmless here, where masks come from lengths"
        remedy = "give the export another pad token for tools that mask by its id"
        yield Finding(Level.NOTE, "tokenizer.pad_token", str(tokenizer.pad_token), problem, remedy)
