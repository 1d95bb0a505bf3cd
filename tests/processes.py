"""The processes of this machine: tests look at all of them many times a second, for which psutil takes far longer."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_LINUX = Path("/proc/self/environ").exists()


def command_line(pid: int) -> list[str]:
    """Its words; none of a zombie, of one that is gone, or of somebody else's."""
    if _LINUX:
        return [os.fsdecode(word) for word in _read(pid, "cmdline").rstrip(b"\0").split(b"\0") if word]
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether it was started with this in its environment."""
    if _LINUX:
        return f"{name}={value}".encode() in _read(pid, "environ").split(b"\0")
    try:
        return psutil.Process(pid).environ().get(name) == value
    except psutil.Error:
        return False


def _read(pid: int, what: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{what}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
