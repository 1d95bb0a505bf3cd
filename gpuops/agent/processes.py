"""Processes of this machine: listing them, finding those of a run, starting, collecting and ending them.

Two kernel features of Linux (`prctl` by ctypes) give a run's orphans back to the agent, and let a process learn that
its parent has ended; `/proc` shows sessions and environments. On macOS `ps` replaces `/proc`, and `prctl` is absent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple, Sequence, Union

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


PROC = os.path.exists("/proc/self/stat")
PS_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}
"""For `ps`: a process's start time must read the same in every locale and time zone."""
PS_LIMIT_S = 20.0


class Process(NamedTuple):
    """One living process. `start` distinguishes it from a later one with the same number."""

    pid: int
    parent: int
    session: int
    start: str


class Marker(NamedTuple):
    """Environment variables that all processes of one run inherit."""

    run: str
    """`GPUOPS_RUN`: `<cluster>-<run>-<node>`."""
    stop_file: str
    """`GPUOPS_STOP_FILE`: distinguishes runs of the same name in other folders of this machine."""


def list_processes() -> dict[int, Process]:
    """Every living process by number; a zombie is not living."""
    return _from_proc() if PROC else _from_ps()


def find_process(pid: int) -> Process | None:
    """This process, if it lives."""
    return _read_stat(pid) if PROC else list_processes().get(pid)


def is_living(pid: int, start: str) -> bool:
    """Whether the process recorded as (pid, start) still lives."""
    process = find_process(pid)
    return process is not None and process.start == start


def descendants(living: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """All descendants of `roots`, without the roots themselves."""
    children = defaultdict(list)
    for process in living.values():
        children[process.parent].append(process.pid)
    members: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in members:
                members.add(child)
                queue.append(child)
    return members


def find_marked(pids: Iterable[int], markers: Iterable[Marker]) -> set[int]:
    """The processes whose environment has one of the markers; never this process itself."""
    markers = list(markers)
    if not markers:
        return set()
    environments, separator = _read_environments(pids)
    return {
        pid
        for pid, text in environments.items()
        if pid != os.getpid() and any(has_marker(text, marker, separator) for marker in markers)
    }


def has_marker(environment: bytes, marker: Marker, separator: bytes = b"\0") -> bool:
    """Whether an environment, its entries joined by `separator`, belongs to the marker's run."""
    text = separator + environment + separator

    def has(entry: str) -> bool:
        return separator + os.fsencode(entry) + separator in text

    if not has("GPUOPS_RUN=" + marker.run):
        return False
    return separator + b"GPUOPS_STOP_FILE=" not in text or has("GPUOPS_STOP_FILE=" + marker.stop_file)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of these processes, with that of their children that have ended; 0 without `/proc`."""
    ticks = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
            ticks += sum(map(int, text[text.rindex(")") + 2 :].split()[11:15]))
        except (OSError, ValueError):
            continue  # it has ended
    return ticks / os.sysconf("SC_CLK_TCK")


def with_children(pid: int) -> list[int]:
    """The process and the descendants of its first thread: a script behind `uv run` trains in a child."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(child) for child in file.read().split()]
    except (OSError, ValueError):
        children = []
    return [pid] + [member for child in children for member in with_children(child)]


def resident_bytes(pid: int) -> int:
    """Memory of a process, with what it shares; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0  # it has ended


def file_bytes(pids: Iterable[int]) -> int:
    """What these processes have read and written, but on sockets, with their children that have ended; 0 where that
    cannot be read."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith(("rchar:", "wchar:")))
        except (OSError, ValueError):
            continue  # it has ended, or is another user's
    return total


def handles_signal(pid: int, sign: int) -> bool:
    """Whether the process has its own handler for this signal; False without `/proc`, which alone knows."""
    try:
        with open(f"/proc/{pid}/status") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(masks) and bool(int(masks[0], 16) >> (sign - 1) & 1)


def parse_stat(pid: int, text: str) -> Process | None:
    """A line of `/proc/<pid>/stat`; None for a zombie.

    The process name may contain blanks and parentheses, so fields are counted from its end. Raises ValueError.
    """
    fields = text[text.rindex(")") + 2 :].split()
    threads = int(fields[17])
    # If the first thread has ended and others live, the kernel calls the process a zombie, wrongly.
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
    processes = (_read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in processes if process}


def _from_ps() -> dict[int, Process]:
    living = {}
    for pid, text in _ps("ppid=,stat=,lstart="):
        fields = text.split(None, 2)
        if len(fields) == 3 and not fields[1].startswith("Z"):
            living[pid] = Process(pid, int(fields[0]), _session(pid), fields[2])
    return living


def _session(pid: int) -> int:
    """The session's number from the kernel: `ps` of macOS prints an address, or 0."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0  # ended meanwhile


def _read_environments(pids: Iterable[int]) -> tuple[dict[int, bytes], bytes]:
    """Environments by process number, and the separator of their entries."""
    if not PROC:
        return {pid: os.fsencode(text) for pid, text in _ps("command=", "-E")}, b" "
    environments = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environments[pid] = file.read()
        except OSError:
            pass  # ended meanwhile, or another user's
    return environments, b"\0"


def _ps(columns: str, *flags: str) -> Iterator[tuple[int, str]]:
    """`ps` output by process number, without `ps` itself: a child of ours, it would never be seen to end."""
    process = subprocess.Popen(
        ["ps", "-A", "-ww", *flags, "-o", "pid=," + columns],
        env={**os.environ, **PS_ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        out, _ = process.communicate(timeout=PS_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    for line in os.fsdecode(out).splitlines():
        pid, _, text = line.strip().partition(" ")
        if pid.isdigit() and int(pid) != process.pid:
            yield int(pid), text.strip()


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
