"""A machine that is made up of shims and files, and the real checkup run on it as a process."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gpuops.agent.checkup.host import SCHEDULER_PROGRAMS
from gpuops.commands.doctor.checks_gpu import gpu_findings
from gpuops.commands.doctor.checks_host import host_findings
from gpuops.commands.doctor.facts import Checkup, parse_facts
from gpuops.commands.doctor.report import Finding

GB = 2**20
"""In kB, as df counts."""
SMI = """#!/bin/sh
case "$*" in
*compute_cap*) {known} ;;
esac
while read -r line; do echo "$line"; done <<'END'
{rows}
END
"""
PYTHON = """#!/bin/sh
echo '{answer}'
"""
DF = """#!/bin/sh
case "$2" in
{cases}
esac
echo Filesystem blocks used free share mount
case "$1" in
-Pk) echo "$source $size 1 $free 1% $mount" ;;
-Pi) echo "$source 1000000 1 $inodes 1% $mount" ;;
esac
"""


@cache
def _programs() -> str:
    """This machine's programs without those of a scheduler, which a patient has by a shim only."""
    folder = Path(tempfile.mkdtemp(prefix="gpuops-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for program in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        if program.name not in SCHEDULER_PROGRAMS and not (folder / program.name).is_symlink():
            (folder / program.name).symlink_to(program)
    return str(folder)


@dataclass
class Patient:
    """Healthy until something is done to it: a CPU machine with room on its disks."""

    folder: Path
    agent: Path
    env: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    limits: str = "ulimit -S -n 1024"
    limit_s: float = 15.0
    """How long one program may take."""
    disks: dict[str, dict[str, Any]] = field(default_factory=dict)
    reached: bool = False
    clock: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("bin", "root", "home"):
            (self.folder / name).mkdir(parents=True)
        self.python("2.8.0+cpu", None)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def shim(self, name: str, script: str) -> Path:
        path = self.folder / "bin" / name
        path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def file(self, path: str, text: str = "") -> None:
        whole = self.folder / "root" / path.lstrip("/")
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(text)

    def gpus(self, *gpus: tuple[str, str], driver: str = "580.95.05", files: int | None = None, **columns: str) -> None:
        """GPUs as (name, compute capability), with nvidia-smi and the files in /dev."""
        usual = {"total": "8192", "driver": driver, "capability": "", "used": "4", "ecc": "0", "mig": "[N/A]"}
        rows = [
            ", ".join({"index": str(index), "name": name, **usual, "capability": capability, **columns}.values())
            for index, (name, capability) in enumerate(gpus)
        ]
        self.shim("nvidia-smi", SMI.format(known=":", rows="\n".join(rows)))
        for index in range(len(gpus) if files is None else files):
            self.file(f"/dev/nvidia{index}")
        self.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module")

    def card(self) -> None:
        """A GPU on the bus, whatever its driver does."""
        self.file("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
        self.file("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n")

    def python(self, torch: str | None, cuda: str | None, version: tuple[int, ...] = (3, 11, 7), **more: Any) -> str:
        """The Python that a run would take: a program that answers as one, and a torch that is one file."""
        site = self.folder / "site"
        if torch is not None:
            (site / "torch").mkdir(parents=True, exist_ok=True)
            (site / "torch" / "version.py").write_text(f"__version__ = {torch!r}\ncuda: str | None = {cuda!r}\n")
        path = self.folder / "bin" / "trains"
        answer = {"executable": str(path), "version": version, "path": [str(site)] if torch else [], "ensurepip": True,
                  "uv": False, **more}  # fmt: skip
        self.shim("trains", PYTHON.format(answer=json.dumps(answer)))
        return str(path)

    def disk(self, path: str, **numbers: Any) -> None:
        """What df says of a path: size and free in kB, inodes free, mount, source."""
        self.disks[path] = numbers

    def facts(self) -> dict[str, Any]:
        """Run the checkup."""
        usual = {"size": 500 * GB, "free": 400 * GB, "inodes": 900000, "mount": "/", "source": "/dev/vda1"}
        cases = [
            f"{path}) " + "; ".join(f"{key}='{value}'" for key, value in {**usual, **numbers}.items()) + " ;;"
            for path, numbers in {**self.disks, "*": {}}.items()
        ]
        if not (self.folder / "bin" / "df").exists():
            self.shim("df", DF.format(cases="\n".join(cases)))
        argv = [
            sys.executable,
            "-I",
            str(self.agent),
            "checkup",
            "--root",
            str(self.folder / "root"),
            "--limit",
            str(self.limit_s),
        ]
        argv += ["--first", str(self.folder / "bin" / "trains"), *(["--login"] if self.reached else []), *self.options]
        env = {"PATH": f"{self.folder / 'bin'}:{_programs()}", "HOME": str(self.home), "SHELL": "/bin/sh", **self.env}
        done = subprocess.run(
            ["sh", "-c", f'{self.limits}; exec "$@"', "sh", *argv],
            env=env,
            capture_output=True,
            timeout=600,
            check=True,
        )
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    def examined(self, where: str = "node0") -> Checkup:
        return Checkup(where, parse_facts(self.facts()), self.reached, self.clock)


def judged(place: Checkup) -> list[Finding]:
    return [*gpu_findings(place), *host_findings(place)]
