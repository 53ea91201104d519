"""README and docs stay true: links, commands, keys and messages are those that exist."""

import ast
import dataclasses
import re
import shlex
import textwrap
from pathlib import Path

import pytest
import typer.main
import yaml

from dapo_cli.cli.commands import app
from dapo_cli.cli.recipe import keys
from dapo_cli.config import schema
from dapo_cli.config.keys import choice_key, options_with, shape_of
from dapo_cli.config.load import load_recipe
from dapo_cli.config.reference_page import REGENERATE, reference_page
from dapo_cli.config.shipped import recipe_names, recipes_folder
from dapo_cli.errors import UserError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SECTIONS = [field.name for field in dataclasses.fields(schema.Recipe)]
LIKE_KEYS = {  # a file's, transformers', and one that an example misspells
    "advantages.md": {"sampler.ledger"},
    "benchmarks.md": {"model.generate"},
    "troubleshooting.md": {"optimizer.lrr"},
}
KEY = re.compile(rf"(?:{'|'.join(SECTIONS)})(?:\.[a-z][a-z0-9_]*)+(?![.\w])")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pages
def test_links_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert "@@" not in text


def test_the_page_of_keys_is_what_the_schema_says() -> None:
    assert (DOCS / "keys.md").read_text() == reference_page(), f"write it again: {REGENERATE}"


def test_the_page_of_keys_has_every_key() -> None:
    text = reference_page()
    held_out = re.compile(r"eval\.data\.")  # the options of `data`, said once
    assert [key for key in options_with() if f"| `{key}` |" not in text and not held_out.match(key)] == []
    assert "| `sampling.top_p` | a number | `1.0` | above 0 and at most 1 | Nucleus share; below 1 " in text
    assert "| `data.paths` | a list, each a text | required |  | Parquet, JSON, " in text
    assert text.count("| `reward.timeout_s` |") == 1, "what all options of a group have stands once"


def test_the_command_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    keys(None, markdown=True)
    assert capsys.readouterr().out == reference_page()
    with pytest.raises(UserError, match="leave out sampler"):
        keys("sampler", markdown=True)


def test_every_page_is_in_the_menu_of_the_site() -> None:
    config = yaml.safe_load((ROOT / "scripts" / "mkdocs.yml").read_text())
    entries = [entry for group in config["nav"] for entries in group.values() for entry in entries]
    listed = [page for entry in entries for page in entry.values()]
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md")), "see nav in scripts/mkdocs.yml"


def split(text: str) -> tuple[list[str], str]:
    """A page's code blocks (indented by four, or fenced), each as it is when it stands alone, and the prose between."""
    found: list[list[str]] = []
    prose: list[str] = []
    inside = fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
            if fenced:
                found.append([])
        elif fenced:
            found[-1].append(line)
        elif line.startswith("    "):
            if not inside:
                found.append([])
            found[-1].append(line)
            inside = True
        elif line or not inside:
            inside = False
            prose.append(line)
        else:
            found[-1].append(line)
    return [textwrap.dedent("\n".join(block)).strip("\n") for block in found], "\n".join(prose)


def spans(prose: str) -> list[str]:
    """Code in running text, which may go over a line's end."""
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


def test_the_splitter_of_pages() -> None:
    page = "A `b` and `c\nd`.\n\n    e: 1\n\n      f\n\nMore:\n\n```yaml\ng: `h`\n```\n\n    i\nThe end `j`.\n"
    code, prose = split(page)
    assert code == ["e: 1\n\n  f", "g: `h`", "i"]
    assert spans(prose) == ["b", "c d", "j"]


def commands(text: str) -> list[tuple[str, bool]]:
    """(command line, whether it is a whole one): whole in a block, perhaps only named in running text."""
    code, prose = split(text)
    lines = [line.strip() for block in code for line in block.splitlines()]
    whole = [
        re.split(r"\s{2,}| #| [>|] ", line)[0] for line in lines if line.startswith("dapo ") and "<TAB>" not in line
    ]
    named = [re.split(r" [>|] ", span)[0] for span in spans(prose) if re.match(r"dapo [a-z]", span)]
    return [(line, True) for line in whole] + [(span, False) for span in named if "…" not in span]


def complaint_about(line: str, whole: bool) -> str | None:
    """What the command line says of a command, without running it; None where it would run."""
    command = typer.main.get_command(app)
    name, *rest = shlex.split(re.sub(r"[\[\]]", "", line))
    while hasattr(command, "commands"):
        if not rest and not whole:
            return None
        chosen = rest.pop(0) if rest else ""
        if chosen == "--help" or any(chosen in parameter.opts for parameter in command.params):
            return None
        if chosen not in command.commands:
            return f"no command {chosen}"
        command, name = command.commands[chosen], f"{name} {chosen}"
    try:
        command.make_context(name, list(rest))
    except Exception as error:
        placeholder = any(argument.isupper() for argument in rest)  # --step N
        forgiven = {"MissingParameter": not whole, "BadParameter": placeholder, "NoArgsIsHelpError": not whole}
        return None if forgiven.get(type(error).__name__, False) else f"{type(error).__name__}: {error}"
    values = [argument for argument in rest if re.match(r"[a-z@._]+=", argument)]
    return next((f"no key {value}" for value in values if not is_key_value(value)), None)


