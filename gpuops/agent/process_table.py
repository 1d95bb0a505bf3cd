"""The processes of this machine: listing them, finding those of a run, and what each of them takes.

`/proc` shows sessions and environments; on macOS `ps` replaces it.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from typing import Iterable, Iterator, Mapping, NamedTuple

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
