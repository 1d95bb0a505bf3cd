"""The SSH library, loaded when a host is reached, without what it would bring along for nothing."""

from __future__ import annotations

import sys


def load() -> None:
    """Import paramiko.

    A quarter of what that takes goes into `invoke`, by which it runs the `Match exec` of configuration files. It
    does without where there is none; here the system's `ssh` reads those files.
    """
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
