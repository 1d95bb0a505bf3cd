"""Which processes there are: `/proc` on Linux, `ps` elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from typing import Iterable, Mapping, NamedTuple

PROC = os.path.exists("/proc/self/stat")


class Process(NamedTuple):
    """One living process. `start` tells it from a later one with the same number."""

    pid: int
    parent: int
    session: int
    start: str


class Marker(NamedTuple):
    """What the processes of one run carry in their environment."""

    run: str
    """`GPUOPS_RUN`: `<cluster>-<run>-<node>`."""
    stop_file: str
    """`GPUOPS_STOP_FILE`: tells runs of the same name in other folders of this machine apart."""


def table() -> dict[int, Process]:
    """Every living process by number; one that has ended and waits to be collected is not living."""
    return _from_proc() if PROC else _from_ps()


def find(pid: int) -> Process | None:
    """This process, if it lives."""
    return _read_stat(pid) if PROC else table().get(pid)


def lives(pid: int, start: str) -> bool:
    """Whether the process that was noted as (pid, start) still lives."""
    found = find(pid)
    return found is not None and found.start == start


def descendants(seen: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """Everything below `roots`, without them."""
    children = defaultdict(list)
    for process in seen.values():
        children[process.parent].append(process.pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def marked(seen: Iterable[int], markers: Iterable[Marker]) -> set[int]:
    """Those whose environment carries one of the markers; never this process itself."""
    wanted = list(markers)
    if not wanted:
        return set()
    environments = _environments(seen)
    me = os.getpid()
    return {pid for pid, text in environments.items() if pid != me and any(carries(text, mark) for mark in wanted)}


def carries(environment: bytes, marker: Marker) -> bool:
    """Whether an environment (entries that end in NUL) is that of the marker's run."""
    entries = environment.split(b"\0")
    if os.fsencode("GPUOPS_RUN=" + marker.run) not in entries:
        return False
    stop_files = [entry for entry in entries if entry.startswith(b"GPUOPS_STOP_FILE=")]
    return not stop_files or os.fsencode("GPUOPS_STOP_FILE=" + marker.stop_file) in stop_files


def catches(pid: int, sign: int) -> bool:
    """Whether the process has a handler of its own for this signal (unknown without `/proc`: no)."""
    try:
        with open(f"/proc/{pid}/status") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(masks) and bool(int(masks[0], 16) >> (sign - 1) & 1)


def parse_stat(pid: int, text: str) -> Process | None:
    """A line of `/proc/<pid>/stat`; None for a zombie. The name may hold anything, so count from its end."""
    fields = text[text.rindex(")") + 2 :].split()
    threads = int(fields[17])
    # A first thread that has left its living siblings looks like a zombie, but is not one.
    if fields[0] in "ZX" and threads <= 1:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), fields[19])


def _read_stat(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(pid, file.read())
    except (OSError, ValueError):
        return None


def _from_proc() -> dict[int, Process]:
    found = (_read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def _from_ps() -> dict[int, Process]:
    seen = {}
    for line in _ps("pid=,ppid=,sess=,stat=,lstart=").splitlines():
        fields = line.split(None, 4)
        if len(fields) == 5 and not fields[3].startswith("Z"):
            pid, parent = int(fields[0]), int(fields[1])
            session = int(fields[2]) if fields[2].isdigit() else 0
            seen[pid] = Process(pid, parent, session, fields[4])
    return seen


def _environments(pids: Iterable[int]) -> dict[int, bytes]:
    if not PROC:
        rows = (line.split(None, 1) for line in _ps("pid=,command=", "-E").splitlines())
        return {int(row[0]): os.fsencode(row[1]).replace(b" ", b"\0") for row in rows if len(row) == 2}
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                found[pid] = file.read()
        except OSError:
            pass  # gone meanwhile, or another user's
    return found


def _ps(columns: str, *flags: str) -> str:
    done = subprocess.run(
        ["ps", "-A", *flags, "-o", columns], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False
    )
    return done.stdout.decode(errors="replace")
