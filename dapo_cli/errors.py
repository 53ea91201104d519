"""Exceptions meant for people: what is wrong, where, the value, and what to do."""


def first_line(error: BaseException) -> str:
    """Of the message of a library's exception; its class where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class ForPeople(Exception):
    """An error whose message says all that its reader needs. `told` where another rank prints it."""

    told = False


class UserError(ForPeople):
    """A fault in what the user gave (recipe, data, model, run folder). The CLI prints the message and exits 2."""


class Diverged(ForPeople):
    """Weights, logits or gradients are not finite any more. Exit code 3: the run cannot go on from here as it is."""

    def __str__(self) -> str:
        return (
            f"training diverged: {self.args[0]}. policy/grad_norm and policy/ratio_max in metrics.jsonl show where it "
            "began; lower optimizer.lr or raise optimizer.warmup_steps, and start a new run."
        )


class RunStopped(ForPeople):
    """The run ended early on purpose, resumable from its last checkpoint; the message says why and how. Exit code 3."""


class OutOfSync(ForPeople):
    """The engine does not compute what the learner does. Exit code 3: no step was trained on what it said since."""


class RankFailed(Exception):
    """Another rank raised what is no error meant for people; its own output has the traceback."""

    def __init__(self, rank: int, cause: str) -> None:
        super().__init__(rank, cause)

    def __str__(self) -> str:
        return f"rank {self.args[0]}: {self.args[1]}"


class ProcessFailed(Exception):
    """One of the processes that this one had started ended by a fault; the message says which, and why."""


class SelftestFailed(ForPeople):
    """The learner's updates are not those of one process on this machine. Exit code 1."""
