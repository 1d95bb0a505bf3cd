"""Whether ranks met: who was seen with a TCP connection to the rendezvous store.

A script that never forms the world it was asked for ends as well as any other; this is how that is noticed.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Callable, Iterable, Mapping, NamedTuple

LOOK_S = 0.025
"""A script that only says hello keeps its world for less than a tenth of a second."""
LATE_LOOK_S = 2.0
FORMING_S = 60.0
"""How long ranks that have not joined are looked at often, in seconds."""
SHARE = 20
"""A pause lasts so many times what a look costs: a table of many connections must not take a core."""
ENOUGH_S = 1.0
"""A rank that was looked at for so long without a connection did not join."""
ESTABLISHED, TIME_WAIT, LISTEN = "01", "06", "0A"


class Sampler:
    """Looks at ranks until each was seen joined.

    `port`: the rendezvous store's; `nodes`, `ranks`: how many of this run are on this machine, which all share
    its table of connections; `clock`: seconds.
    """

    def __init__(self, port: int, nodes: int, ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._nodes = nodes
        self._ranks = ranks
        self._clock = clock
        self._since: dict[int, float] = {}
        self._until: dict[int, float] = {}
        self._seen: set[int] = set()
        self._clients: set[str] = set()
        self._living: Mapping[int, int] = {}
        self._over = threading.Event()

    def begin(self) -> None:
        """Look, in a thread of its own, until `end`."""
        threading.Thread(target=self._look, name="joined", daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def watch(self, living: Mapping[int, int]) -> set[int]:
        """Tell who lives now (rank -> pid); the ranks that were seen joined so far."""
        self._living = living
        return set(self._seen)

    def _look(self) -> None:
        began = self._clock()
        pause_s = LOOK_S
        while not self._over.wait(pause_s):
            now, spent_s = self._clock(), time.thread_time()
            self.sample(self._living)
            spent_s = time.thread_time() - spent_s  # a busy machine makes a look long, and not dear
            pause_s = max(LOOK_S if now - began < FORMING_S else LATE_LOOK_S, SHARE * spent_s)

    def sample(self, pids: Mapping[int, int]) -> None:
        """One look at the ranks (rank -> pid) that were not seen joined yet."""
        inodes: set[str] | None = None
        for rank, pid in pids.items():
            if rank in self._seen:
                continue
            family = with_children(pid)
            if inodes is None:
                inodes = self._table(pid)
            if not os.path.isdir(f"/proc/{pid}/fd") or inodes is None:
                continue
            self._until[rank] = self._clock()
            self._since.setdefault(rank, self._until[rank])
            if any(inodes & sockets(member) for member in family):
                self._seen.add(rank)

    def _table(self, pid: int | None = None) -> set[str] | None:
        rows = store_rows(pid, self._port)
        if rows is None:
            return None
        self._clients |= {row.client for row in rows if row.client}
        return {row.inode for row in rows if row.state != TIME_WAIT}

    def joined(self, rank: int) -> bool | None:
        """True once seen, or when so many connections were made that all have joined; False after a long enough
        look when none was made by anybody but torchrun itself; else None: could not tell.

        torchrun makes one connection a node, a rank one more (torch 2.13, counted); of one that was too short to
        be seen the kernel tells for another minute, though no longer whose it was.
        """
        self._table()
        if rank in self._seen or len(self._clients) >= self._nodes + self._ranks:
            return True
        looked_s = self._until.get(rank, 0.0) - self._since.get(rank, 0.0)
        unclaimed = len(self._clients) - self._nodes - len(self._seen)
        return False if looked_s >= ENOUGH_S and unclaimed <= 0 else None


class Row(NamedTuple):
    """One line of a `/proc/net/tcp` that has to do with the store; `client`: its own end, where it is the client."""

    inode: str
    state: str
    client: str


def parse_table(lines: Iterable[str], port: int) -> list[Row]:
    """What is, or was, connected to `port`, or serves it."""
    rows = []
    for line in lines:
        fields = line.split()
        if len(fields) < 10 or not fields[0].endswith(":"):
            continue
        mine, theirs = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
        if port in (mine, theirs) and fields[3] in (ESTABLISHED, TIME_WAIT, LISTEN):
            rows.append(Row(fields[9], fields[3], fields[1] if theirs == port else ""))
    return rows


def store_rows(pid: int | None, port: int) -> list[Row] | None:
    """As `parse_table`, in the process's network (None: ours); None when it is gone."""
    found: list[Row] = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid or 'self'}/net/{name}") as file:
                found += parse_table(file, port)
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
