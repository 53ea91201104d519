"""Words of messages and pages."""


def counted(number: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
