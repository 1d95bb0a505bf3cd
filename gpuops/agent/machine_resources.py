"""The machine: the id of its boot, and what this process may use of it, by affinity and cgroup limits (v1, v2)."""

from __future__ import annotations

import math
import os

from gpuops.agent.node import read_text


def boot_id() -> str:
    """Id of this boot; empty without `/proc`."""
    return read_text("/proc/sys/kernel/random/boot_id")


def count_cores() -> int:
    """Cores that this process may use: the smaller of its affinity and the cgroup's quota, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cores_limit()
    return max(1, min(count, math.ceil(quota))) if quota is not None else count


def cores_limit() -> float | None:
    """The cgroup's quota in cores; None without one."""
    quota = cgroup_cores(read_text("/sys/fs/cgroup/cpu.max"))
    if quota is not None:
        return quota
    v1 = "/sys/fs/cgroup/cpu/cpu.cfs_%s_us"
    return cgroup_cores(read_text(v1 % "quota") + " " + read_text(v1 % "period"))


def cgroup_cores(text: str) -> float | None:
    """`<quota> <period>` in microseconds as a number of cores; None without a limit."""
    try:
        quota, period = (float(part) for part in text.split())
    except ValueError:
        return None  # `max 100000`, or no such file
    return quota / period if quota > 0 and period > 0 else None


def memory_bytes() -> int:
    """Bytes of memory that this process may use; 0 where the system does not say."""
    limit = memory_limit()
    return physical_memory() if limit is None else limit


def memory_limit() -> int | None:
    """The cgroup's limit in bytes; None without one that is less than the machine has."""
    texts = [read_text("/sys/fs/cgroup/memory.max"), read_text("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text.isdigit()]
    return min(limits) if limits and min(limits) < physical_memory() else None


def physical_memory() -> int:
    """Bytes; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
