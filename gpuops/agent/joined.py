"""Whether ranks met: who was seen with a TCP connection to the rendezvous store.

A script that never forms the world it was asked for ends as well as any other; this is how that is noticed.
"""

from __future__ import annotations

import os
from typing import Iterable, Mapping

ENOUGH = 5
"""Samples without a connection that make a rank one that did not join."""
ESTABLISHED, LISTEN = "01", "0A"


class Sampler:
    """Counts looks at ranks. `port`: the rendezvous store's."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._looks: dict[int, int] = {}
        self._seen: set[int] = set()

    def sample(self, pids: Mapping[int, int]) -> set[int]:
        """Look at the ranks (rank -> pid) not seen joined yet; those that are now."""
        waiting = {rank: pid for rank, pid in pids.items() if rank not in self._seen}
        inodes: set[str] | None = None
        new = set()
        for rank, pid in waiting.items():
            family = with_children(pid)
            if inodes is None:
                inodes = store_sockets(pid, self._port)
            if not os.path.isdir(f"/proc/{pid}/fd") or inodes is None:
                continue
            self._looks[rank] = self._looks.get(rank, 0) + 1
            if any(inodes & sockets(member) for member in family):
                new.add(rank)
        self._seen |= new
        return new

    def joined(self, rank: int) -> bool | None:
        """True once seen, False after enough looks without, else None: could not tell."""
        if rank in self._seen:
            return True
        return False if self._looks.get(rank, 0) >= ENOUGH else None


def parse_table(lines: Iterable[str], port: int) -> set[str]:
    """Inodes of the sockets in a `/proc/net/tcp` that are connected to `port`, or serve it."""
    found = set()
    for line in lines:
        fields = line.split()
        if len(fields) < 10 or not fields[0].endswith(":"):
            continue
        ends = [int(end.rpartition(":")[2], 16) for end in fields[1:3]]
        if port in ends and fields[3] in (ESTABLISHED, LISTEN):
            found.add(fields[9])
    return found


def store_sockets(pid: int, port: int) -> set[str] | None:
    """As `parse_table`, in the process's network; None when it is gone."""
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}") as file:
                found |= parse_table(file, port)
        except FileNotFoundError:
            if name == "tcp":
                return None
        except OSError:
            return None
    return found


def sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process holds."""
    found: set[str] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def with_children(pid: int) -> list[int]:
    """The process and what it started from its first thread (a script behind `uv run` trains in a child)."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(child) for child in file.read().split()]
    except (OSError, ValueError):
        children = []
    return [pid] + [member for child in children for member in with_children(child)]
