"""A connection to what runs inside a machine: a container on it, or a job's step behind a login node.

Every program is started by a command of the machine's own (`docker exec -i NAME`), which hands its streams on.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.transport.connection import Channel, Connection


class NestedConnection:
    """Programs inside a machine. `prefix`: the words of the command there that starts one, before the program's own.
    `modes`: the agent's modes that are started inside, and everything else beside; None: everything is inside."""

    def __init__(self, outer: Connection, prefix: Sequence[str], modes: Sequence[str] | None = None) -> None:
        self.label = outer.label
        self._outer = outer
        self._prefix = [*prefix]
        self._modes = modes

    def open(self, argv: Sequence[str], early: bytes = b"") -> Channel:
        """Start `argv` inside. Raises what the outer connection raises."""
        return self._outer.open([*self._prefix, *argv] if self._is_inside(argv) else argv, early)

    def _is_inside(self, argv: Sequence[str]) -> bool:
        is_mode = len(argv) > 3 and argv[2].endswith(".pyz")
        return self._modes is None or (is_mode and argv[3] in self._modes)

    def close(self) -> None:
        self._outer.close()
