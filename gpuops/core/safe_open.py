"""Opens, flushes and dates what lies in an open folder: no link is followed, and nothing but plain files is opened."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

LINK_IN_THE_WAY = "a link is in the way"
HAS_HANDLES = {os.open, os.mkdir, os.unlink, os.rmdir, os.rename, os.stat} <= os.supports_dir_fd
"""Whether files can be named relative to an open folder. Windows cannot: there each folder on the way is checked just
before the access, which a process of the user could outrun, but no node."""
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
ABSENT_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
NO_FOLDER_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""What disks answer that flush files but no folders."""
JUNCTION = 0xA0000003
"""Windows' other kind of link (`IO_REPARSE_TAG_MOUNT_POINT`)."""
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a pipe in a file's place must not block us


def open_folder(at: str, above: int | None, place: str) -> int | None:
    """Open a folder; None on systems without handles. Raises OSError for a link, and for anything but a folder."""
    try:
        if HAS_HANDLES:
            return os.open(at, FOLDER, dir_fd=above)
        seen = os.lstat(at)
        if stat.S_ISDIR(seen.st_mode) and getattr(seen, "st_reparse_tag", 0) != JUNCTION:
            return None
        raise OSError(errno.ELOOP if stat.S_ISDIR(seen.st_mode) else errno.ENOTDIR, "it is no folder")
    except OSError as error:
        is_link = error.errno == errno.ELOOP or os.path.islink(place)
        raise OSError(
            errno.ELOOP if is_link else error.errno, LINK_IN_THE_WAY if is_link else error.strerror, place
        ) from error


def open_plain(name: str, flags: int, folder: int | None) -> int:
    """Open a plain file. Raises OSError for a link, a pipe, a device."""
    if not HAS_HANDLES and os.path.islink(name):
        raise OSError(errno.ELOOP, LINK_IN_THE_WAY, name)
    try:
        found = os.open(name, flags | PLAIN | NO_WAIT, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = LINK_IN_THE_WAY
        raise
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "it is no plain file", name)
    return found


def flush_file(name: str, flags: int, folder: int | None) -> None:
    """Flush a plain file; a link, and what has gone meanwhile, is passed over."""
    try:
        handle = open_plain(name, flags, folder)
    except OSError as error:
        if error.errno in (*ABSENT_ERRNOS, errno.EINVAL):
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in NO_FOLDER_FLUSH:
            raise


def set_date(name: str, folder: int | None, mtime_ns: int) -> None:
    with suppress(OverflowError, ValueError, OSError, NotImplementedError):  # a time that no file can have
        if HAS_HANDLES:
            os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=folder, follow_symlinks=False)
        else:
            os.utime(name, ns=(mtime_ns, mtime_ns))
