"""A verifier of the user's own: a function in a Python file, run in the worker processes alone."""

import functools
import hashlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dapo_cli.errors import UserError
from dapo_cli.types import BARE_BOOL, Outcome, Verdict

MODULE = "dapo_reward"  # under which the file's module is known in a worker, for dataclasses and pickle


@dataclass(frozen=True)
class UserFunction:
    """`name(prompt, completion, answer) -> bool | Verdict` of the file `path`.

    `source` is the file's text when it was read: a worker that starts in the middle of a run has the run's code, not
    what the file has become. The file may import its neighbours.
    """

    path: str
    name: str
    source: bytes

    @property
    def record(self) -> dict[str, Any]:
        """The file's entry among the data of a manifest."""
        return {"section": "reward", "path": self.path, "sha256": hashlib.sha256(self.source).hexdigest()}

    def load(self) -> None:
        """Run the file. Raises UserError where that fails or gives no such function."""
        _loaded(self)

    def __call__(self, prompt: str, completion: str, answer: str) -> Verdict:
        """Raises what the function raises, and TypeError where it returns neither a bool nor a Verdict."""
        result = _loaded(self)(prompt, completion, answer)
        if isinstance(result, Verdict):
            return _checked(result)
        if hasattr(result, "item"):  # numpy's bool, which comparing its numbers gives
            result = result.item()
        if not isinstance(result, bool):
            raise TypeError(f"{self.name} in {self.path} returned {result!r:.80}: return True, False or a Verdict")
        return Verdict(Outcome.RIGHT if result else Outcome.WRONG, None, BARE_BOOL)


def read_user_function(path: str, name: str) -> UserFunction:
    """Read the file without running it. Raises UserError where it cannot be read or is no Python."""
    file = Path(path).expanduser()
    try:
        source = file.read_bytes()
        compile(source, path, "exec")
    except OSError as error:
        where = "" if file.is_absolute() else f"; paths are relative to {Path.cwd()}"
        raise UserError(f"reward.path={path}: cannot be read ({error.strerror}){where}") from error
    except SyntaxError as error:
        where = f"reward.path={path}, line {error.lineno}"
        raise UserError(f"{where}: not Python: {error.msg}; correct the file") from error
    except ValueError as error:
        raise UserError(f"reward.path={path}: not Python: {error}; correct the file") from error
    return UserFunction(path, name, source)


@functools.cache
def _loaded(function: UserFunction) -> Callable[[str, str, str], Any]:
    file = Path(function.path).expanduser().resolve()
    module = ModuleType(MODULE)
    module.__file__ = str(file)
    sys.modules[MODULE] = module
    sys.path.insert(0, str(file.parent))
    try:
        exec(compile(function.source, file, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        raise UserError(
            f"reward.path={function.path}, line {lines[-1] if lines else 1}: loading it raised "
            f"{type(error).__name__}: {error}; correct the file"
        ) from error
    found = getattr(module, function.name, None)
    if not callable(found):
        defined = ", ".join(name for name, value in vars(module).items() if callable(value) and name[0] != "_")
        raise UserError(
            f"reward.function={function.name}: {function.path} defines none of that name (it defines "
            f"{defined or 'none at all'}); write `def {function.name}(prompt, completion, answer)`, or name another"
        )
    return found


def _checked(verdict: Verdict) -> Verdict:
    texts = [verdict.rule] if verdict.extracted is None else [verdict.rule, verdict.extracted]
    if not isinstance(verdict.outcome, Outcome) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"a verdict is Verdict(Outcome, text or None, text), got {verdict!r:.200}")
    return verdict
