"""torchrun as far as gpuops relies on it: static rendezvous, one process per rank, one failure ends all of this node.

Node 0 listens on the master port. Each node connects and is answered once all are there; then it starts its ranks with
torchrun's environment. A connection that closes early means that a node is gone. torchrun's own lines about a failure
are left out: what gpuops says of a run comes from its rank wrappers.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

KILL_AFTER_S = 30.0
"""torchrun's own patience between SIGTERM and SIGKILL."""
EXIT_BARRIER_S = 300.0
"""How long a node whose ranks ended well waits for the others, as torchrun does."""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, kind in (("nnodes", int), ("node-rank", int), ("nproc-per-node", int), ("master-addr", str),
                       ("master-port", int), ("rdzv-id", str), ("rdzv-conf", str), ("max-restarts", int),
                       ("log-dir", str)):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--no-python", action="store_true", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(argv)


class Store:
    """What node 0 listens with; its port stays open for ranks that connect to it themselves."""

    def __init__(self, port: int, nodes: int) -> None:
        self._nodes = nodes
        self._server = socket.create_server(("", port), backlog=128)
        self._joined: list[socket.socket] = []
        self._held: list[socket.socket] = []
        self._ended = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._server.accept()
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        if connection.recv(1) != b"j":
            self._held.append(connection)  # a rank of the test's own, which only connects
            return
        with self._lock:
            self._joined.append(connection)
            if len(self._joined) == self._nodes:
                self._release()
        with suppress(OSError):
            connection.recv(1)  # its ranks have ended, or it has
        with self._lock:
            self._ended += 1
            if self._ended == self._nodes:
                self._release()

    def _release(self) -> None:
        for one in self._joined:
            with suppress(OSError):
                one.sendall(b"g")


def join(options: argparse.Namespace) -> socket.socket:
    """A connection to the store once every node has one. Raises OSError, TimeoutError."""
    timeout_s = float(options.rdzv_conf.partition("timeout=")[2])
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection((options.master_addr, options.master_port), timeout=timeout_s)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.sendall(b"j")
    if connection.recv(1) != b"g":
        raise ConnectionError("node 0 ended before the world was formed")
    return connection


def environment(options: argparse.Namespace, local: int) -> dict[str, str]:
    """torchrun's variables of one rank."""
    here, node = options.nproc_per_node, options.node_rank
    error_file = os.path.join(options.log_dir, options.rdzv_id, "attempt_0", str(local), "error.json")
    os.makedirs(os.path.dirname(error_file), exist_ok=True)
    values = {
        "RANK": node * here + local, "LOCAL_RANK": local, "GROUP_RANK": node, "ROLE_RANK": node * here + local,
        "WORLD_SIZE": options.nnodes * here, "LOCAL_WORLD_SIZE": here, "GROUP_WORLD_SIZE": options.nnodes,
        "ROLE_WORLD_SIZE": options.nnodes * here, "ROLE_NAME": "default", "MASTER_ADDR": options.master_addr,
        "MASTER_PORT": options.master_port, "TORCHELASTIC_RUN_ID": options.rdzv_id,
        "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_ERROR_FILE": error_file, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
    }  # fmt: skip
    if here > 1:
        values.setdefault("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", 1))
    return {**os.environ, **{name: str(value) for name, value in values.items()}}


def end(ranks: list[subprocess.Popen[bytes]], sign: int = signal.SIGTERM) -> None:
    """Every rank is signalled, and killed when it has not ended in torchrun's time."""
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(sign)
    deadline = time.monotonic() + KILL_AFTER_S
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


class Stopped(BaseException):
    """A signal that ends torchrun."""

    def __init__(self, sign: int) -> None:
        self.sign = sign


def stop(number: int, _frame: object) -> None:
    raise Stopped(number)


def main(argv: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, stop)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        store = Store(options.master_port, options.nnodes) if options.node_rank == 0 else None
        connection = join(options)
        for local in range(options.nproc_per_node):
            ranks.append(subprocess.Popen(options.command, env=environment(options, local)))
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.05)
    except Stopped as stopped:
        end(ranks, stopped.sign)
        return 1
    end(ranks)
    if any(rank.returncode for rank in ranks):
        return 1
    with suppress(OSError, Stopped):
        connection.settimeout(EXIT_BARRIER_S)
        connection.sendall(b"d")
        connection.recv(1)
    del store  # open until every node's ranks have ended: some may connect late
    return 0


if __name__ == "__main__":
    sys.exit(main())
