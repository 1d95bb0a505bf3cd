"""Files of a project that are read whole: settings, ignore rules, requirements. Somebody else may have written them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

LARGEST = 1_000_000
"""No such file is longer. Bytes."""


def read_small(path: Path, largest: int = LARGEST) -> bytes:
    """What stands in it. Raises OSError, also for what is no file (a pipe would be waited for) or is too large."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"it is larger than {largest // 1000} kB", str(path))
    return data
