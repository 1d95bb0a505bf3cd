"""The system's own `ssh`, and what differs between systems."""

from __future__ import annotations

import os
import shutil

from gpuops.errors import UsageError

SOCKET_LIMIT = 104
"""Bytes that a socket's path may have on the strictest system (macOS), its end included."""
SOCKET_SPARE = 18
"""What `ssh` appends to the path of a control socket while it makes it."""


def ssh_program() -> str:
    """Where `ssh` is. Raises UsageError."""
    found = shutil.which("ssh")
    if found is None:
        raise UsageError("this takes the program `ssh`, which is not installed here", "install OpenSSH's client")
    return found


def shares_logins() -> bool:
    """Whether one login of `ssh` can carry several programs (ControlMaster): not on Windows."""
    return os.name != "nt"


def fits_socket(path: str) -> bool:
    return len(os.fsencode(path)) + SOCKET_SPARE <= SOCKET_LIMIT
