"""Heartbeats of the processes that own clusters and runs: files in the home, which other processes judge them by.

A pid means something only in the place where it was given: in another container, or on another computer with the same
home, it is some other process or none. There a process is judged by its last heartbeat. At its own place the system is
asked; but one that is stopped (Ctrl-Z) does nothing, and counts as dead once its heartbeat is old.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpuops.agent.machine_resources import boot_id
from gpuops.agent.node import read_text
from gpuops.core.files import write_atomic
from gpuops.core.platform import HERE
from gpuops.core.polling import Clock
from gpuops.core.processes import Activity, Identity, myself

FOLDER = "owners"
BEAT_INTERVAL_S = 10.0
SILENCE_MAX_S = 60.0
"""A process that is stopped, or that runs at another place, is taken for dead once its last heartbeat is older."""
FORGOTTEN_S = 86400.0
"""A heartbeat file that is older was left by a process that was killed, and is removed by the next that begins."""


@dataclass(frozen=True)
class Place:
    """Where a pid means something. Short hashes; empty where the system does not tell."""

    machine: str = ""
    boot: str = ""
    """Of one start of the machine."""
    namespace: str = ""
    """Of pids: a container has its own."""

    def is_here(self) -> bool:
        mine = here()
        return (self.boot, self.namespace) in ((mine.boot, mine.namespace), ("", ""))

    def has_restarted(self) -> bool:
        """Whether it is this machine before its last start: nothing of then lives."""
        return self.machine == here().machine and self.boot != here().boot


@dataclass(frozen=True)
class Pulse:
    """When, and where, a process last said that it works."""

    place: Place
    at: float
    """`time.monotonic()`, which all processes since one start of a machine share: no clock that is set changes it."""
    utc: float
    """UTC seconds, for other machines."""

    def silent_s(self, monotonic: float, utc: float) -> float:
        """The seconds since; negative for what comes from the future."""
        return monotonic - self.at if self.place.boot == here().boot else utc - self.utc

    def document(self) -> dict[str, object]:
        place = [self.place.machine, self.place.boot, self.place.namespace]
        return {"place": place, "at": self.at, "utc": self.utc}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Pulse:
        """Raises KeyError, TypeError, ValueError."""
        machine, boot, namespace = map(str, document.get("place") or ("", "", ""))
        return cls(Place(machine, boot, namespace), float(document["at"]), float(document.get("utc") or 0.0))


@cache
def here() -> Place:
    """This process's place. Only on Linux do others share a home with pids of their own."""
    if HERE.kind != "linux":
        return Place()
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return Place(_digest(read_text("/etc/machine-id") + socket.gethostname()), _digest(boot_id()), _digest(namespace))


def pulse() -> Pulse:
    """This process's, now."""
    return Pulse(here(), time.monotonic(), time.time())


def is_alive(process: Identity, last: Pulse | None, monotonic: float, utc: float) -> bool:
    """Whether a process does what it has begun. `last`: its last heartbeat; None where it wrote none, as one of an
    earlier gpuops: then what the system says of its pid decides alone."""
    if last is None or last.place.is_here():
        activity = process.activity()
        if activity is not Activity.STOPPED or last is None:
            return activity is not Activity.ENDED
    elif last.place.has_restarted():
        return False
    return -SILENCE_MAX_S <= last.silent_s(monotonic, utc) <= SILENCE_MAX_S


def lives(process: Identity) -> bool:
    """`is_alive` of an owner process, by the heartbeat that it writes."""
    return is_alive(process, read(process), time.monotonic(), time.time())


def read(process: Identity) -> Pulse | None:
    """The last heartbeat of an owner process; None where there is none that can be read."""
    if process.beats is None:
        return None
    try:
        return Pulse.parse(json.loads(_path(process.beats, process).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


class Heart:
    """The heartbeat of this process in one home, which begins with it: a thread writes it for as long as the process
    is not stopped. A full disk keeps no process from its work."""

    def __init__(self, home: Path, since_boot: Callable[[], float] | None = None) -> None:
        self.process = myself()
        self._folder = home / FOLDER
        self._since_boot = since_boot or Clock().since_boot
        self._at = self._since_boot()
        """Of the last heartbeat that was written. The time that this computer slept counts: another one may look."""
        self._was_silent = False

    def was_silent(self) -> bool:
        """Whether this process was stopped, or could write no heartbeat, for so long that others may have taken over
        what it owns."""
        return self._was_silent or self._since_boot() - self._at > SILENCE_MAX_S

    def beat(self) -> None:
        self._was_silent = self.was_silent()
        at = self._since_boot()
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            write_atomic(_path(self._folder, self.process), json.dumps(pulse().document()).encode())
            self._at = at

    def start(self) -> None:
        self.beat()
        _forget_old(self._folder)
        atexit.register(self._end)
        threading.Thread(target=self._go_on, daemon=True, name="heartbeat").start()

    def _go_on(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_INTERVAL_S):
            self.beat()

    def _end(self) -> None:
        with suppress(OSError):
            _path(self._folder, self.process).unlink(missing_ok=True)


@cache
def started_heart(home: Path) -> Heart:
    """The heart of this process in a home, which beats."""
    heart = Heart(home)
    heart.start()
    return heart


def _forget_old(folder: Path) -> None:
    with suppress(OSError):
        for entry in os.scandir(folder):
            if time.time() - entry.stat().st_mtime > FORGOTTEN_S:
                os.unlink(entry.path)


def _path(folder: Path, process: Identity) -> Path:
    return folder / f"{process.pid}-{process.start:.2f}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8] if text else ""
