"""Two favours of the Linux kernel, asked for by ctypes. Elsewhere both are declined."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple, Sequence

SET_PDEATHSIG = 1
SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Orphaned descendants come back to this process instead of the first one of the machine."""
    return _prctl(SET_CHILD_SUBREAPER, 1)


def die_with_parent(sign: int) -> bool:
    """Get this signal when the thread that started us ends. Look at the parent afterwards: it may be gone already."""
    return _prctl(SET_PDEATHSIG, sign)


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


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


POLITE_S = 2.0
"""How long what is left of a run may take to follow SIGTERM, in seconds."""
LIMIT_S = 60.0
"""How long is waited for killed processes to be gone (one may hang in a driver), in seconds."""
LAST_S = 10.0
"""How long those who record how the others ended may take to, on a busy machine with a slow disk."""

_FORK = threading.RLock()
"""Held from fork to registration, and while it is decided whose a process is."""
_STARTED: dict[int, subprocess.Popen[bytes]] = {}
"""Children that a Popen waits for; everybody else's are collected by `reap`."""
_HELPERS: dict[int, subprocess.Popen[bytes]] = {}
"""Leaders of the helpers' sessions. The number of a session is not given out anew while it has a member."""


def start(argv: Sequence[str], **popen: Any) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own; its exit code is its Popen's, not the reaper's."""
    popen["start_new_session"] = True
    with _FORK:
        process: subprocess.Popen[bytes] = subprocess.Popen(list(argv), **popen)
        for pid in [pid for pid, started in _STARTED.items() if started.returncode is not None]:
            del _STARTED[pid]
        _STARTED[process.pid] = process
    return process


def helper(argv: Sequence[str], **popen: Any) -> subprocess.Popen[bytes]:
    """Start a child that belongs to the agent: the end of a run leaves it and what it starts alone."""
    with _FORK:
        process = start(argv, **popen)
        _HELPERS[process.pid] = process
    return process


def reap() -> None:
    """Collect ended children that nobody waits for (orphans that came to us)."""
    while hasattr(os, "waitid"):
        with _FORK:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or _is_waited_for(found.si_pid):
                return
            try:
                os.waitpid(found.si_pid, os.WNOHANG)
            except ChildProcessError:
                pass  # whoever started it was quicker: it was collected between our two looks


def _is_waited_for(pid: int) -> bool:
    process = _STARTED.get(pid)
    if process is not None and process.returncode is not None:
        del _STARTED[pid]  # its own end was collected: this is another process with its number
        return False
    return process is not None


def of_run(markers: Collection[Marker]) -> set[int]:
    """The living processes of a run: all descendants but the helpers', and whoever carries the marker."""
    with _FORK:
        seen = table()
        mine = descendants(seen, [os.getpid()]) - _of_helpers(seen)
    return mine | marked(seen, markers)


def below(markers: Collection[Marker]) -> set[int]:
    """All living descendants, helpers too, and whoever carries a marker."""
    seen = table()
    return descendants(seen, [os.getpid()]) | marked(seen, markers)


def helpers() -> set[int]:
    """The agent's own helpers that live, and what they started."""
    with _FORK:
        return _of_helpers(table())


def _of_helpers(seen: Mapping[int, Process]) -> set[int]:
    members = {process.pid for process in seen.values() if process.session in _HELPERS}
    sessions = {seen[pid].session for pid in members}
    for pid in [pid for pid, process in _HELPERS.items() if process.poll() is not None and pid not in sessions]:
        del _HELPERS[pid]
    return members | descendants(seen, members)


def send(pids: Iterable[int], sign: int) -> None:
    """Signal each of them; one that is gone, or not ours to signal, is passed over."""
    for pid in pids:
        try:
            os.kill(pid, sign)
        except (ProcessLookupError, PermissionError):
            pass


def end_all(
    find: Callable[[], set[int]],
    polite_s: float = POLITE_S,
    limit_s: float = LIMIT_S,
    last: Callable[[], set[int]] = set,
) -> int:
    """SIGTERM, then SIGKILL, to what `find` finds, until it finds nothing; how many are left after `limit_s`.

    `last` are ended only when they alone remain: they record how the others ended.
    """
    begun = time.monotonic()
    others_gone = None
    if polite_s:
        send(find() - last(), signal.SIGTERM)
    while True:
        reap()
        left = find() or find()  # twice: what was forked behind one scan's back is seen by the next
        waited = time.monotonic() - begun
        if not left or waited > limit_s:
            return len(left)
        spared = left & last()
        others_gone = (others_gone or waited) if left == spared else None
        if waited >= polite_s:
            send(left if others_gone is not None and waited - others_gone > LAST_S else left - spared, signal.SIGKILL)
        time.sleep(0.05)
