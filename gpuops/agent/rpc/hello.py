"""Verbs `hello` and `ping`: what this node is, has and does."""

from __future__ import annotations

import math
import os
import platform
import shutil
import socket
import subprocess
import time
from typing import Any, Sequence

from gpuops.agent import lease, local_disk, processes
from gpuops.agent.files import folder
from gpuops.agent.node import PROTOCOL, Node, program
from gpuops.agent.run import registry

GPU_COLUMNS = ("index", "name", "memory.total", "driver_version", "compute_cap")
"""An nvidia-smi from before 2021 does not know the last one, and then prints none of them."""
GPU_S = 20.0
"""How long nvidia-smi may take (a driver that wakes up is slow), in seconds."""


def ping(_node: Node, _args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: is anybody there, and what time is it there? Answers at once, unlike `hello`."""
    return {"agent": os.getpid(), "watchdog": os.getppid(), "time": time.time()}


def hello(node: Node, _args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: all that a client wants to know first."""
    return {
        "protocol": PROTOCOL,
        "artefact": os.path.splitext(os.path.basename(program()[-1]))[0],
        "time": time.time(),
        "boot_id": lease.boot_id(),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "hostname": socket.gethostname(),
        "cores": cores(),
        "memory": memory(),
        "disk_free": folder.free_bytes(node.dir),
        "scratch": local_disk.told(node),
        "gpus": gpus(),
        "folder": node.dir,
        "busy": registry.live_name(),
        "runs": node.runs(),
        "lease": lease.read(node),
    }


def cores() -> int:
    """Cores that this process may use, by affinity and by the cgroup's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores(_read("/sys/fs/cgroup/cpu.max"))
    if quota is None:
        v1 = "/sys/fs/cgroup/cpu/cpu.cfs_%s_us"
        quota = cgroup_cores(_read(v1 % "quota") + " " + _read(v1 % "period"))
    return max(1, min(count, math.ceil(quota))) if quota is not None else count


def cgroup_cores(text: str) -> float | None:
    """`<quota> <period>` in microseconds as a number of cores; None without a limit."""
    try:
        quota, period = (float(part) for part in text.split())
    except ValueError:
        return None  # `max 100000`, or no such file
    return quota / period if quota > 0 and period > 0 else None


def memory() -> int:
    """Bytes of memory that this process may use; 0 where it cannot be told."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
    limits = [_read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])


def gpus() -> list[dict[str, Any]]:
    """NVIDIA GPUs as `{index, name, memory_mb, driver, compute_cap}`."""
    if shutil.which("nvidia-smi") is None:
        return []
    said = _nvidia_smi(GPU_COLUMNS)
    return parse_gpus(_nvidia_smi(GPU_COLUMNS[:-1]) if "not a valid field" in said else said)


def _nvidia_smi(columns: Sequence[str]) -> str:
    """What it prints; nothing where it does not answer in time."""
    process = processes.helper(
        ["nvidia-smi", "--query-gpu=" + ",".join(columns), "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        out, _ = process.communicate(timeout=GPU_S)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the kernel, and so would we
        return ""
    return out.decode(errors="replace")


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """nvidia-smi's CSV; lines of another shape (`No devices were found`) are passed over."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) in (len(GPU_COLUMNS) - 1, len(GPU_COLUMNS)) and fields[0].isdigit():
            index, name, megabytes, driver, capability = [*fields, ""][: len(GPU_COLUMNS)]
            size = int(float(megabytes)) if megabytes.replace(".", "", 1).isdigit() else 0
            found.append(
                {"index": int(index), "name": name, "memory_mb": size, "driver": driver, "compute_cap": capability}
            )
    return found


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
