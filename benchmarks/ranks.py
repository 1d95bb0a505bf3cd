"""The ranks of a world, started one by one as torchrun would, and what they told: figures, last words, memory."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import PYTHON, Failed

HANG_S = 300.0
_BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_FIGURE = re.compile(r" *([a-z][a-z/ -]*?)  +([\d.,]*\d)( ?)(%|[kMG]?B\b|ms\b)?")


@dataclass(frozen=True)
class Place:
    """Where a rank runs."""

    enter: Sequence[str] = ()
    """What stands before its command."""
    address: str = "127.0.0.1"
    interface: str = "lo"


HERE = Place()


@dataclass(frozen=True)
class Ran:
    said: str
    """By rank 0, on stdout."""
    peaks: Sequence[int]
    """The most memory that each rank had, in bytes."""

    def text(self, name: str) -> str:
        """A figure of `programs/step_cost.py` with its unit: `7,825`, `32%`, `8.18 ms`."""
        return self._figure(name, ("", "%", "ms"))

    def number(self, name: str) -> float:
        return float(self.text(name).split()[0].rstrip("%").replace(",", ""))

    def held(self, name: str) -> str:
        """Of its figures for memory: `153.1 kB`."""
        return self._figure(name, _BYTES)

    def bytes(self, name: str) -> float:
        number, unit = self.held(name).split()
        return float(number) * _BYTES[unit]

    def _figure(self, name: str, units: Container[str]) -> str:
        for line in self.said.splitlines():
            found = _FIGURE.match(line)
            if found and found[1] == name and (found[4] or "") in units:
                return found[2] + found[3] + (found[4] or "")
        raise Failed(f"no {name} was told")


def threads_for(ranks: int) -> int:
    """Threads of each of so many ranks on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def run_ranks(argv: Sequence[object], places: Sequence[Place], nodes: int = 1) -> Ran:
    """A program on every place, together and to the end, in a folder of its own. Raises Failed."""
    local = len(places) // nodes
    common = {name: value for name, value in os.environ.items() if not name.startswith(("GPUOPS_", "PYTHON"))}
    common |= {"WORLD_SIZE": str(len(places)), "LOCAL_WORLD_SIZE": str(local), "MASTER_ADDR": places[0].address}
    common |= {"MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": str(threads_for(len(places)))}
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        try:
            for rank, place in enumerate(places):
                mine = {"RANK": str(rank), "LOCAL_RANK": str(rank % local), "GLOO_SOCKET_IFNAME": place.interface}
                words = [*place.enter, PYTHON, *(str(word) for word in argv)]
                with open(Path(folder, f"out{rank}"), "wb") as out, open(Path(folder, f"err{rank}"), "wb") as err:
                    env = {**common, **mine}
                    started.append(subprocess.Popen(words, cwd=folder, env=env, stdout=out, stderr=err))
            peaks = _wait(started, Path(folder))
        finally:
            for process in started:
                if process.returncode is None:
                    process.kill()
                    process.wait()
        return Ran(Path(folder, "out0").read_text(), peaks)


def _wait(started: Sequence[subprocess.Popen[bytes]], folder: Path) -> list[int]:
    """Each rank's peak of memory. One that fails ends all: the others would wait for it."""
    deadline = time.monotonic() + HANG_S
    peaks: dict[int, int] = {}
    while len(peaks) < len(started):
        for rank, process in enumerate(started):
            usage = None if rank in peaks else _ended(process)
            if usage is None:
                continue
            peaks[rank] = usage.ru_maxrss * 1024
            if process.returncode:
                last = (folder / f"err{rank}").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise Failed(f"rank {rank} failed: {last[-1]}")
        if time.monotonic() > deadline:
            raise Failed(f"the ranks have not ended after {HANG_S:.0f} s")
        time.sleep(0.02)
    return [peaks[rank] for rank in range(len(started))]


def _ended(process: subprocess.Popen[bytes]) -> Any:
    """What a process has used, once it is gone: only the wait itself tells it, and only of this one process."""
    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    if not pid:
        return None
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
