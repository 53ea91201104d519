"""The endless, shuffled, resumable sequence of prompts that a run reads."""

import hashlib
from collections.abc import Sequence

from dapo_cli.errors import UserError
from dapo_cli.types import Prompt


class PromptStream:
    """All prompts in a new order each epoch, without end.

    The order is a function of the seed, the epoch and the prompts' uids alone: neither the order of files and rows nor
    the version of a random number library changes it.

    >>> prompts = [Prompt(uid, text="?", token_ids=(1,), answer="", source="") for uid in "abc"]
    >>> stream = PromptStream(prompts, seed=0)
    >>> [prompt.uid for prompt in stream.take(4)]   # one epoch and the first of the next
    ['c', 'a', 'b', 'c']
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int):
        assert prompts, "a stream needs prompts"
        self._prompts = list(prompts)
        self._seed = seed
        self._start_epoch(0)

    @property
    def left_in_epoch(self) -> int:
        """Prompts until one comes again, 1 or more."""
        return len(self._order) - self._position or len(self._order)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts."""
        taken: list[Prompt] = []
        while len(taken) < count:
            if self._position == len(self._order):
                self._start_epoch(self._epoch + 1)
            step = self._order[self._position : self._position + count - len(taken)]
            self._position += len(step)
            taken += step
        return taken

    def give_back(self, count: int) -> None:
        """The last `count` prompts taken, all of this epoch, come again next."""
        assert count <= self._position, "prompts of an earlier epoch cannot be given back"
        self._position -= count

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "position": self._position, "prompts": len(self._prompts)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["prompts"] != len(self._prompts):
            raise UserError(
                f"the checkpoint is from a run over {state['prompts']} prompts, the data section gives "
                f"{len(self._prompts)}: resume with the data that the run began with"
            )
        self._start_epoch(state["epoch"])
        self._position = state["position"]

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0
        self._order = sorted(self._prompts, key=lambda prompt: self._rank(epoch, prompt.uid))

    def _rank(self, epoch: int, uid: str) -> bytes:
        return hashlib.sha256(f"{self._seed}/{epoch}/{uid}".encode()).digest()
