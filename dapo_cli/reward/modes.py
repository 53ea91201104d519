"""From a recipe's reward section to a pool of verifiers. Apart from `build`, so that `dapo verify` loads no torch."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dapo_cli.config.load import load_recipe, load_section
from dapo_cli.config.schema import OPTIONS, AuthorsReward, MathReward, PythonReward, RewardConfig, StrictBoxedReward
from dapo_cli.config.suggest import hint
from dapo_cli.errors import UserError
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


def build_verifier(config: RewardConfig, function: Function | None = None) -> VerifierPool:
    """`function` runs in the place of the section's own: that of a PythonReward where it has been read already, or
    another one that needs the same modules.

    Raises UserError for a user's file that cannot be read or is no Python.
    """
    own: Function
    warm_up = None
    match config:
        case MathReward():
            own, warm_up = OfResponse(math_verifier.verify), math_verifier.warm_up
        case AuthorsReward():
            own = OfResponse(verify_authors)
        case StrictBoxedReward():
            own = OfResponse(verify_strict_boxed)
        case PythonReward():
            read = function if isinstance(function, UserFunction) else None
            user = read or read_user_function(config.path, config.function)
            own, warm_up = user, user.load
        case _:
            raise AssertionError(f"no verifier for {type(config).__name__}")
    limit = config.memory_limit_mib
    return VerifierPool(
        function or own,
        workers=config.workers,
        timeout_s=config.timeout_s,
        warm_up=warm_up,
        memory_limit_bytes=None if limit is None else limit << 20,
    )


def reward_of(mode: str | None, overrides: Sequence[str] = (), recipe: Path | None = None) -> RewardConfig:
    """The verifier that `--mode` names, on all CPUs: an option of the recipes' reward section, or a Python file
    (`my_reward.py`, `my_reward.py:verify`). None is that of a run's `recipe`, else the math verifier.

    `overrides` are `reward.KEY=VALUE`. Raises UserError for an unknown mode and for values that cannot serve.
    """
    if mode is None and recipe is not None:
        return load_recipe(str(recipe), overrides).recipe.reward
    mode = mode or "math"
    keys = [f"reward.workers={len(os.sched_getaffinity(0))}"]
    path, suffix, function = mode.rpartition(".py")
    if suffix and function[:1] in ("", ":"):
        keys += [f"reward.path={json.dumps(path + suffix)}", f"reward.function={function[1:] or 'verify'}"]
        return load_section("reward", "python", [*keys, *overrides])
    named = [name for name, option in OPTIONS["reward"].items() if option is not PythonReward]
    if mode not in named:
        raise UserError(
            f"--mode {mode}: no such mode{hint(mode, named)}; the modes are {', '.join(named)}, and "
            "FILE.py or FILE.py:FUNCTION for your own"
        )
    return load_section("reward", mode, [*keys, *overrides])


def mode_name(config: RewardConfig) -> str:
    """As `--mode` spells it; of a user's file its name without folders.

    >>> mode_name(MathReward()), mode_name(PythonReward(path="rewards/mine.py"))
    ('math', 'mine.py:verify')
    """
    if isinstance(config, PythonReward):
        return f"{Path(config.path).name}:{config.function}"
    return next(name for name, option in OPTIONS["reward"].items() if option is type(config))
