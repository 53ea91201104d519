"""Folders in which one process writes at a time. The kernel lets go of a lock when its process dies."""

import fcntl
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dapo_cli.errors import UserError

LOOK_S = 0.2  # longer than anyone takes to look whether a lock is held


@contextmanager
def hold_lock(file: Path, key: str, *, shared: bool = False) -> Iterator[None]:
    """Lock a folder by `file` in it, with others that share it or alone; `key` names the folder in messages.

    Raises UserError naming the process that holds it, or where nothing can be written.
    """
    where = f"{key}={file.parent}"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{where}: cannot write there ({error.strerror}); give another one") from None
    _held_locks.add(descriptor)
    try:
        _take_lock(descriptor, where, key, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        _held_locks.discard(descriptor)
        os.close(descriptor)


def lock_held(file: Path) -> bool | None:
    """Whether a process works in the folder of this lock file; None where nobody can tell, as on a file system without
    locks. To know, the lock is taken for an instant, shared with others who ask."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def make_folder(path: Path, key: str = "run.dir") -> None:
    """Raises UserError where the folder cannot be; `key` names it in the message."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{key}={path}: cannot make the folder ({error.strerror}); give another one") from None


def _take_lock(descriptor: int, where: str, key: str, mode: int) -> None:
    try:
        _try_twice(descriptor, mode)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
        raise UserError(f"{where}: in use by process {holder}; wait for it, stop it, or give another {key}") from None
    except OSError as error:
        warnings.warn(f"{where}: no locks on this file system ({error.strerror}); start one process only", stacklevel=2)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} on {platform.node()}\n".encode(), 0)


def _try_twice(descriptor: int, mode: int) -> None:
    """Raises BlockingIOError where another process holds the lock, and not just looks at it (`lock_held`)."""
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(LOOK_S)
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)


def _leave_locks_to_parent() -> None:
    """A forked child shares its parent's locks, and would hold them beyond the parent's death."""
    for descriptor in _held_locks:
        os.close(descriptor)
    _held_locks.clear()


_held_locks: set[int] = set()
os.register_at_fork(after_in_child=_leave_locks_to_parent)
