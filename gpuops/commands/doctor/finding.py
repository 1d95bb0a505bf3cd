"""What was found, and the place it was found at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warning", "error"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note", "ok")
"""Worst first."""
SETUP = "setup"
"""The subject of what a provider itself says."""


@dataclass(frozen=True)
class Finding:
    level: Level
    what: str
    """The subject, for programs; each is a line of docs/doctor.md."""
    say: str
    """One sentence."""
    hint: str = ""
    """One thing to do."""
    where: str = ""
    """`this computer`, `node0`, a host's name, a provider's."""


def error(what: str, say: str, hint: str) -> Finding:
    return Finding("error", what, say, hint)


def warning(what: str, say: str, hint: str) -> Finding:
    return Finding("warning", what, say, hint)


def note(what: str, say: str, hint: str) -> Finding:
    return Finding("note", what, say, hint)


@dataclass(frozen=True)
class Examined:
    """A place, and what mode `checkup` told of it."""

    where: str
    facts: Mapping[str, Any]
    reached: bool = False
    """By logging in; else it is this computer."""
    clock: tuple[float, float] | None = None
    """Bounds of the seconds to add to its clock to get ours; None where the clock is ours."""
    artefact: str = ""
    """The agent of its node."""

    def part(self, name: str) -> Mapping[str, Any]:
        """One part of the facts; empty where its probe failed."""
        return self.facts.get(name) or {}

    def disk(self, of: str) -> Mapping[str, Any]:
        """What is known of one place on a disk: `home`, `root`, `tmp`, `shm`, `node`."""
        disks: Sequence[Mapping[str, Any]] = self.facts.get("disks") or []
        return next((disk for disk in disks if disk["of"] == of), {})

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs as in an agent's `hello`, with what only a checkup asks."""
        return [
            {**gpu, "driver": gpu.get("driver_version", ""), "memory_mb": megabytes(gpu.get("memory.total"))}
            for gpu in self.part("nvidia").get("gpus") or []
        ]

    @property
    def python(self) -> Mapping[str, Any] | None:
        """The Python that a run would take: the first with torch, or the one that was asked for."""
        pythons = self.part("pythons")
        found: Sequence[Mapping[str, Any]] = pythons.get("found") or []
        if pythons.get("asked"):
            return found[0] if found else None
        return next((one for one in found if one.get("torch")), None)


def megabytes(text: object) -> int:
    """A number as nvidia-smi prints it; 0 for `[N/A]`."""
    number = str(text or "").partition(".")[0]
    return int(number) if number.isdigit() else 0


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def size(count: float) -> str:
    """Bytes for people, in the units of `df -h` and of whoever sells GPUs."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"
