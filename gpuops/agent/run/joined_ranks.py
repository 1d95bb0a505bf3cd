"""Which ranks joined the rendezvous: those seen with a TCP connection to the rendezvous store.

A script that never forms the world it was started in ends like any other; only its missing connection shows it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Callable, Iterable, Mapping

from gpuops.agent.process_table import with_children
from gpuops.agent.sockets import ESTABLISHED, LISTEN, TIME_WAIT, Connection, list_connections, socket_inodes
from gpuops.agent.workers import WORKERS

SAMPLE_INTERVAL_S = 0.025
"""A script that only says hello keeps its world for less than a tenth of a second."""
LATE_SAMPLE_INTERVAL_S = 2.0
FORMING_LIMIT_S = 60.0
"""How long ranks that have not joined are sampled at the short interval."""
PAUSE_PER_COST = 20
"""A pause lasts this many times the CPU time of a sample: a table of many connections must not take a core."""
MIN_SAMPLED_S = 1.0
"""A rank that was sampled for this long without a connection did not join."""
STORE_STATES = (ESTABLISHED, TIME_WAIT, LISTEN)


class Sampler:
    """Samples ranks until each was seen joined.

    `port`: the rendezvous store's; `nodes`, `ranks`: how many of this run are on this machine, which all share
    its table of connections; `clock`: seconds.
    """

    def __init__(self, port: int, nodes: int, ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._nodes = nodes
        self._ranks = ranks
        self._clock = clock
        self._first_sampled: dict[int, float] = {}
        self._last_sampled: dict[int, float] = {}
        self._joined: set[int] = set()
        self._clients: set[str] = set()
        """Addresses of all clients of the store that were seen."""
        self._table_read_at = -LATE_SAMPLE_INTERVAL_S
        self._living: Mapping[int, int] = {}
        self._stop_requested = threading.Event()

    def start(self) -> None:
        """Start a thread that samples until `stop`."""
        WORKERS.start(self._run, "joined")

    def stop(self) -> None:
        self._stop_requested.set()

    def watch(self, living: Mapping[int, int]) -> set[int]:
        """Set the living ranks (rank -> pid). Returns the ranks that were seen joined."""
        self._living = living
        return set(self._joined)

    def _run(self) -> None:
        began = self._clock()
        pause_s = SAMPLE_INTERVAL_S
        while not self._stop_requested.wait(pause_s):
            now, cost_s = self._clock(), time.thread_time()
            self.sample(self._living)
            cost_s = time.thread_time() - cost_s  # CPU time: on a busy machine a sample takes long, but costs no more
            interval_s = SAMPLE_INTERVAL_S if now - began < FORMING_LIMIT_S else LATE_SAMPLE_INTERVAL_S
            pause_s = max(interval_s, PAUSE_PER_COST * cost_s)

    def sample(self, pids: Mapping[int, int]) -> None:
        """Check once the ranks (rank -> pid) that were not seen joined yet."""
        now = self._clock()
        inodes: set[str] | None = None
        for rank, pid in pids.items():
            if rank in self._joined:
                continue
            held = {inode for member in with_children(pid) for inode in socket_inodes(member)}
            # The table may have thousands of rows, and a script that still imports torch holds no socket.
            if inodes is None and (held or now - self._table_read_at >= LATE_SAMPLE_INTERVAL_S):
                inodes = self._store_inodes(pid)
                if inodes is None:
                    continue  # where no table can be read, nothing is known of any rank
                self._table_read_at = now
            if not os.path.isdir(f"/proc/{pid}/fd"):
                continue
            self._last_sampled[rank] = now
            self._first_sampled.setdefault(rank, now)
            if held and inodes and held & inodes:
                self._joined.add(rank)

    def _store_inodes(self, pid: int | None = None) -> set[str] | None:
        """Inodes of the connections to the store; None where the process has ended."""
        table = list_connections(pid)
        if table is None:
            return None
        rows = of_store(table, self._port)
        self._clients |= {row.address for row in rows if row.remote_port == self._port}
        return {row.inode for row in rows if row.state != TIME_WAIT}

    def joined(self, rank: int) -> bool | None:
        """Whether the rank joined; None: unknown.

        True once it was seen, or when the store has had as many clients as there are ranks and torchruns here; False
        when it was sampled for MIN_SAMPLED_S and no client is unaccounted for. torchrun opens one connection for each
        node, a rank one more (torch 2.13, counted). The kernel lists a closed connection for another minute, but not
        whose it was.
        """
        self._store_inodes()
        if rank in self._joined or len(self._clients) >= self._nodes + self._ranks:
            return True
        sampled_s = self._last_sampled.get(rank, 0.0) - self._first_sampled.get(rank, 0.0)
        unclaimed = len(self._clients) - self._nodes - len(self._joined)
        return False if sampled_s >= MIN_SAMPLED_S and unclaimed <= 0 else None


def of_store(table: Iterable[Connection], port: int) -> list[Connection]:
    """Connections to the store at `port`, open or just closed, both ends of each, and its listener."""
    return [row for row in table if port in (row.port, row.remote_port) and row.state in STORE_STATES]
