"""Our own processes: starting, collecting and ending them, and those of a run.

Two kernel features of Linux (`prctl` by ctypes) give a run's orphans back to the agent, and let a process learn that
its parent has ended. macOS has neither.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence, Union

from gpuops.agent.process_table import Marker, Process, descendants, find_marked, list_processes

SET_PDEATHSIG = 1
SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Make this process the parent of its orphaned descendants, instead of the machine's first process."""
    return _prctl(SET_CHILD_SUBREAPER, 1)


def die_with_parent(sign: int) -> bool:
    """Receive this signal when the thread that started us ends. Check the parent afterwards: it may be gone already."""
    return _prctl(SET_PDEATHSIG, sign)


def _prctl(option: int, value: int) -> bool:
    """Whether the kernel did it."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes  # slow to load: most programs of the agent do without

    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


TERM_GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL for the remains of a run."""
KILL_LIMIT_S = 60.0
"""Time that killed processes may take to end: one may hang in a driver."""
RECORDER_GRACE_S = 10.0
"""Time for the processes that record how the others ended, on a busy machine with a slow disk."""
FIRST_END_POLL_S, END_POLL_INTERVAL_S = 0.01, 0.05
"""Killed processes are mostly gone at the first look. Each look reads all of `/proc`."""
HUNG_OUTPUT_LIMIT_S = 1.0
"""Time for the output of a killed program: one that hangs in the kernel (a dead NFS, a driver) never closes it."""


class ForkedChild:
    """A child that runs no other program than we do; as much of Popen as a child's owner needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or the signal's negative number; None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.returncode


Child = Union["subprocess.Popen[bytes]", ForkedChild]
_FORK = threading.RLock()
"""Held from fork to registration, and while it is decided to whom a process belongs."""
_STARTED: dict[int, Child] = {}
"""Children that are waited for by these; `reap_orphans` collects all others."""
_HELPERS: dict[int, subprocess.Popen[bytes]] = {}
"""Leaders of the helpers' sessions. The kernel does not reuse a session's number while it has a member."""


def register(child: Child) -> None:
    """Leave a child's exit code to its owner: `reap_orphans` does not collect it."""
    for pid in [pid for pid, started in _STARTED.items() if started.returncode is not None]:
        del _STARTED[pid]
    _STARTED[child.pid] = child


def forget_children() -> None:
    """In a process that was forked: its parent's are none of its own."""
    _STARTED.clear()
    _HELPERS.clear()


def start_child(argv: Sequence[str], **popen: Any) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own; its Popen collects its exit code."""
    popen["start_new_session"] = True
    with _FORK:
        process: subprocess.Popen[bytes] = subprocess.Popen(list(argv), **popen)
        register(process)
    return process


def start_helper(argv: Sequence[str], **popen: Any) -> subprocess.Popen[bytes]:
    """Start a child that belongs to the agent: the end of a run does not touch it or its descendants."""
    with _FORK:
        process = start_child(argv, **popen)
        _HELPERS[process.pid] = process
    return process


def read_output(process: subprocess.Popen[bytes], limit_s: float) -> tuple[bytes, bytes] | None:
    """A program's stdout and stderr; None where it did not end within `limit_s`, and was killed with its group."""
    try:
        out, err = process.communicate(timeout=limit_s)
        return out or b"", err or b""
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=HUNG_OUTPUT_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        pass  # it hangs in the kernel, and waiting for it would hang us
    return None


def reap_orphans() -> bool:
    """Collect ended children that no Popen waits for: orphans that became ours. Returns whether one has ended that its
    owner is to collect."""
    while hasattr(os, "waitid"):
        with _FORK:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None:
                return False
            if _is_waited_for(ended.si_pid):
                return True
            try:
                os.waitpid(ended.si_pid, os.WNOHANG)
            except ChildProcessError:
                pass  # its Popen collected it in between
    return False


def _is_waited_for(pid: int) -> bool:
    process = _STARTED.get(pid)
    if process is not None and process.returncode is not None:
        del _STARTED[pid]  # that child was collected: this is another process with its number
        return False
    return process is not None


def run_processes(markers: Collection[Marker]) -> set[int]:
    """The living processes of a run: all our descendants except the helpers', and every process with the marker."""
    with _FORK:
        living = list_processes()
        own = descendants(living, [os.getpid()]) - _of_helpers(living)
    return own | find_marked(living, markers)


def descendant_processes(markers: Collection[Marker]) -> set[int]:
    """All our living descendants, helpers included, and every process with a marker."""
    living = list_processes()
    return descendants(living, [os.getpid()]) | find_marked(living, markers)


def helper_processes() -> set[int]:
    """The agent's living helpers and their descendants."""
    with _FORK:
        return _of_helpers(list_processes())


def _of_helpers(living: Mapping[int, Process]) -> set[int]:
    members = {process.pid for process in living.values() if process.session in _HELPERS}
    sessions = {living[pid].session for pid in members}
    for pid in [pid for pid, process in _HELPERS.items() if process.poll() is not None and pid not in sessions]:
        del _HELPERS[pid]
    return members | descendants(living, members)


def send_signal(pids: Iterable[int], sign: int) -> None:
    """Signal each process; one that has ended, or belongs to another user, is skipped."""
    for pid in pids:
        try:
            os.kill(pid, sign)
        except (ProcessLookupError, PermissionError):
            pass


def end_all(
    find_remaining: Callable[[], set[int]],
    term_grace_s: float = TERM_GRACE_S,
    recorders: Callable[[], set[int]] = set,
) -> int:
    """Send SIGTERM, then SIGKILL, to the processes that `find_remaining` returns, until it returns none.

    Returns how many are left after KILL_LIMIT_S. `recorders` record how the others ended: they are killed only after
    they have been the only ones left for RECORDER_GRACE_S. No SIGTERM is sent where `term_grace_s` is 0.
    """
    started_at = time.monotonic()
    pause_s, others_ended_s = FIRST_END_POLL_S, None
    if term_grace_s:
        send_signal(find_remaining() - recorders(), signal.SIGTERM)
    while True:
        reap_orphans()
        left = find_remaining() or find_remaining()  # a process forked during the first scan may be missing in it
        waited_s = time.monotonic() - started_at
        if not left or waited_s > KILL_LIMIT_S:
            return len(left)
        spared = left & recorders()
        others_ended_s = (others_ended_s or waited_s) if left == spared else None
        if waited_s >= term_grace_s:
            is_overdue = others_ended_s is not None and waited_s - others_ended_s > RECORDER_GRACE_S
            send_signal(left if is_overdue else left - spared, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = END_POLL_INTERVAL_S
