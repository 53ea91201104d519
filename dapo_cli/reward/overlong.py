"""Soft overlong punishment (Eq. 13, section 3.4 of the paper)."""

from dapo_cli.config.schema import OverlongConfig
from dapo_cli.types import Completion


def soft_overlong_penalty(length: int, max_tokens: int, cache_tokens: int) -> float:
    """Eq. 13: 0 up to max_tokens - cache_tokens, then falling linearly to -1 at max_tokens, -1 beyond.

    `length` counts the completion's tokens, end of sequence included. `cache_tokens` is L_cache, 0 < L_cache < L_max.

    >>> [soft_overlong_penalty(length, 100, 20) for length in (70, 80, 90, 100, 110)]
    [0.0, 0.0, -0.5, -1.0, -1.0]
    """
    tokens_into_cache = length - (max_tokens - cache_tokens)
    if tokens_into_cache <= 0:
        return 0.0
    return -min(tokens_into_cache, cache_tokens) / cache_tokens


def buffer_start(config: OverlongConfig, max_tokens: int) -> int | None:
    """L_max - L_cache, the tokens beyond which Eq. 13 takes something off; None with `penalty: false`."""
    return max_tokens - config.cache_tokens if config.penalty else None


class SoftOverlong:
    """The shaper of Eq. 13; with `penalty: false` every penalty is 0."""

    def __init__(self, config: OverlongConfig, max_tokens: int) -> None:
        self._config = config
        self._max_tokens = max_tokens

    def penalty(self, completion: Completion) -> float:
        if not self._config.penalty:
            return 0.0
        return soft_overlong_penalty(len(completion.token_ids), self._max_tokens, self._config.cache_tokens)
