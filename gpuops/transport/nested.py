"""A connection to what runs inside a machine: a container on it, or a job's step behind a login node.

Every program is started by a command of the machine's own (`docker exec -i NAME`), which hands its streams on.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.transport.connection import Channel, Connection


class NestedConnection:
    """Programs inside a machine. `prefix`: the words of the command there that starts one, before the program's own."""

    def __init__(self, outer: Connection, prefix: Sequence[str]) -> None:
        self.label = outer.label
        self._outer = outer
        self._prefix = [*prefix]

    def open(self, argv: Sequence[str]) -> Channel:
        """Start `argv` inside. Raises what the outer connection raises."""
        return self._outer.open([*self._prefix, *argv])

    def close(self) -> None:
        self._outer.close()
