"""Files that name machines, as other tools write them: node files of PBS, and host files of MPI and DeepSpeed. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

SLOTS = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*):(?P<slots>\d{1,3})")
"""MPICH's `host:4`; with a user before it, or behind brackets, the number is a port."""
SLOTS_MAX = 256
"""A higher number is a port. So is 22."""
SSH_PORT = 22
SETTINGS = re.compile(r"(\s+\w+\s*=\s*\S+)+")
"""`slots=4 max_slots=8` behind a host. A line with other words is left whole: two hosts on it are a mistake."""


def machines_of(lines: Sequence[str]) -> list[str]:
    """The machines that lines name, each once and in order, without what the lines say of slots.

    Known are a name a line; `host slots=4` and `host:4`; and PBS's node file, in which a host stands once per slot.
    """
    return list(dict.fromkeys(_without_slots(line.strip()) for line in lines if line.strip()))


def _without_slots(line: str) -> str:
    word = line.split()[0]
    if line != word and not SETTINGS.fullmatch(line[len(word) :]):
        return line
    found = SLOTS.fullmatch(word)
    if found and int(found["slots"]) <= SLOTS_MAX and int(found["slots"]) != SSH_PORT:
        return found["host"]
    return word
