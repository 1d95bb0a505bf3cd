"""Verbs `hello` and `ping`: what this node is, has and does."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import time
from typing import Any, Sequence

from gpuops.agent import lease_clock, machine_resources, processes
from gpuops.agent.files import folder, local_disk
from gpuops.agent.node import Emit, Node, program_argv
from gpuops.agent.run import run_verbs
from gpuops.agent.wire_format import PROTOCOL

GPU_COLUMNS = ("index", "name", "memory.total", "driver_version", "compute_cap")
"""An nvidia-smi from before 2021 does not know the last one, and then prints none of them."""
NVIDIA_SMI_LIMIT_S = 20.0
"""A driver that wakes up is slow."""


def ping(_node: Node, _args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: process numbers and the node's clock. Answers at once, unlike `hello`, so that a skew can be measured."""
    return {"agent": os.getpid(), "watchdog": os.getppid(), "time": time.time()}


def hello(node: Node, _args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: the facts that a client needs first."""
    return {
        "protocol": PROTOCOL,
        "artefact": os.path.splitext(os.path.basename(program_argv()[-1]))[0],
        "time": time.time(),
        "boot_id": machine_resources.boot_id(),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "hostname": socket.gethostname(),
        "cores": machine_resources.count_cores(),
        "memory": machine_resources.memory_bytes(),
        "disk_free": folder.free_bytes(node.dir),
        "scratch": local_disk.describe(node),
        "gpus": gpus(),
        "folder": node.dir,
        "busy": run_verbs.live_run_name(),
        "runs": node.runs(),
        "lease": lease_clock.read_document(node),
    }


def gpus() -> list[dict[str, Any]]:
    """NVIDIA GPUs as `{index, name, memory_mb, driver, compute_cap}`."""
    if shutil.which("nvidia-smi") is None:
        return []
    printed = _nvidia_smi(GPU_COLUMNS)
    return parse_gpus(_nvidia_smi(GPU_COLUMNS[:-1]) if "not a valid field" in printed else printed)


def _nvidia_smi(columns: Sequence[str]) -> str:
    """Its output; empty where it does not end in time."""
    process = processes.start_helper(
        ["nvidia-smi", "--query-gpu=" + ",".join(columns), "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = processes.read_output(process, NVIDIA_SMI_LIMIT_S)
    return output[0].decode(errors="replace") if output else ""


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """nvidia-smi's CSV; lines of another shape (`No devices were found`) are skipped."""
    rows = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) in (len(GPU_COLUMNS) - 1, len(GPU_COLUMNS)) and fields[0].isdigit():
            index, name, megabytes, driver, capability = [*fields, ""][: len(GPU_COLUMNS)]
            size = int(float(megabytes)) if megabytes.replace(".", "", 1).isdigit() else 0
            rows.append(
                {"index": int(index), "name": name, "memory_mb": size, "driver": driver, "compute_cap": capability}
            )
    return rows