def is_key_value(text: str) -> bool:
    """`key=value` of a recipe, or the choice of an option that is shipped (`mine` stands for one's own)."""
    key, _, value = text.partition("=")
    groups = {choice_key(slot.group, name): slot.group for name, slot in shape_of({}).slots.items()}
    if group := (groups | {"algorithm": "algorithm"}).get(key):
        shipped = {path.stem for path in recipes_folder().joinpath(group).glob("*.yaml")}
        return value in {*schema.OPTIONS.get(group, {}), *shipped, "mine"}
    return key in options_with()


@pages
def test_commands_exist(page: Path) -> None:
    found = {line: complaint_about(line, whole) for line, whole in commands(page.read_text())}
    assert {line: complaint for line, complaint in found.items() if complaint} == {}


@pytest.mark.parametrize("line", [
    "dapo trian quickstart", "dapo train quickstart --allow-change", "dapo train", "dapo eval x -k many",
    "dapo train quickstart optimizer.lrr=1", "dapo train quickstart learner=fspd", "dapo recipe keyz",
])  # fmt: skip
def test_a_command_that_does_not_exist_is_seen(line: str) -> None:
    assert complaint_about(line, True)


@pages
def test_keys_exist(page: Path) -> None:
    theirs = {name.partition("=")[0] for row in migration_rows(page) for name in spans(row[0])}
    known = {*options_with(), *shape_of({}).sections, *LIKE_KEYS.get(page.name, ()), *theirs}
    words = [word for span in spans(split(page.read_text())[1]) for word in span.split()]
    matches = [KEY.match(word) for word in words if not word.endswith((".py", ".md", ".jsonl"))]
    named = {match.group() for match in matches if match}
    assert sorted(named - known) == []


@pages
def test_shipped_recipes_exist(page: Path) -> None:
    """What is named like one of a family of theirs."""
    like = re.compile(r"(dapo_(?!cli)|smollm2_|quickstart_)[a-z0-9_]+")
    named = {span for span in spans(split(page.read_text())[1]) if like.fullmatch(span)}
    assert sorted(named - set(recipe_names())) == []


def migration_rows(page: Path) -> list[list[str]]:
    """The rows of a migration page's tables, each (their keys, ours, what differs); of other pages none."""
    if not page.name.startswith("migrating_from_"):
        return []
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert rows and all(len(row) == 3 for row in rows)
    return rows


@pytest.mark.parametrize("page", sorted(DOCS.glob("migrating_from_*.md")), ids=lambda page: page.name)
def test_what_a_migration_page_calls_ours_is_ours(page: Path) -> None:
    """The second column: keys, `key: value`, `key=value`, and choices of options and presets."""
    odd = []
    for name in [name for row in migration_rows(page) for name in spans(row[1])]:
        key, value = re.fullmatch(r"([\w.@]+)(?:(?:: |=)(.+))?", name).groups()  # type: ignore[union-attr]
        known = is_key_value(f"{key}={value}") if value else key in options_with() or key in shape_of({}).slots
        if not known:
            odd.append(name)
    assert odd == []


def test_fields_of_trl_are_trls() -> None:
    pytest.importorskip("trl", reason="the bench extra is not installed")
    from trl import GRPOConfig

    text = (DOCS / "migrating_from_trl.md").read_text().partition("## What is no field of GRPOConfig")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name.partition("=")[0] for cell in cells for name in spans(cell)}
    assert len(named) > 60 and named <= {field.name for field in dataclasses.fields(GRPOConfig)}


def recipes_of(page: Path) -> list[str]:
    """Code blocks that are recipes, or the beginning of one."""
    return [block for block in split(page.read_text())[0] if block.startswith("defaults:")]


@pytest.mark.parametrize("page", [page for page in PAGES if recipes_of(page)], ids=lambda page: page.name)
def test_recipes_load(page: Path, tmp_path: Path) -> None:
    """An example may leave required keys out, and nothing else may be wrong with it; those of migrations are whole."""
    for number, text in enumerate(recipes_of(page)):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        try:
            load_recipe(str(file))
        except UserError as error:
            assert not page.name.startswith("migrating"), error
            faults = str(error).splitlines()[1:]
            assert [fault for fault in faults if "is missing" not in fault] == []


def text_of(node: ast.AST) -> str:
    """A string of the sources as its reader gets it, with `…` for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


def test_quoted_messages_are_said() -> None:
    """Of each message that troubleshooting quotes, with `…` in it, some string of the sources has every whole part."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "dapo_cli").rglob("*.py")]
    strings = (ast.JoinedStr, ast.Constant)
    said = "\n".join(text_of(node) for tree in trees for node in ast.walk(tree) if isinstance(node, strings))
    _, prose = split((DOCS / "troubleshooting.md").read_text())
    parts = {part.strip(" :(){};,.'") for span in spans(prose) if "…" in span for part in span.split("…")}
    whole = {part for part in parts if part.count(" ") >= 2}
    assert len(whole) > 15
    assert sorted(part for part in whole if part not in said) == []
