"""The one exception type meant for people: what is wrong, where, the value, and what to do."""


class UserError(Exception):
    """A fault in what the user gave (recipe, data, model, run folder). The CLI prints the message and exits 2."""


class RunStopped(Exception):
    """The run ended early on purpose, resumable from its last checkpoint; the message says why and how. Exit code 3."""
