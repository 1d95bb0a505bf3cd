"""The host keys that the user has accepted, in a known_hosts file of gpuops' own: kept from the moment of the answer,
whatever becomes of the login, until the last node on the host has ended, or `gpuops reap --forget`."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.errors import UsageError
from gpuops.core.files import write_atomic

if TYPE_CHECKING:
    from gpuops.transport.ssh import Target


class AcceptedKeys:
    """A line for each key, under the address and port of its host, whoever logs in there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def of(self, target: Target) -> tuple[str, ...]:
        from gpuops.transport import ssh

        return ssh.known_keys(target.host, target.port, [self.path])

    def add(self, target: Target, keys: Sequence[str]) -> None:
        """Keep keys. Where that cannot be written, they are asked for again at the next command."""
        from gpuops.transport import ssh

        name = ssh.known_hosts_name(target.host, target.port)
        with self._lock, suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(number, "w", encoding="utf-8") as file:
                file.write("".join(f"{name} {key}\n" for key in keys))

    def forget(self, region: str) -> bool:
        """Remove the keys of `user@host:port`. Returns whether there were any. Raises OSError."""
        from gpuops.transport import ssh

        try:
            target = ssh.parse_host_spec(region)
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except (UsageError, FileNotFoundError):
            return False
        name = ssh.known_hosts_name(target.host, target.port or 22)
        kept = [line for line in lines if line.split(" ", 1)[0] != name]
        if len(kept) < len(lines):
            write_atomic(self.path, "".join(kept).encode())
        return len(kept) < len(lines)
