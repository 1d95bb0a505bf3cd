"""Locks between processes: a file that one holder at a time has locked, and that is free when the holder has died.

Done as filelock does it, with flock(2) on the same files: earlier gpuops and this one exclude each other. Where there
is no flock (Windows; some clusters' shared disks), filelock itself does it. It is not used everywhere because it
imports asyncio and ssl: 40 ms of the 200 ms that a command takes to begin.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

POLL_INTERVAL_S = 0.05
HELD = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)
"""How flock says that somebody else has the lock; some file systems use the first."""


class LockTimeout(TimeoutError):
    """Another holder kept the lock for as long as it was waited for."""


@contextmanager
def file_lock(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock of a file, which is created and stays. Not reentrant. Raises LockTimeout, OSError."""
    lock = _lock_by_library if sys.platform == "win32" else _lock
    unlock = lock(path, timeout_s)
    try:
        yield
    finally:
        unlock()


def _lock_by_library(path: Path, timeout_s: float) -> Callable[[], None]:
    """Lock as filelock does; what unlocks. Raises LockTimeout, OSError."""
    from filelock import FileLock, SoftFileLock, Timeout

    # On Unix, filelock's own way from FileLock to a soft lock excludes nobody (3.32): it takes a holder's file for its
    # own attempt's, and removes it.
    has_locks = sys.platform == "win32"
    lock = FileLock(path) if has_locks else SoftFileLock(path.with_name(path.name + ".soft"))
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout as error:
        raise LockTimeout(str(path)) from error
    return lock.release


if sys.platform != "win32":

    def _lock(path: Path, timeout_s: float) -> Callable[[], None]:
        """Lock with flock; what unlocks. Raises LockTimeout, OSError."""
        import fcntl

        deadline = time.monotonic() + timeout_s
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                if error.errno == errno.ENOSYS:
                    return _lock_by_library(path, timeout_s)
                if error.errno not in HELD:
                    raise
            else:
                if os.fstat(fd).st_nlink:
                    return partial(os.close, fd)
                os.close(fd)  # the file was removed meanwhile: this lock excludes nobody
                continue
            if time.monotonic() >= deadline:
                raise LockTimeout(str(path))
            time.sleep(POLL_INTERVAL_S)
