"""Exclusive locks on files and folders that the system drops when the process dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equipoise.errors import DataError

FAR = 2**40  # Windows locks a byte, which no other process can then read: one beyond any content


def try_lock(handle: int) -> bool | None:
    """Lock an open file or folder until it is closed.

    Returns False if another process has the lock, and None where the file system has no locks, as
    is the case for some network file systems.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, FAR, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


@contextmanager
def locked_folder(folder: Path, in_use: str) -> Iterator[tuple[int | None, bool]]:
    """Lock a folder; yield its handle and whether the file system has locks.

    Raises `DataError` with the message `in_use` if another process has locked it. Windows cannot
    open a folder: the handle is None there.
    """
    if sys.platform == "win32":
        yield None, False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        is_locked = try_lock(handle)
        if is_locked is False:
            raise DataError(in_use)
        yield handle, bool(is_locked)
    finally:
        os.close(handle)
