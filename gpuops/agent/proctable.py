"""Which processes there are: `/proc` on Linux, `ps` elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from typing import Iterable, Iterator, Mapping, NamedTuple

PROC = os.path.exists("/proc/self/stat")
SAME = {"LC_ALL": "C", "TZ": "UTC"}
"""For `ps`: the time at which a process started must read the same whoever asks, also after a journey."""


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
    environments, between = _environments(seen)
    me = os.getpid()
    return {
        pid for pid, text in environments.items() if pid != me and any(carries(text, mark, between) for mark in wanted)
    }


def carries(environment: bytes, marker: Marker, between: bytes = b"\0") -> bool:
    """Whether an environment, with `between` its entries, is that of the marker's run."""
    text = between + environment + between

    def has(entry: str) -> bool:
        return between + os.fsencode(entry) + between in text

    if not has("GPUOPS_RUN=" + marker.run):
        return False
    return between + b"GPUOPS_STOP_FILE=" not in text or has("GPUOPS_STOP_FILE=" + marker.stop_file)


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
    for pid, text in _ps("ppid=,stat=,lstart="):
        fields = text.split(None, 2)
        if len(fields) == 3 and not fields[1].startswith("Z"):
            seen[pid] = Process(pid, int(fields[0]), _session(pid), fields[2])
    return seen


def _session(pid: int) -> int:
    """Asked of the kernel: what `ps` of macOS calls a session is an address, or 0."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0  # gone meanwhile


def _environments(pids: Iterable[int]) -> tuple[dict[int, bytes], bytes]:
    """By number, and what stands between the entries."""
    if not PROC:
        return {pid: os.fsencode(text) for pid, text in _ps("command=", "-E")}, b" "
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                found[pid] = file.read()
        except OSError:
            pass  # gone meanwhile, or another user's
    return found, b"\0"


def _ps(columns: str, *flags: str) -> Iterator[tuple[int, str]]:
    """What `ps` says of each process by number, itself excepted: a child of ours, it would never be gone."""
    process = subprocess.Popen(
        ["ps", "-A", "-ww", *flags, "-o", "pid=," + columns],
        env={**os.environ, **SAME},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        out, _ = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    for line in os.fsdecode(out).splitlines():
        pid, _, text = line.strip().partition(" ")
        if pid.isdigit() and int(pid) != process.pid:
            yield int(pid), text.strip()
