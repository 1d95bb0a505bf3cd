"""Two favours of the Linux kernel, asked for by ctypes. Elsewhere both are declined."""

from __future__ import annotations

import ctypes
import sys

SET_PDEATHSIG = 1
SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Orphaned descendants come back to this process instead of the first one of the machine."""
    return _prctl(SET_CHILD_SUBREAPER, 1)


def die_with_parent(sign: int) -> bool:
    """Get this signal when the thread that started us ends. Look at the parent afterwards: it may be gone already."""
    return _prctl(SET_PDEATHSIG, sign)


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
