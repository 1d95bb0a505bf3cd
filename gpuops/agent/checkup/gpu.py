"""NVIDIA's GPUs, their driver and the CUDA compiler, as nvidia-smi, nvcc, /dev, /proc and the PCI bus show them."""

from __future__ import annotations

import re
from typing import Any, Sequence

from gpuops.agent.checkup.site import ProgramResult, Site

BASIC_COLUMNS = ("index", "name", "memory.total", "driver_version")
ALL_COLUMNS = (
    *BASIC_COLUMNS,
    "compute_cap",
    "memory.used",
    "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current",
)
"""An nvidia-smi that does not know one of these columns prints none of them."""
PCI_VENDOR_NVIDIA = "0x10de"
PCI_CLASS_DISPLAY = "0x03"
MAX_MESSAGE_CHARACTERS = 2000
"""How much of a failing program's output is kept."""


def describe_nvidia(site: Site) -> dict[str, Any]:
    """What nvidia-smi prints (`smi`: None where it is not installed), and what can be seen without it."""
    program = site.which("nvidia-smi")
    ran = _query(site, program, ALL_COLUMNS) if program else None
    columns: Sequence[str] = ALL_COLUMNS
    if program and ran and ran.code and "is not a valid field" in ran.out + ran.err:
        ran, columns = _query(site, program, BASIC_COLUMNS), BASIC_COLUMNS
    return {
        "smi": None
        if ran is None
        else {"code": ran.code, "said": (ran.err or ran.out)[-MAX_MESSAGE_CHARACTERS:], "slow": ran.slow},
        "gpus": parse_rows(ran.out, columns) if ran is not None and ran.code == 0 else [],
        "files": [name for name in site.names("/dev") if re.fullmatch(r"nvidia\d+", name)],
        "wsl": "dxg" in site.names("/dev"),
        "loaded": bool(site.read("/proc/driver/nvidia/version")),
        "cards": _cards(site),
        "compat": any(
            name.startswith("libcuda.so")
            for folder in site.names("/usr/local")
            if folder.startswith("cuda")
            for name in site.names(f"/usr/local/{folder}/compat")
        ),
    }


def _query(site: Site, program: str, columns: Sequence[str]) -> ProgramResult:
    return site.run([program, "--query-gpu=" + ",".join(columns), "--format=csv,noheader,nounits"])


def parse_rows(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """nvidia-smi's CSV, its values as text; lines of another shape are skipped."""
    split = ([field.strip() for field in line.split(",")] for line in text.splitlines())
    return [dict(zip(columns, fields)) for fields in split if len(fields) == len(columns)]


def _cards(site: Site) -> int:
    """How many NVIDIA GPUs are on the PCI bus, with or without a driver (class 03: display, 3D)."""
    devices = "/sys/bus/pci/devices"
    return sum(
        site.read(f"{devices}/{name}/vendor") == PCI_VENDOR_NVIDIA
        and site.read(f"{devices}/{name}/class").startswith(PCI_CLASS_DISPLAY)
        for name in site.names(devices)
    )


def find_nvcc_version(site: Site) -> str | None:
    """The CUDA version of the compiler; None where it is not installed."""
    program = site.which("nvcc")
    release = re.search(r"release (\d+\.\d+)", site.run([program, "--version"]).out) if program else None
    return release.group(1) if release else None
