"""Processor, memory, network and disks of the machine, as the kernel counts them; of a container, its own share.

Linux only: elsewhere every value is None.
"""

from __future__ import annotations

import os
from typing import Any, Iterable, NamedTuple, Sequence

from gpuops.agent import machine_resources
from gpuops.agent.node import read_text

SECTOR_BYTES = 512
"""The unit of `/proc/diskstats`, whatever the disk's own is (Documentation/admin-guide/iostats.rst of Linux)."""
NET = "/sys/class/net"
NO_NETWORK = ("lo", "veth", "docker", "br-", "virbr")
"""Beginnings of interfaces that are no way out of the machine, or count what another one counts, too: where none is a
device, as in a container."""
NO_DISK = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""The same of block devices."""


class Counters(NamedTuple):
    """What the kernel has counted since the boot; None where it does not say."""

    cpu_s: float | None
    """Seconds of all cores."""
    net: Sequence[int] | None
    """Bytes received and sent."""
    disk: Sequence[int] | None
    """Bytes read and written."""


class Machine:
    """Rates between two calls of `look`, of which the first has none."""

    def __init__(self) -> None:
        self.cores = machine_resources.count_cores()
        self._limited = machine_resources.cores_limit() is not None
        self._devices = [name for name in _names(NET) if os.path.exists(f"{NET}/{name}/device")]
        self._disks = [name for name in _names("/sys/block") if not name.startswith(NO_DISK)]
        self._at = 0.0
        self._before = Counters(None, None, None)

    def look(self, now: float) -> dict[str, Any]:
        """`cpu` (busy cores), `memory` ([used, all] bytes), `net` and `disk` ([in, out] bytes/s). `now`: monotonic
        seconds."""
        counters = Counters(
            _limited_cpu_s() if self._limited else parse_cpu(read_text("/proc/stat", 4096)),
            parse_net(read_text("/proc/net/dev").splitlines(), self._devices),
            parse_disks(read_text("/proc/diskstats").splitlines(), self._disks),
        )
        before, passed_s = self._before, now - self._at
        self._before, self._at = counters, now
        return {
            "cpu": _rates([before.cpu_s], [counters.cpu_s], passed_s)[0],
            "memory": _memory(),
            "net": _pair(before.net, counters.net, passed_s),
            "disk": _pair(before.disk, counters.disk, passed_s),
        }


def _pair(before: Sequence[int] | None, after: Sequence[int] | None, passed_s: float) -> list[float | None] | None:
    if before is None or after is None:
        return None
    return _rates(before, after, passed_s)


def _rates(before: Sequence[float | None], after: Sequence[float | None], passed_s: float) -> list[float | None]:
    """Per second, and never negative: a counter may begin again."""
    return [
        None if old is None or new is None or passed_s <= 0 else round(max(0.0, (new - old) / passed_s), 3)
        for old, new in zip(before, after)
    ]


def parse_cpu(text: str) -> float | None:
    """Seconds of all cores that were not idle, of the first line of `/proc/stat`; time in guests is in `user`."""
    fields = text.split("\n", 1)[0].split()
    try:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
    except ValueError:
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _limited_cpu_s() -> float | None:
    """Seconds of all cores that this container has used; its `/proc/stat` is that of the whole machine."""
    for line in read_text("/sys/fs/cgroup/cpu.stat").splitlines():
        if line.startswith("usage_usec "):
            return int(line.split()[1]) / 1e6
    v1 = read_text("/sys/fs/cgroup/cpuacct/cpuacct.usage")
    return int(v1) / 1e9 if v1.isdigit() else None


def _memory() -> list[int] | None:
    """Bytes in use and bytes there are, for this container where it has a limit; pages that only cache files are
    free."""
    total = machine_resources.memory_bytes()
    for usage, stat, name in (
        ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"),
    ):
        used = read_text(usage)
        if used.isdigit() and machine_resources.memory_limit() is not None:
            return [max(0, int(used) - _field(read_text(stat), name)), total]
    free = parse_available(read_text("/proc/meminfo"))
    return [max(0, total - free), total] if total and free is not None else None


def _field(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name + " ")), 0)


def parse_available(text: str) -> int | None:
    """`MemAvailable` of `/proc/meminfo`, in bytes."""
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def parse_net(lines: Iterable[str], devices: Sequence[str] = ()) -> Sequence[int] | None:
    """Bytes received and sent on interfaces that lead out of the machine (`/proc/net/dev`): on its `devices`, since a
    bond, a bridge and a tunnel count what they pass on to them."""
    rows = {name.strip(): rest.split() for name, rest in (line.split(":", 1) for line in lines if ":" in line)}
    names = rows.keys() & set(devices) or [name for name in rows if not name.startswith(NO_NETWORK)]
    return [sum(int(rows[name][column]) for name in names) for column in (0, 8)] if rows else None


def parse_disks(lines: Iterable[str], disks: Sequence[str]) -> Sequence[int] | None:
    """Bytes read from and written to these disks (`/proc/diskstats`), without their partitions; None without disks."""
    rows = [fields for fields in map(str.split, lines) if len(fields) > 9 and fields[2] in disks]
    return [SECTOR_BYTES * sum(int(row[column]) for row in rows) for column in (5, 9)] if rows else None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
