"""Imports point one way: a module imports from its own layer's package or from layers below, never from above."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "dapo_cli"

LAYERS = [  # lowest first
    {"errors", "interrupt", "wording"},
    {"config"},
    {"types"},
    {"protocols"},
    {"distributed", "algorithm", "reward", "data", "models", "health"},
    {"learner", "rollout", "tracking"},
    {"budget", "checkpoint", "pretrained", "canary", "rounds", "tabular"},
    {"evaluation"},
    {"train", "export", "report", "inputs"},
    {"build", "rollback"},
    {"selftest", "ablation", "reproduce", "preflight", "watch"},
    {"cli"},
    {"__main__"},
]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "_recipes" not in path.parts)


def room_of(path: Path) -> str:
    """The package or module right under dapo_cli that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def height(room: str) -> int:
    return next(level for level, rooms in enumerate(LAYERS) if room in rooms)


def imported_rooms(source: str) -> set[str]:
    """Rooms that a module imports when it runs; what serves annotations only (`if TYPE_CHECKING:`) is left out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = [ast.Pass()]
    rooms = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "dapo_cli":
            rooms |= {alias.name for alias in node.names}
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        rooms |= {name.split(".")[1] for name in names if name.startswith("dapo_cli.")}
    return rooms


def test_the_walker_sees_every_form_of_import() -> None:
    source = """
import dapo_cli.a.b
from dapo_cli import c
from dapo_cli.d import e
def f():
    from dapo_cli.g import h
if TYPE_CHECKING:
    from dapo_cli.i import j
"""
    assert imported_rooms(source) == {"a", "c", "d", "g"}


def test_every_room_has_a_layer() -> None:
    rooms = {room_of(path) for path in MODULES} - {"__init__"}
    assert rooms <= set().union(*LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert imported_rooms(path.read_text()) == set()
        return
    above = {other for other in imported_rooms(path.read_text()) if other != room and height(other) >= height(room)}
    assert above == set(), f"{path.relative_to(PACKAGE)} imports from a layer that is not below it"


def test_a_check_without_a_probe_imports_no_trainer() -> None:
    for path in (PACKAGE / "preflight").glob("*.py"):
        imported = {node.module for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)}
        trainer = imported & {"dapo_cli.build", "dapo_cli.train", "dapo_cli.preflight.probe"}
        assert not trainer or path.name == "probe.py", f"{path.name} imports {trainer} before a probe is asked for"
