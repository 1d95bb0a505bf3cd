"""The machine's TCP connections (`/proc/net/tcp`, `/proc/net/tcp6`), and the sockets a process holds. Linux only.

A connection belongs to a process that holds a socket with its inode.
"""

from __future__ import annotations

import os
from typing import Iterable, Iterator, NamedTuple

ESTABLISHED, TIME_WAIT, LISTEN = "01", "06", "0A"


class Connection(NamedTuple):
    """One line of the table. `address` is this end as the kernel writes it, address and port in hex."""

    address: str
    port: int
    remote_port: int
    state: str
    inode: str


def parse_connections(lines: Iterable[str]) -> Iterator[Connection]:
    """The connections in the lines of a table; the heading and torn lines are skipped."""
    for line in lines:
        fields = line.split()
        if len(fields) >= 10 and fields[0].endswith(":"):
            port, remote_port = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
            yield Connection(fields[1], port, remote_port, fields[3], fields[9])


def list_connections(pid: int | None = None) -> list[Connection] | None:
    """Connections in the network namespace of a process (None: of this one).

    None where the process has ended, or there is no `/proc`.
    """
    rows: list[Connection] = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid or 'self'}/net/{name}") as file:
                rows += parse_connections(file)
        except FileNotFoundError:
            if name == "tcp":
                return None  # without IPv6 only the other table is missing
        except OSError:
            return None
    return rows


def socket_inodes(pid: int) -> set[str]:
    """Inodes of the sockets that a process holds; none where its files cannot be read."""
    inodes: set[str] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return inodes
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes
