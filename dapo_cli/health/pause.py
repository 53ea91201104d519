"""A run that waits for a person: a file in its folder, which all ranks see."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from dapo_cli.interrupt import StopRequest

if TYPE_CHECKING:
    from dapo_cli.distributed.world import World

POLL_S = 0.5
SHOWN_WITHIN_S = 10.0  # a shared file system may take a while to show a new file


def wait_until_removed(file: Path, reason: str, world: "World", stop: StopRequest) -> str | None:
    """Put `reason` into `file` and wait until the file is removed. Returns the name of a signal that asked any rank to
    stop meanwhile, None where none did.

    No rank waits in a collective, which could time out: one that is signalled removes the file, so that all go on.
    Collective: every rank must call.
    """
    world.on_main(lambda: file.write_text(f"{reason}\nRemove this file to go on.\n"))
    deadline = time.monotonic() + SHOWN_WITHIN_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    world.barrier()
    while file.exists():
        if stop.requested:
            file.unlink(missing_ok=True)
        else:
            time.sleep(POLL_S)
    return next(filter(None, world.gather(stop.requested)), None)
