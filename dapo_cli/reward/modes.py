"""From a recipe's reward section to a pool of verifiers. Apart from `build`, so that `dapo verify` loads no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dapo_cli.config.schema import OPTIONS, AuthorsReward, MathReward, PythonReward, RewardConfig, StrictBoxedReward
from dapo_cli.reward import math_verifier
from dapo_cli.reward.authors import verify_authors, verify_strict_boxed
from dapo_cli.reward.pool import VerifierPool
from dapo_cli.reward.user_function import UserFunction, read_user_function
from dapo_cli.reward.worker import Function
from dapo_cli.types import Verdict


@dataclass(frozen=True)
class OfResponse:
    """A rule that reads no prompt, as a function for a pool."""

    rule: Callable[[str, str], Verdict]

    def __call__(self, prompt: str, completion: str, answer: str) -> Verdict:
        return self.rule(completion, answer)


def build_verifier(config: RewardConfig, user_function: UserFunction | None = None) -> VerifierPool:
    """`user_function` is the one of a PythonReward where it has been read already.

    Raises UserError for a user's file that cannot be read or is no Python.
    """
    function: Function
    warm_up = None
    match config:
        case MathReward():
            function, warm_up = OfResponse(math_verifier.verify), math_verifier.warm_up
        case AuthorsReward():
            function = OfResponse(verify_authors)
        case StrictBoxedReward():
            function = OfResponse(verify_strict_boxed)
        case PythonReward():
            function = user_function or read_user_function(config.path, config.function)
            warm_up = function.load
        case _:
            raise AssertionError(f"no verifier for {type(config).__name__}")
    limit = config.memory_limit_mib
    return VerifierPool(
        function,
        workers=config.workers,
        timeout_s=config.timeout_s,
        warm_up=warm_up,
        memory_limit_bytes=None if limit is None else limit << 20,
    )


def mode_name(config: RewardConfig) -> str:
    """As `--mode` spells it; of a user's file its name without folders.

    >>> mode_name(MathReward()), mode_name(PythonReward(path="rewards/mine.py"))
    ('math', 'mine.py:verify')
    """
    if isinstance(config, PythonReward):
        return f"{Path(config.path).name}:{config.function}"
    return next(name for name, option in OPTIONS["reward"].items() if option is type(config))
