"""The logins of this process: one per target, shared by all connections to it, and closed when it is not used."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Protocol

from gpuops.core.errors import NodeError
from gpuops.transport.connection import Channel
from gpuops.transport.ssh.limits import GATE, LIMITS, Gate, Limits
from gpuops.transport.ssh.openssh import SystemLogin
from gpuops.transport.ssh.paramiko_login import ParamikoLogin
from gpuops.transport.ssh.target import Target

TICK_S = 1.0
"""Time between two calls of a login's `tick`."""


class Login(Protocol):
    """What both kinds of login can do: start programs on one host."""

    target: Target

    @property
    def busy(self) -> bool:
        """Whether programs run on it."""

    def start(self, shell_command: str, early: bytes = b"") -> Channel:
        """Start a shell command on the host; `early`: the first bytes of its input. Raises NodeError."""

    def explain_failed_start(self, program: Any) -> NodeError | None:
        """The error for a program that never began; None where the far side's shell is to blame."""

    def tick(self, passed_s: float) -> None:
        """Called about every TICK_S: keeps the login alive, or notices that it is dead."""

    def close(self) -> None:
        """End it and its programs; never raises."""


class Entry:
    """A login, how many connections hold it, and for how long it has not been used."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.holders = 0
        self.idle_s = 0.0


class Pool:
    """Thread-safe. A thread ticks the logins and closes unused ones as long as there are any."""

    def __init__(self, limits: Limits = LIMITS, gate: Gate = GATE) -> None:
        self.limits = limits
        self._gate = gate
        self._entries: dict[Hashable, Entry] = {}
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None

    def hold(self, target: Target, folder: Path) -> Login:
        """The login to `target`, to be given back by `release`."""
        with self._lock:
            entry = self._entries.get(key := _key(target, folder))
            if entry is None:
                entry = self._entries[key] = Entry(self._new(target, folder))
            entry.holders += 1
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True, name="ssh watcher")
                self._watcher.start()
            return entry.login

    def release(self, target: Target, folder: Path) -> None:
        with self._lock:
            entry = self._entries.get(_key(target, folder))
            if entry is not None:
                entry.holders -= 1

    def logins(self) -> list[Login]:
        """The present logins."""
        with self._lock:
            return [entry.login for entry in self._entries.values()]

    def _new(self, target: Target, folder: Path) -> Login:
        if target.by_system:
            return SystemLogin(target, folder, self.limits, self._gate)
        return ParamikoLogin(target, self.limits, self._gate)

    def _watch(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self._lock:
                if not self._entries:
                    self._watcher = None
                    return
                entries = list(self._entries.values())
                unused = self._unused()
            for entry in entries:
                entry.login.tick(TICK_S)
            for entry in unused:
                entry.login.close()

    def _unused(self) -> list[Entry]:
        """Take out the logins that have not been used for `limits.idle_s`."""
        for entry in self._entries.values():
            entry.idle_s = 0.0 if entry.holders or entry.login.busy else entry.idle_s + TICK_S
        late = {key: entry for key, entry in self._entries.items() if entry.idle_s >= self.limits.idle_s}
        for key in late:
            del self._entries[key]
        return list(late.values())

    def close(self) -> None:
        """End every login; never raises."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.login.close()


def _key(target: Target, folder: Path) -> Hashable:
    return (target, str(folder) if target.by_system else "")


POOL = Pool()
atexit.register(POOL.close)
