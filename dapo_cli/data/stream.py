"""The endless, shuffled, resumable sequence of prompts that a run reads."""

import hashlib
from collections.abc import Callable, Sequence

from dapo_cli.errors import UserError
from dapo_cli.types import Prompt

Due = Callable[[str], int]
"""Of a prompt's uid: the first epoch that has it; 0 for all."""


def always(uid: str) -> int:
    """No epoch leaves a prompt out."""
    return 0


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
        self._due: Due = always
        self._enter(epoch=0, position=0)

    def pass_over(self, due: Due) -> None:
        """From now on an epoch leaves out the prompts that are due in a later one, by their uid. What is due must not
        change for prompts that the epoch has still to come to, or a resumed run would differ."""
        self._due = due
        self.load_state_dict(self.state_dict())

    @property
    def epoch(self) -> int:
        """The one under way."""
        return self._epoch

    def begin_round(self) -> int:
        """Enter the next epoch where one is over. Returns how many prompts are left in it, 1 or more."""
        self._begin_epoch_if_over()
        return len(self._places) - self._taken

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts."""
        taken: list[Prompt] = []
        while len(taken) < count:
            self._begin_epoch_if_over()
            places = self._places[self._taken : self._taken + count - len(taken)]
            self._taken += len(places)
            taken += [self._order[place] for place in places]
        return taken

    def give_back(self, count: int) -> None:
        """The last `count` prompts taken, all of this epoch, come again next."""
        assert count <= self._taken, "prompts of an earlier epoch cannot be given back"
        self._taken -= count

    def state_dict(self) -> dict[str, int]:
        at_end = self._taken == len(self._places)
        position = len(self._order) if at_end else self._places[self._taken]
        return {"epoch": self._epoch, "position": position, "prompts": len(self._prompts)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["prompts"] != len(self._prompts):
            raise UserError(
                f"the checkpoint is from a run over {state['prompts']} prompts, the data section gives "
                f"{len(self._prompts)}: resume with the data that the run began with"
            )
        self._enter(state["epoch"], state["position"])

    def _begin_epoch_if_over(self) -> None:
        """The next epoch in which a prompt is due: one that would leave out all of them does not take place, so the
        longest unseen come first."""
        if self._taken == len(self._places):
            first_due = min(self._due(prompt.uid) for prompt in self._prompts)
            self._enter(max(self._epoch + 1, first_due), position=0)

    def _enter(self, epoch: int, position: int) -> None:
        """Go on at a place of an epoch's order, all prompts counted, whether due or not."""
        self._epoch = epoch
        self._order = sorted(self._prompts, key=lambda prompt: self._rank(epoch, prompt.uid))
        places = range(position, len(self._order))
        self._places = [place for place in places if self._due(self._order[place].uid) <= epoch]
        self._taken = 0

    def _rank(self, epoch: int, uid: str) -> bytes:
        return hashlib.sha256(f"{self._seed}/{epoch}/{uid}".encode()).digest()
