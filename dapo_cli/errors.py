"""The one exception type meant for people: what is wrong, where, the value, and what to do."""


class UserError(Exception):
    """A fault in what the user gave (recipe, data, model, run folder). The CLI prints the message and exits 2."""


class Diverged(Exception):
    """Weights, logits or gradients are not finite any more. Exit code 3: the run cannot go on from here as it is."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"training diverged: {what}. policy/grad_norm and policy/ratio_max in metrics.jsonl show where it "
            "began; lower optimizer.lr or raise optimizer.warmup_steps, and start a new run."
        )


class RunStopped(Exception):
    """The run ended early on purpose, resumable from its last checkpoint; the message says why and how. Exit code 3."""
