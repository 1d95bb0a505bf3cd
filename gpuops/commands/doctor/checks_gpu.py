"""Checks of one place's GPUs and driver, and of the torch that will use them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuops.commands.doctor.report import Checkup, Finding, error, megabytes, note, warning
from gpuops.core.format import plural
from gpuops.nodes import cuda as compat
from gpuops.transport.schemas import Gpu

IN_USE_MIN_MB = 1000
"""MB in use above which a GPU counts as used by another program: a desktop alone takes less."""
FAULT_SIGNS = ("ERR!", "Unknown Error", "requires reset", "GPU is lost")
GPU_SIGNS = ("gpus", "cards", "files", "loaded", "wsl")
"""Facts that show an NVIDIA GPU in the machine."""
OLDEST_TORCH = (2, 4)
"""The oldest torch that gpuops is tested with."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NO_TORCH_HINT = "leave it: the first run makes an environment with torch; or name one that has it: --python PATH"


def gpu_findings(place: Checkup) -> Iterator[Finding]:
    """Findings about GPUs and torch."""
    nvidia = place.part("nvidia")
    if nvidia:
        yield from _check_driver(place, nvidia)
        for gpu in place.gpus:
            yield from _check_gpu(gpu, busy=bool(place.facts.get("busy")))
        yield from _check_gpus_together(place, nvidia)
    yield from _check_torch(place)


def _check_driver(place: Checkup, nvidia: Mapping[str, Any]) -> Iterator[Finding]:
    """Why GPUs of the machine cannot be used."""
    smi, files, gpus = nvidia.get("smi"), len(nvidia.get("files") or ()), len(place.gpus)
    if smi is None:
        yield from _explain_missing_smi(place, nvidia, files)
    elif smi.get("slow"):
        yield error(
            "gpu-hangs",
            "nvidia-smi does not answer: the GPU or its driver hangs",
            "reboot this machine, or rent another",
        )
    elif not gpus:
        yield _smi_failure(place, nvidia, str(smi.get("said") or "it shows no GPU"))
    elif files < gpus and not nvidia.get("wsl"):
        yield error(
            "gpu-files",
            f"nvidia-smi shows {plural(gpus, 'GPU')}, and /dev has the files of {files}: CUDA cannot open the others",
            "start the container with --gpus all; on a machine of your own: sudo nvidia-modprobe -u -c=0",
        )


def _explain_missing_smi(place: Checkup, nvidia: Mapping[str, Any], files: int) -> Iterator[Finding]:
    if files or (nvidia.get("loaded") and not place.part("machine").get("container")):
        yield error(
            "gpu-no-smi",
            "there are NVIDIA GPUs but no nvidia-smi, by which gpuops finds them",
            "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, or install nvidia-utils",
        )
    elif nvidia.get("loaded"):
        yield warning(
            "gpu-not-given", "this container was not given the GPUs of its machine", "start it with --gpus all"
        )
    elif nvidia.get("cards"):
        yield warning(
            "gpu-no-driver",
            f"{plural(int(nvidia['cards']), 'NVIDIA GPU')} in this machine and no driver: runs train on the CPU",
            "install NVIDIA's driver: sudo ubuntu-drivers install, or your distribution's way",
        )


SMI_FAILURES: tuple[tuple[str, Finding], ...] = (
    ("version mismatch", error(
        "gpu-mismatch",
        "the NVIDIA driver was updated and the old one is still loaded (Driver/library version mismatch)",
        "reboot this machine",
    )),
    ("communicate with the NVIDIA driver", error(
        "gpu-driver-away", "nvidia-smi cannot reach the NVIDIA driver: its kernel module is not loaded",
        "sudo modprobe nvidia; where that fails, install the driver again for this kernel and reboot",
    )),
    ("No devices were found", error(
        "gpu-gone", "the NVIDIA driver finds no GPU it can use (No devices were found)",
        "see why: sudo dmesg | grep -i nvrm; then reboot, or rent another machine",
    )),
)  # fmt: skip
"""Words of nvidia-smi, and what they mean."""


def _smi_failure(place: Checkup, nvidia: Mapping[str, Any], said: str) -> Finding:
    """What the output of a failing nvidia-smi means."""
    if not any(nvidia.get(sign) for sign in GPU_SIGNS[1:]):
        return note(
            "gpu-none", "nvidia-smi is installed, and this machine has no NVIDIA GPU", "nothing, if that is meant so"
        )
    if known := next((finding for words, finding in SMI_FAILURES if words in said), None):
        return known
    first = (said.strip().splitlines() or [""])[0][:200]
    if "NVML" in said and place.part("machine").get("container"):
        return error("gpu-lost", f"this container has lost its GPUs ({first})", "restart the container")
    return error("gpu-smi-fails", f"nvidia-smi fails: {first}", "run nvidia-smi there; often a reboot helps")


