"""The processes under this one: which are the agent's own helpers, which are a run's, and how they are ended.

As a subreaper this process becomes the parent of every orphan below it, so nothing that a run starts
can leave. What it started for itself (`helper`) is told from a run's by the session it runs in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence

from gpuops.agent.proctable import Marker, Process, descendants, marked, table

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
