"""A data set to evaluate on: a file, a folder, or a data option by name, as prompts in the order of its rows."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dapo_cli.config.compose import Composer
from dapo_cli.config.load import load_recipe, load_section
from dapo_cli.config.schema import DataConfig, Instruction
from dapo_cli.config.suggest import hint
from dapo_cli.data.prompts import instructed, make_prompts, prompts_record
from dapo_cli.data.questions import DataReport, Question, load_questions
from dapo_cli.errors import UserError
from dapo_cli.evaluation.options import Options
from dapo_cli.evaluation.records import Problem
from dapo_cli.evaluation.subject import Subject, short_name
from dapo_cli.types import Prompt

PROMPT_KEYS = {field.name for field in fields(DataConfig)}


@dataclass(frozen=True)
class DataSet:
    """`too_long` prompts were dropped. `record` is its entry for a manifest; `config` says how prompts were made, and
    `own_instruction` whether its instruction is that of no option and no recipe."""

    name: str
    config: DataConfig
    own_instruction: bool
    problems: list[Problem]
    too_long: int
    record: dict[str, Any]

    @property
    def longest_prompt(self) -> int:
        """Tokens; 0 where a server makes them."""
        return max(len(problem.prompt.token_ids) for problem in self.problems)

    @property
    def instruction_lengthens(self) -> bool:
        """Whether the longest prompt holds an instruction that nobody asked for."""
        longest = max(self.problems, key=lambda problem: len(problem.prompt.token_ids)).question
        return self.own_instruction and instructed(longest, self.config) != longest.messages

    @property
    def prompt_settings(self) -> dict[str, Any]:
        """What of the section shapes prompts; the data itself is told by its fingerprints."""
        return {name: value for name, value in asdict(self.config).items() if name in PROMPT_KEYS}


def read_data_sets(options: Options, subject: Subject) -> list[DataSet]:
    """All that --data names, or the run's own `eval.data`. Raises UserError for data that cannot serve."""
    if options.data:
        found = [_read(*_section(text, options), options, subject) for text in options.data]
    else:
        found = [_read("eval.data", _own_section(options, subject), options, subject)]
    names = [data.name for data in found]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"--data: two sets are named {repeated[0]}, and results go by name; evaluate them one at a time"
        )
    return found


def _section(text: str, options: Options) -> tuple[str, DataConfig]:
    """The name and section of a --data: what exists as a file or folder, else an option of the group `data`."""
    overrides = options.of_section("data")
    if Path(text).expanduser().exists():
        paths = json.dumps([_literal(text)])
        return Path(text).stem, load_section("data", "files", [f"data.paths={paths}", *overrides])
    named = [name for name in Composer(Path.cwd() / "data").options("data") if name not in ("files", "hub")]
    if text not in named:
        raise UserError(f"--data {text}: no such file or folder, and none of {', '.join(named)}{hint(text, named)}")
    return text, load_section("data", text, overrides)


def _literal(text: str) -> str:
    """The value that OmegaConf reads as `text`: it takes `${` for a reference, and a backslash there for an escape."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)


def _own_section(options: Options, subject: Subject) -> DataConfig:
    if subject.run is None:
        raise UserError("--data is missing: name a file, a folder or a data option, such as aime_2024")
    overrides = [f"eval.{text}" for text in options.of_section("data")]
    section = load_recipe(str(subject.run.recipe_file), overrides).recipe.eval.data
    if section is None:
        raise UserError(f"{subject.run.path}: its recipe has no eval.data; give --data")
    return section


def _read(name: str, section: DataConfig, options: Options, subject: Subject) -> DataSet:
    config = replace(section, **_prompt_choices(options, subject))
    try:
        questions, report = load_questions(config)
        prompts = _prompts(questions, config, report, subject, options.limit)
    except UserError as error:
        raise UserError(f"--data {name}: {error}") from error
    by_uid = {question.uid: question for question in questions}
    prompts = prompts[: options.limit]
    problems = [Problem(by_uid[prompt.uid], prompt) for prompt in prompts]
    record = {
        "source": report.source if name == "eval.data" else name,
        "rows": report.rows,
        **prompts_record(prompts, report),
    }
    own = subject.recipe is None and options.instruction is None and "instruction" not in _given(options)
    return DataSet(short_name(name), config, own, problems, report.too_long, record)


def _prompt_choices(options: Options, subject: Subject) -> dict[str, Any]:
    """Template and instruction: as the command line says, as the run's prompts have them, or as fits the model."""
    chosen: dict[str, Any] = {}
    if subject.recipe is None:
        tokenizer = subject.pretrained.tokenizer if subject.pretrained else None
        templated = tokenizer is None or tokenizer.chat_template is not None
        chosen = {"instruction": Instruction.authors, "chat_template": templated}
    elif options.data:  # else the section is the run's own
        own = subject.recipe.eval.data or subject.recipe.data
        chosen = {"instruction": own.instruction, "chat_template": own.chat_template}
    given = _given(options)
    chosen = {name: value for name, value in chosen.items() if name not in given}
    if options.instruction is not None:
        chosen["instruction"] = options.instruction
    if options.chat_template is not None:
        chosen["chat_template"] = options.chat_template
    return chosen


def _given(options: Options) -> set[str]:
    """The keys of the section that the command line sets."""
    return {text.partition("=")[0].removeprefix("data.") for text in options.of_section("data")}


def _prompts(
    questions: Sequence[Question], config: DataConfig, report: DataReport, subject: Subject, limit: int | None
) -> list[Prompt]:
    """For a server, which has the tokenizer, texts without tokens."""
    if subject.pretrained is not None:
        return make_prompts(questions, subject.pretrained.tokenizer, config, report)
    return [
        Prompt(question.uid, _remote_text(question, config), (), question.answer, question.source)
        for question in questions[:limit]
    ]


def _remote_text(question: Question, config: DataConfig) -> str:
    text = "\n\n".join(message.content for message in instructed(question, config))
    return text if config.chat_template else f"{text}\n"
