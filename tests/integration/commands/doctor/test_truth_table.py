"""The truth table of `gpuops doctor`: a machine with one ailment, the real checkup on it, the finding that names it.

The machine is shims first on the PATH and files under a root of its own (see `patient`); what is judged is what
the checkup printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.nodes.bootstrap import build_agent
from tests.integration.commands.doctor.patient import GB, Patient, judged

V100 = ("Tesla V100-SXM2-16GB", "7.0")
T4 = ("Tesla T4", "7.5")
A100 = ("NVIDIA A100-SXM4-80GB", "8.0")
H100 = ("NVIDIA H100 80GB HBM3", "9.0")
RTX4090 = ("NVIDIA GeForce RTX 4090", "8.9")
AWAY = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
RTX5090 = ("NVIDIA GeForce RTX 5090", "12.0")

Ail = Callable[[Patient], object]


def trains(torch: str, cuda: str | None, gpu: tuple[str, str], driver: str = "580.95.05") -> Ail:
    def ail(one: Patient) -> None:
        one.gpus(gpu, driver=driver)
        one.python(torch, cuda)

    return ail


def smi_says(text: str, code: int, *, there: bool = True) -> Ail:
    def ail(one: Patient) -> None:
        one.shim("nvidia-smi", f'echo "{text}"; exit {code}')
        if there:
            one.card()

    return ail


def both(*ailments: Ail) -> Ail:
    def ail(one: Patient) -> None:
        for each in ailments:
            each(one)

    return ail


def contained(one: Patient) -> None:
    one.file("/.dockerenv")


def now(**fields: object) -> Ail:
    """How the machine is used, and by whom it is looked at."""

    def ail(one: Patient) -> None:
        for name, value in fields.items():
            setattr(one, name, value)

    return ail


reached = now(reached=True)


def nothing(_one: Patient) -> None:
    pass


def with_gpu(**columns: str) -> Ail:
    return both(lambda one: one.gpus(A100, **columns), cuda_torch)  # type: ignore[arg-type]


def cuda_torch(one: Patient) -> None:
    one.python("2.8.0+cu128", "12.8")


def old_smi(one: Patient) -> None:
    one.gpus(A100, driver="470.256.02")
    rows = "0, NVIDIA A100-SXM4-80GB, 8192, 470.256.02"
    refusal = "echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2"
    one.shim("nvidia-smi", f'case "$*" in *compute_cap*) {refusal} ;; esac; echo "{rows}"')
    one.python("2.7.1+cu118", "11.8")


def killing(*lines: str, linger: bool = False) -> Ail:
    def ail(one: Patient) -> None:
        one.file("/run/systemd/system/x")
        one.file("/etc/systemd/logind.conf", "[Login]\n#KillUserProcesses=no\n")
        one.file("/usr/lib/systemd/logind.conf.d/10-site.conf", "\n".join(["[Login]", *lines]))
        if linger:
            one.file(f"/var/lib/systemd/linger/{os.environ.get('USER') or 'root'}")

    return ail


def on_login(shell: str, script: str) -> Ail:
    def ail(one: Patient) -> None:
        one.env["SHELL"] = str(one.shim(shell, script))

    return ail


def in_bashrc(text: str) -> Ail:
    def ail(one: Patient) -> None:
        (one.home / ".bashrc").write_text(text)
        one.env["SHELL"] = "/bin/bash"

    return ail


TABLE: list[tuple[str, Ail, str, str, str]] = [
    # torch, driver and generation
    ("cu128 of 2.11 on Volta", trains("2.11.0+cu128", "12.8", V100), "error", "torch-kernels",
     "torch 2.11.0+cu128 has no kernels for Tesla V100-SXM2-16GB (compute capability 7.0)"),
    ("cu128 of 2.7 on Volta", trains("2.7.1+cu128", "12.8", V100), "error", "torch-kernels", "/whl/cu126"),
    ("old torch on Blackwell", trains("2.6.0+cu124", "12.4", RTX5090), "error", "torch-kernels", "/whl/cu130"),
    ("cu126 on Blackwell", trains("2.8.0+cu126", "12.6", RTX5090, "570.86.10"), "error", "torch-kernels", "/whl/cu128"),
    ("CUDA 11.7 on Hopper", trains("2.0.1+cu117", "11.7", H100), "error", "torch-kernels", "NVIDIA H100"),
    ("CUDA 13 on an old driver", trains("2.9.1+cu130", "13.0", H100, "550.54.15"), "error", "torch-driver",
     "torch 2.9.1+cu130 needs NVIDIA's driver 580 or later, and 550.54.15 is there"),
    ("CUDA 12 on an old driver", trains("2.8.0+cu128", "12.8", A100, "470.256.02"), "error", "torch-driver",
     "driver 525.60.13 or later"),
    ("somebody's own CUDA 12 build", trains("2.8.0a0+34c6371d24.nv25.08", "12.9", A100, "470.57"), "error",
     "torch-driver", "driver 525.60.13 or later"),
    ("the compat package", both(trains("2.9.1+cu130", "13.0", H100, "550.54.15"),
                                lambda one: one.file("/usr/local/cuda-13.0/compat/libcuda.so.1")),
     "warning", "torch-driver", "unless NVIDIA's compat package"),
    ("torch for the CPU", trains("2.8.0+cpu", None, A100), "error", "torch-cpu", "built without CUDA"),
    ("a torch of long ago", trains("1.13.1+cu117", "11.7", A100), "note", "torch-old", "torch 2.4 or later"),
    ("nvcc of another CUDA", both(with_gpu(), lambda one: one.shim("nvcc", "echo 'Cuda compiler, release 12.4, V12'")),
     "note", "nvcc", "nvcc is of CUDA 12.4, torch of CUDA 12.8"),
    ("no such python", lambda one: one.options.extend(["--python", "/none/python"]), "error", "python-asked",
     "'/none/python' is no Python that runs here"),
    ("a folder for a python", lambda one: one.options.extend(["--python", str(one.shim("x", "").parent)]), "error",
     "python-asked", "is a folder"),
    ("a python without torch",
     lambda one: one.options.extend(["--python", str(one.shim("python3.11", f"exec {one.python(None, None)}"))]),
     "error", "python-asked", "has no torch"),
    # GPUs and their driver
    ("the driver was updated", smi_says("Failed to initialize NVML: Driver/library version mismatch", 18), "error",
     "gpu-mismatch", "reboot"),
    ("the module is not loaded", smi_says(AWAY, 9), "error", "gpu-driver-away", "modprobe nvidia"),
    ("no devices", smi_says("No devices were found", 6), "error", "gpu-gone", "finds no GPU"),
    ("a container that lost them", both(smi_says("Failed to initialize NVML: Unknown Error", 255), contained), "error",
     "gpu-lost", "restart the container"),
    ("nvidia-smi crashes", smi_says("Segmentation fault", 139), "error", "gpu-smi-fails", "Segmentation fault"),
    ("nvidia-smi hangs", both(now(limit_s=1.0), lambda one: one.shim("nvidia-smi", "trap '' TERM; sleep 60")),
     "error", "gpu-hangs", "hangs"),
    ("nvidia-smi without a GPU", smi_says(AWAY, 9, there=False), "note", "gpu-none", "has no NVIDIA GPU"),
    ("a card without a driver", Patient.card, "warning", "gpu-no-driver", "no driver"),
    ("no nvidia-smi", lambda one: one.file("/dev/nvidia0"), "error", "gpu-no-smi", "compute,utility"),
    ("a container without its GPUs", both(contained, lambda one: one.file("/proc/driver/nvidia/version", "NVRM")),
     "warning", "gpu-not-given", "--gpus all"),
    ("device files are missing", lambda one: one.gpus(A100, A100, files=1), "error", "gpu-files", "2 GPUs"),
    ("a fault", with_gpu(used="ERR!"), "error", "gpu-fault", "GPU 0 (NVIDIA A100-SXM4-80GB)"),
    ("memory errors", with_gpu(ecc="3"), "warning", "gpu-ecc", "3 memory errors"),
    ("somebody else's program", with_gpu(used="6144"), "warning", "gpu-used", "6 of 8 GB in use"),
    ("MIG", with_gpu(mig="Enabled"), "warning", "gpu-mig", "-mig 0"),
    ("a driver that tells no generation", old_smi, "warning", "gpu-old-smi",
     "driver 470.256.02 does not tell a GPU's generation: whether torch has kernels for it is not known"),
    ("two kinds of GPU", lambda one: one.gpus(A100, T4), "warning", "gpu-kinds", "Tesla T4"),
    ("hidden GPUs", both(with_gpu(), lambda one: one.env.update(CUDA_VISIBLE_DEVICES="1")), "note",
     "gpu-visible", "'1'"),
    ("a GPU larger than memory", with_gpu(total="99999999"), "note", "memory-little", "may not fit"),
    ("more GPUs than cores", lambda one: one.gpus(*[A100] * ((os.cpu_count() or 1) + 1)), "warning", "cores", "cores"),
    # disks and memory
    ("a full disk", lambda one: one.disk(str(one.home), free=0, mount="/home"), "error", "disk-full",
     "is full: 0 bytes"),
    ("little room", lambda one: one.disk("/tmp", free=GB, mount="/tmp"), "warning", "disk-little", "only 1 GB"),
    ("no inode left", lambda one: one.disk("/tmp", inodes=0, mount="/tmp"), "error", "inodes", "0 inodes"),
    ("a home that is not there", lambda one: one.env.update(HOME="/none"), "error", "disk-unwritable", "/none"),
    ("a file server that is gone", both(now(limit_s=1.0), lambda one: one.shim("df", "sleep 60")), "error",
     "disk-hangs", "the home folder"),
    ("a home on NFS", lambda one: (one.disk(str(one.home), mount="/home", source="server:/home"),
                                   one.file("/proc/mounts", "server:/home /home nfs4 rw 0 0\n")),
     "note", "home-network", "nfs4"),
    ("Docker's /dev/shm", both(contained, lambda one: one.disk("/dev/shm", size=65536, free=65536, mount="/dev/shm")),
     "warning", "shm", "64 MB"),
    # what administrators and images set
    ("few open files", now(limits="ulimit -S -n 256"), "warning", "open-files", "256 files"),
    ("InfiniBand and little locked memory",
     both(lambda one: one.file("/sys/class/infiniband/mlx5_0/x"), now(limits="ulimit -S -n 1024; ulimit -l 64")),
     "warning", "locked-memory", "64 kB of it is allowed"),
    ("a login node of Slurm", lambda one: one.shim("sinfo", ":"), "warning", "scheduler", "do not train here"),
    ("a login node of PBS", lambda one: one.shim("qstat", ":"), "warning", "scheduler", "qstat is here"),
    ("logout ends everything", both(killing("KillUserProcesses=yes", "KillExcludeUsers="),
                                    reached),
     "error", "logout-kills", "loginctl enable-linger"),
    ("it does on this computer, too", killing("KillExcludeUsers=", "KillUserProcesses=yes"), "warning",
     "logout-kills", "runs as well"),
    ("an image's variables", lambda one: one.env.update(MASTER_ADDR="x", PET_NNODES="1"), "note", "variables",
     "MASTER_ADDR, PET_NNODES are set"),
    ("authorized_keys misspelt",
     lambda one: ((one.home / ".ssh").mkdir(), (one.home / ".ssh" / "authourized_keys").write_text("")),
     "note", "misspelt", "mv ~/.ssh/authourized_keys ~/.ssh/authorized_keys"),
    ("a fish", both(on_login("fish", "exit 0"), reached), "note", "shell", "fish"),
    ("a shell that talks", both(in_bashrc("echo welcome to the lab\n"), reached),
     "note", "shell-talks", "welcome to the lab"),
    ("a shell that does not end", both(in_bashrc("sleep 60\n"), now(reached=True, limit_s=1.0)),
     "warning", "shell-slow", "10 s"),
    ("a clock that is behind", now(clock=(61.0, 62.0)), "warning", "clock", "61 s behind"),
    ("a clock that is ahead", now(clock=(-9.0, -8.0)), "warning", "clock", "8 s ahead"),
]  # fmt: skip
HEALTHY: list[tuple[str, Ail]] = [
    ("a CPU machine", nothing),
    ("one GPU", with_gpu()),
    ("reached by a login", both(with_gpu(), reached)),
    ("cu128 of 2.10 on Volta", trains("2.10.0+cu128", "12.8", V100)),
    ("cu126 on Volta", trains("2.11.0+cu126", "12.6", V100)),
    ("Ada runs Ampere's kernels", trains("2.4.1+cu121", "12.1", RTX4090)),
    ("CUDA 12.8 on the oldest driver of 12.x", trains("2.8.0+cu128", "12.8", A100, "525.60.13")),
    ("CUDA 11.8 on an old driver", trains("2.7.1+cu118", "11.8", A100, "450.80.02")),
    ("cu130 on Blackwell", trains("2.9.1+cu130", "13.0", RTX5090)),
    ("a build that no table knows", trains("2.8.0a0+34c6371d24.nv25.08", "12.9", V100)),
    ("a GPU that no table knows", trains("2.9.1+cu130", "13.0", ("NVIDIA R100", "13.0"))),
    ("WSL, which has no device files",
     lambda one: (one.gpus(A100, files=0), one.file("/dev/dxg"), one.python("2.8.0+cu128", "12.8"))),
    ("inside a job", lambda one: (one.shim("sinfo", ":"), one.env.update(SLURM_JOB_ID="7"))),
    ("lingering", killing("KillUserProcesses=yes", "KillExcludeUsers=", linger=True)),
    ("spared by name", killing("KillUserProcesses=yes", f"KillExcludeUsers={os.environ.get('USER') or 'root'}")),
    ("little locked memory, which nobody needs", now(limits="ulimit -S -n 1024; ulimit -l 64")),
    ("a bit of a desktop on the GPU", with_gpu(used="600")),
    ("a clock that may be right", now(clock=(-0.2, 9.0))),
]  # fmt: skip


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_agent(tmp_path_factory.mktemp("agent"))[0]


@pytest.mark.parametrize(
    ("ailment", "level", "what", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_each_ailment_is_named(tmp_path: Path, agent: Path, ailment: Ail, level: str, what: str, words: str) -> None:
    one = Patient(tmp_path / "patient", agent)
    ailment(one)
    found = judged(one.examined())
    named = [finding for finding in found if finding.what == what]
    assert {finding.level for finding in named} == {level}, found
    assert words in f"{named[0].say}; {named[0].hint}"
    assert all(finding.say and finding.hint and not finding.say.endswith(".") for finding in found), found


@pytest.mark.parametrize("ailment", [row[1] for row in HEALTHY], ids=[row[0] for row in HEALTHY])
def test_a_healthy_machine_is_left_alone(tmp_path: Path, agent: Path, ailment: Ail) -> None:
    one = Patient(tmp_path / "patient", agent)
    ailment(one)
    assert not [finding for finding in judged(one.examined()) if finding.level not in ("ok", "note")]


def test_a_probe_that_fails_costs_its_own_facts_only(tmp_path: Path, agent: Path) -> None:
    one = Patient(tmp_path / "patient", agent)
    one.gpus(A100)
    one.file("/sys/class/infiniband")  # a file where a folder should be
    one.shim("df", "echo Filesystem; echo 'x 1 2 three 4% /'")
    facts = one.facts()
    assert facts["infiniband"] == []
    assert [disk["there"] for disk in facts["disks"]] == [False] * 4
    assert len(facts["nvidia"]["gpus"]) == 1
