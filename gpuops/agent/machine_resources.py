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
    quota = cgroup_cores(read_text("/sys/fs/cgroup/cpu.max"))
    if quota is None:
        v1 = "/sys/fs/cgroup/cpu/cpu.cfs_%s_us"
        quota = cgroup_cores(read_text(v1 % "quota") + " " + read_text(v1 % "period"))
    return max(1, min(count, math.ceil(quota))) if quota is not None else count


def cgroup_cores(text: str) -> float | None:
    """`<quota> <period>` in microseconds as a number of cores; None without a limit."""
    try:
        quota, period = (float(part) for part in text.split())
    except ValueError:
        return None  # `max 100000`, or no such file
    return quota / period if quota > 0 and period > 0 else None


def memory_bytes() -> int:
    """Bytes of memory that this process may use; 0 where the system does not say."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
    limits = [read_text("/sys/fs/cgroup/memory.max"), read_text("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])
