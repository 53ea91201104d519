"""A run that waits for a person: a file in its folder."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from dapo_cli.interrupt import StopRequest

if TYPE_CHECKING:
    from dapo_cli.distributed.world import World

POLL_S = 0.5


def wait_until_removed(file: Path, reason: str, world: "World", stop: StopRequest) -> str | None:
    """Put `reason` into `file` and wait until the file is removed. Returns the name of a signal that asked any rank to
    stop meanwhile, None where none did.

    The main rank alone looks at the file, since a shared file system may show it late to others, and all ask it each
    POLL_S: no rank waits in a collective for longer. Collective: every rank must call.
    """
    world.on_main(lambda: file.write_text(f"{reason}\nRemove this file to go on.\n"))
    while world.on_main(file.exists):
        signal = next(filter(None, world.gather(stop.requested)), None)
        if signal:
            world.on_main(lambda: file.unlink(missing_ok=True))
            return signal
        time.sleep(POLL_S)
    return None
