"""Checks of one place's GPUs and driver, and of the torch that will use them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuops.commands.doctor.facts import Checkup, GpuFacts, NvidiaFacts, PythonFacts, PythonsFacts
from gpuops.commands.doctor.report import Finding, error, note, warning
from gpuops.core.format import plural
from gpuops.nodes.cuda import CPU_INDEX, MisfitKind, find_misfit, numbers

IN_USE_MIN_MB = 1000
"""MB in use above which a GPU counts as used by another program: a desktop alone takes less."""
OLDEST_TORCH = (2, 4)
"""The oldest torch that gpuops is tested with."""
NO_TORCH_HINT = "leave it: the first run makes an environment with torch; or name one that has it: --python PATH"


def gpu_findings(place: Checkup) -> Iterator[Finding]:
    """Findings about GPUs and torch."""
    nvidia = place.facts.nvidia
    if nvidia is not None:
        yield from _check_driver(place, nvidia)
        for gpu in nvidia.gpus:
            yield from _check_gpu(gpu, busy=place.facts.busy is not None)
        yield from _check_gpus_together(place, nvidia.gpus)
    yield from _check_torch(place)


def _check_driver(place: Checkup, nvidia: NvidiaFacts) -> Iterator[Finding]:
    """Why GPUs of the machine cannot be used."""
    smi, files, gpus = nvidia.smi, len(nvidia.files), len(nvidia.gpus)
    if smi is None:
        yield from _explain_missing_smi(place, nvidia)
    elif smi.slow:
        yield error(
            "gpu-hangs",
            "nvidia-smi does not answer: the GPU or its driver hangs",
            "reboot this machine, or rent another",
        )
    elif not gpus:
        yield _smi_failure(place, nvidia, smi.said or "it shows no GPU")
    elif files < gpus and not nvidia.wsl:
        yield error(
            "gpu-files",
            f"nvidia-smi shows {plural(gpus, 'GPU')}, and /dev has the files of {files}: CUDA cannot open the others",
            "start the container with --gpus all; on a machine of your own: sudo nvidia-modprobe -u -c=0",
        )


def _explain_missing_smi(place: Checkup, nvidia: NvidiaFacts) -> Iterator[Finding]:
    if nvidia.files or (nvidia.loaded and not place.facts.machine.container):
        yield error(
            "gpu-no-smi",
            "there are NVIDIA GPUs but no nvidia-smi, by which gpuops finds them",
            "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, or install nvidia-utils",
        )
    elif nvidia.loaded:
        yield warning(
            "gpu-not-given", "this container was not given the GPUs of its machine", "start it with --gpus all"
        )
    elif nvidia.cards:
        yield warning(
            "gpu-no-driver",
            f"{plural(nvidia.cards, 'NVIDIA GPU')} in this machine and no driver: runs train on the CPU",
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
"""Part of what nvidia-smi prints, and the finding that it means."""


def _smi_failure(place: Checkup, nvidia: NvidiaFacts, output: str) -> Finding:
    """What the output of a failing nvidia-smi means."""
    if not nvidia.has_hardware:
        return note(
            "gpu-none", "nvidia-smi is installed, and this machine has no NVIDIA GPU", "nothing, if that is meant so"
        )
    if known := next((finding for sign, finding in SMI_FAILURES if sign in output), None):
        return known
    first_line = (output.strip().splitlines() or [""])[0][:200]
    if "NVML" in output and place.facts.machine.container:
        return error("gpu-lost", f"this container has lost its GPUs ({first_line})", "restart the container")
    return error("gpu-smi-fails", f"nvidia-smi fails: {first_line}", "run nvidia-smi there; often a reboot helps")


def _check_gpu(gpu: GpuFacts, *, busy: bool) -> Iterator[Finding]:
    """Findings about one GPU. `busy`: a run of gpuops uses it."""
    if gpu.is_faulty:
        yield error("gpu-fault", f"{gpu.title} reports an error instead of its state", "reboot, or leave this GPU out")
    if gpu.memory_errors:
        yield warning(
            "gpu-ecc",
            f"{gpu.title} has met {plural(gpu.memory_errors, 'memory error')} that it could not correct "
            "since the last boot",
            "reboot; where they come back, have the GPU replaced, or rent another machine",
        )
    if gpu.used_mb >= IN_USE_MIN_MB and not busy:
        yield warning(
            "gpu-used",
            f"{gpu.title} has {gpu.used_mb / 1024:.0f} of {gpu.memory_mb / 1024:.0f} GB in use by other programs",
            "see whose: nvidia-smi; end them, or wait",
        )
    if gpu.mig == "Enabled":
        yield warning(
            "gpu-mig",
            f"{gpu.title} is divided by MIG: a rank sees one slice, and NCCL cannot join slices",
            "turn it off for training: sudo nvidia-smi -mig 0",
        )


def _check_gpus_together(place: Checkup, gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    kinds = sorted({gpu.name for gpu in gpus})
    if len(kinds) > 1:
        yield warning(
            "gpu-kinds",
            f"GPUs of different kinds on one node: {', '.join(kinds)}; the slowest sets the pace",
            "train on one kind: CUDA_VISIBLE_DEVICES, or --gpus",
        )
    if any(gpu.compute_cap is None for gpu in gpus):
        yield warning(
            "gpu-old-smi",
            f"driver {gpus[0].driver} does not tell a GPU's generation: whether torch has kernels for it is not known",
            "update NVIDIA's driver to 525 or later",
        )
    visible = place.facts.variables.visible
    if gpus and visible is not None:
        yield note(
            "gpu-visible",
            f"CUDA_VISIBLE_DEVICES is '{visible}' here: programs see those GPUs only",
            "unset it, if that is not meant so",
        )
    memory_mb = place.facts.machine.memory // 2**20
    largest_mb = max((gpu.memory_mb for gpu in gpus), default=0)
    if 0 < memory_mb < largest_mb:
        yield note(
            "memory-little",
            f"{memory_mb / 1024:.0f} GB of memory beside a GPU with {largest_mb / 1024:.0f} GB: "
            "a snapshot of a large model may not fit",
            "load snapshots straight to the GPU (map_location), one rank after the other",
        )


def _check_torch(place: Checkup) -> Iterator[Finding]:
    pythons, python = place.facts.pythons, place.python
    if pythons is None:
        return
    asked = pythons.asked
    if asked and python is None and pythons.inner is not None:
        yield error(
            "python-asked", f"'{asked}' is a folder", f"name the Python in it: --python {pythons.inner or 'PATH'}"
        )
    elif asked and python is None:
        yield error(
            "python-asked", f"'{asked}' is no Python that runs here", "name a Python of this place: --python PATH"
        )
    elif python is None or not python.torch:
        yield _no_torch_finding(place, pythons)
    else:
        yield from _check_torch_fits(place, python, python.torch)


def _no_torch_finding(place: Checkup, pythons: PythonsFacts) -> Finding:
    if asked := pythons.asked:
        nvidia = place.facts.nvidia
        has_gpu = nvidia is not None and (nvidia.has_hardware or bool(nvidia.gpus))
        # On Linux PyPI's own torch brings gigabytes of CUDA.
        cpu = f" --index-url {CPU_INDEX}" if not has_gpu and place.facts.machine.system == "Linux" else ""
        return error("python-asked", f"'{asked}' has no torch", f"install it there: {asked} -m pip install torch{cpu}")
    if not any(python.ensurepip or python.uv for python in pythons.found):
        return warning(
            "torch-unmakeable",
            "no Python here has torch, and none can make an environment",
            "sudo apt-get install python3-venv, or install uv",
        )
    return note("torch-none", "no Python here has torch", NO_TORCH_HINT)


def _check_torch_fits(place: Checkup, python: PythonFacts, torch: str) -> Iterator[Finding]:
    misfit = find_misfit(torch, python.cuda, [gpu.as_hello() for gpu in place.gpus], python.path)
    if misfit is not None and misfit.kind is MisfitKind.CPU:
        yield error("torch-cpu", misfit.say, misfit.hint)
    elif misfit is not None and misfit.kind is MisfitKind.KERNELS:
        yield error("torch-kernels", misfit.say, misfit.hint)
    elif misfit is not None and place.facts.nvidia is not None and place.facts.nvidia.compat:
        say = f"{misfit.say}, unless NVIDIA's compat package in /usr/local/cuda/compat is used"
        yield warning("torch-driver", say, "have it used: --env LD_LIBRARY_PATH=/usr/local/cuda/compat")
    elif misfit is not None:
        yield error("torch-driver", misfit.say, misfit.hint)
    if (0,) < numbers(torch)[:2] < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        yield note(
            "torch-old", f"torch {torch} is older than what gpuops is tested with", f"use torch {oldest} or later"
        )
    nvcc, cuda = place.facts.nvcc, python.cuda
    if nvcc and cuda and numbers(nvcc)[:2] != numbers(cuda)[:2]:
        yield note(
            "nvcc",
            f"nvcc is of CUDA {nvcc}, torch of CUDA {cuda}; only compiling extensions needs both to agree",
            "leave it, unless a package is compiled at installation (flash-attn, apex)",
        )
