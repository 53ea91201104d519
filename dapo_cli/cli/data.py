"""`dapo data show`: what a recipe's data sections, or a bare data file, give."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dapo_cli.config.schema import DataConfig, FilesData, ModelConfig
from dapo_cli.config.shipped import SUFFIXES as RECIPE_SUFFIXES
from dapo_cli.data.questions import DataReport, Question, load_questions
from dapo_cli.data.tables import SUFFIXES
from dapo_cli.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

QUANTILES = {"min": 0.0, "median": 0.5, "p95": 0.95, "max": 1.0}
FILE_OVERRIDES = ("data.prompt_column", "data.answer_column")


def show(recipe_or_file: str, overrides: Sequence[str], samples: int) -> None:
    """Print counts, lengths and `samples` prompts with their answers.

    A data file or folder is read by itself and needs no model; of the overrides, only the column names apply to it.
    """
    from rich.console import Console

    console = Console()
    path = Path(recipe_or_file).expanduser()
    if path.suffix.lower() in SUFFIXES or path.is_dir():
        questions, report = load_questions(_file_section(recipe_or_file, overrides))
        _print_report(console, "data", report)
        _print_questions(console, questions, samples)
    elif path.is_file() and path.suffix and path.suffix.lower() not in RECIPE_SUFFIXES:
        raise UserError(
            f"{recipe_or_file}: neither a data file ({', '.join(SUFFIXES)}) nor a recipe "
            f"({', '.join(RECIPE_SUFFIXES)}): convert or rename it"
        )
    else:
        _show_recipe(console, recipe_or_file, overrides, samples)


def _file_section(path: str, overrides: Sequence[str]) -> FilesData:
    section = FilesData(paths=[path])
    for override in overrides:
        key, equals, value = override.partition("=")
        if key not in FILE_OVERRIDES or not (equals and value):
            raise UserError(
                f"{override}: a bare data file takes only {' and '.join(f'{k}=NAME' for k in FILE_OVERRIDES)}"
            )
        setattr(section, key.removeprefix("data."), value)
    return section


def _show_recipe(console: "Console", recipe_name: str, overrides: Sequence[str], samples: int) -> None:
    from dapo_cli.config.load import load_recipe

    recipe = load_recipe(recipe_name, overrides).recipe
    sections = {"data": recipe.data} | ({"eval.data": recipe.eval.data} if recipe.eval.data else {})
    tokenizer, absence = _tokenizer_at_hand(recipe.model)
    if tokenizer is None:
        console.print(
            f"No tokenizer at hand, so questions are shown without template and tokens: {absence}", markup=False
        )
    uids = {}
    for name, section in sections.items():
        try:
            uids[name] = _show_section(console, name, section, tokenizer, samples)
        except UserError as error:
            raise UserError(f"in the section {name}: {error}") from error
    if common := set.intersection(*uids.values()) if len(uids) > 1 else set():
        console.print(f"\n{len(common)} questions are both in data and in eval.data", style="yellow")


def _show_section(
    console: "Console", name: str, section: DataConfig, tokenizer: "PreTrainedTokenizerBase | None", samples: int
) -> set[str]:
    """Print one data section; returns the uids of its prompts."""
    from dapo_cli.data.prompts import make_prompts

    questions, report = load_questions(section)
    if tokenizer is None:
        _print_report(console, name, report)
        _print_questions(console, questions, samples)
        return {question.uid for question in questions}
    prompts = make_prompts(questions, tokenizer, section, report)
    _print_report(console, name, report, section.max_prompt_tokens)
    _print_lengths(console, "tokens", [len(prompt.token_ids) for prompt in prompts])
    _print_samples(console, [(prompt.source, prompt.text, prompt.answer) for prompt in spread(prompts, samples)])
    return {prompt.uid for prompt in prompts}


def _tokenizer_at_hand(model: ModelConfig) -> "tuple[PreTrainedTokenizerBase | None, str]":
    """The recipe's tokenizer where it is on disk, else None and the reason: looking at data must not fetch a model."""
    from transformers import AutoTokenizer

    from dapo_cli.config.shipped import model_folder
    from dapo_cli.pretrained import of_folder

    try:
        model = of_folder(model)
        folder = model_folder(model.path)
        return AutoTokenizer.from_pretrained(folder, revision=model.revision, local_files_only=True), ""
    except (UserError, OSError, ValueError) as error:
        return None, str(error).strip().splitlines()[0]


def _print_report(console: "Console", name: str, report: DataReport, max_prompt_tokens: int | None = None) -> None:
    """`max_prompt_tokens` None: nothing was tokenised, so nothing is said of lengths and instructions."""
    from rich.table import Table
    from rich.text import Text

    counts = {"rows": report.rows, "exact duplicates": report.duplicates, "conflicting answers": report.conflicting}
    if max_prompt_tokens is not None:
        counts[f"longer than {max_prompt_tokens} tokens"] = report.too_long
    counts["kept"] = report.kept
    if max_prompt_tokens is not None:
        counts["kept, with tokens unknown to the model"] = report.unknown_tokens
        counts["came with the instruction"] = report.instruction_present
    console.print(Text(f"\n{name}: {report.source}", style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column()
    for label, count in counts.items():
        table.add_row(f"{count:,}", label)
    console.print(table)


def _print_questions(console: "Console", questions: Sequence[Question], samples: int) -> None:
    _print_lengths(console, "characters", [len(question.text) for question in questions])
    _print_samples(console, [(item.where, item.text, item.answer) for item in spread(questions, samples)])


def _print_lengths(console: "Console", unit: str, lengths: Sequence[int]) -> None:
    ordered = sorted(lengths)
    at = {name: ordered[round(share * (len(ordered) - 1))] for name, share in QUANTILES.items()}
    console.print(f"prompt length in {unit}: " + ", ".join(f"{name} {length:,}" for name, length in at.items()))


def _print_samples(console: "Console", samples: Sequence[tuple[str, str, str]]) -> None:
    from rich.panel import Panel
    from rich.text import Text

    for title, text, answer in samples:
        body = Text(text.rstrip("\n")) + Text("\n\nanswer: ", style="bold") + Text(answer, style="green")
        console.print(Panel(body, title=Text(title), title_align="left"))


def spread(items: Sequence[T], count: int) -> list[T]:
    """`count` items, or all there are, evenly spaced over the sequence."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]