def _check_gpu(gpu: Mapping[str, Any], *, busy: bool) -> Iterator[Finding]:
    called = f"GPU {gpu.get('index')} ({gpu.get('name')})"
    if any(word in str(value) for value in gpu.values() for word in FAULT_SIGNS):
        yield error("gpu-fault", f"{called} reports an error instead of its state", "reboot, or leave this GPU out")
    errors = megabytes(gpu.get("ecc.errors.uncorrected.volatile.total"))
    if errors:
        yield warning(
            "gpu-ecc",
            f"{called} has met {plural(errors, 'memory error')} that it could not correct since the last boot",
            "reboot; where they come back, have the GPU replaced, or rent another machine",
        )
    used = megabytes(gpu.get("memory.used"))
    if used >= IN_USE_MIN_MB and not busy:
        yield warning(
            "gpu-used",
            f"{called} has {used / 1024:.0f} of {gpu['memory_mb'] / 1024:.0f} GB in use by other programs",
            "see whose: nvidia-smi; end them, or wait",
        )
    if gpu.get("mig.mode.current") == "Enabled":
        yield warning(
            "gpu-mig",
            f"{called} is divided by MIG: a rank sees one slice, and NCCL cannot join slices",
            "turn it off for training: sudo nvidia-smi -mig 0",
        )


def _check_gpus_together(place: Checkup, nvidia: Mapping[str, Any]) -> Iterator[Finding]:
    kinds = sorted({str(gpu.get("name")) for gpu in place.gpus})
    if len(kinds) > 1:
        yield warning(
            "gpu-kinds",
            f"GPUs of different kinds on one node: {', '.join(kinds)}; the slowest sets the pace",
            "train on one kind: CUDA_VISIBLE_DEVICES, or --gpus",
        )
    if place.gpus and any("compute_cap" not in gpu for gpu in place.gpus):
        yield warning(
            "gpu-old-smi",
            f"driver {place.gpus[0]['driver']} does not tell a GPU's generation: "
            "whether torch has kernels for it is not known",
            "update NVIDIA's driver to 525 or later",
        )
    hidden = place.part("variables").get("visible")
    if nvidia.get("gpus") and hidden is not None:
        yield note(
            "gpu-visible",
            f"CUDA_VISIBLE_DEVICES is '{hidden}' here: programs see those GPUs only",
            "unset it, if that is not meant so",
        )
    memory = int(place.part("machine").get("memory") or 0) // 2**20
    largest = max((gpu["memory_mb"] for gpu in place.gpus), default=0)
    if 0 < memory < largest:
        yield note(
            "memory-little",
            f"{memory / 1024:.0f} GB of memory beside a GPU with {largest / 1024:.0f} GB: "
            "a snapshot of a large model may not fit",
            "load snapshots straight to the GPU (map_location), one rank after the other",
        )


def _check_torch(place: Checkup) -> Iterator[Finding]:
    pythons, python = place.part("pythons"), place.python
    if not pythons:
        return
    asked = pythons.get("asked")
    if asked and python is None and "inner" in pythons:
        yield error(
            "python-asked", f"'{asked}' is a folder", f"name the Python in it: --python {pythons['inner'] or 'PATH'}"
        )
    elif asked and python is None:
        yield error(
            "python-asked", f"'{asked}' is no Python that runs here", "name a Python of this place: --python PATH"
        )
    elif python is None or not python.get("torch"):
        yield _no_torch_finding(place, pythons, str(asked or ""))
    else:
        yield from _check_torch_fits(place, python)


def _no_torch_finding(place: Checkup, pythons: Mapping[str, Any], asked: str) -> Finding:
    if asked:
        nvidia = place.part("nvidia")
        none = not any(nvidia.get(sign) for sign in GPU_SIGNS)
        # On Linux PyPI's own torch brings gigabytes of CUDA.
        cpu = f" --index-url {CPU_INDEX}" if none and place.part("machine").get("system") == "Linux" else ""
        return error("python-asked", f"'{asked}' has no torch", f"install it there: {asked} -m pip install torch{cpu}")
    if not any(one.get("ensurepip") or one.get("uv") for one in pythons.get("found") or []):
        return warning(
            "torch-unmakeable",
            "no Python here has torch, and none can make an environment",
            "sudo apt-get install python3-venv, or install uv",
        )
    return note("torch-none", "no Python here has torch", NO_TORCH_HINT)


def _parse_gpu(one: Mapping[str, Any]) -> Gpu:
    """A GPU of a checkup, as what the tables of builds are asked about."""
    words = {name: str(one.get(name) or "") for name in ("name", "driver", "compute_cap")}
    return Gpu(index=int(one.get("index") or 0), **words)


def _check_torch_fits(place: Checkup, python: Mapping[str, Any]) -> Iterator[Finding]:
    torch, cuda = str(python["torch"]), python.get("cuda")
    against = compat.misfit(torch, cuda, [_parse_gpu(one) for one in place.gpus], str(python.get("path") or "python"))
    if against is not None and against.kind == "cpu":
        yield error("torch-cpu", against.say, against.hint)
    elif against is not None and against.kind == "kernels":
        yield error("torch-kernels", against.say, against.hint)
    elif against is not None and place.part("nvidia").get("compat"):
        say = f"{against.say}, unless NVIDIA's compat package in /usr/local/cuda/compat is used"
        yield warning("torch-driver", say, "have it used: --env LD_LIBRARY_PATH=/usr/local/cuda/compat")
    elif against is not None:
        yield error("torch-driver", against.say, against.hint)
    if (0,) < compat.numbers(torch)[:2] < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        yield note(
            "torch-old", f"torch {torch} is older than what gpuops is tested with", f"use torch {oldest} or later"
        )
    nvcc = place.facts.get("nvcc")
    if nvcc and cuda and compat.numbers(nvcc)[:2] != compat.numbers(cuda)[:2]:
        yield note(
            "nvcc",
            f"nvcc is of CUDA {nvcc}, torch of CUDA {cuda}; only compiling extensions needs both to agree",
            "leave it, unless a package is compiled at installation (flash-attn, apex)",
        )
