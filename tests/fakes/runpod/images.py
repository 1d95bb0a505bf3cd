"""What images bring: what they run, and what is on their disk beside this machine's own programs."""

from __future__ import annotations

import json
import os
import re
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from tests.system.lab import disk

START = Path(__file__).with_name("start.sh")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OWN_ENTRYPOINT = "#!/bin/sh\n# Serves a model, whatever it is told to do.\necho serving\nexec sleep infinity\n"
_SSHD = """\
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""
_BASHRC = '# What follows is for interactive shells.\n[ -z "$PS1" ] && return\n'


@dataclass(frozen=True)
class Image:
    """As a Dockerfile says it: ENTRYPOINT, CMD, ENV."""

    name: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Programs, by their path."""
    user: int = 0
    """USER: who its first process is, unless RUNPOD_POD_USER says otherwise."""
    system_python: tuple[str, ...] = ()
    """What its system's Python is called where torch is in that; else torch is in /opt/pytorch."""

    def argv(self, args: str) -> list[str]:
        """`args` is one string. As words it stands for the command, and the entrypoint makes of it what it likes; as a
        JSON object it may replace both."""
        try:
            both = json.loads(args)
        except ValueError:
            both = None
        if isinstance(both, dict):
            return [*both.get("entrypoint", self.entrypoint), *both.get("cmd", self.command)]
        try:
            words = shlex.split(args) if args else self.command
        except ValueError:
            words = [args]  # a quote that does not end: no program has that name
        return [*self.entrypoint, *words]


OFFICIAL = Image(
    "runpod/*",
    command=("/start.sh",),
    env={
        "CUDA_VERSION": "12.8.1",
        "PYTORCH_VERSION": "2.8.0",
        "LANG": "C.UTF-8",
        "PATH": f"/usr/local/cuda/bin:{PATH}",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
        "HF_HOME": "/workspace/.cache/huggingface",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
    },
    files={"/start.sh": START.read_text()},
    system_python=("python3", "python"),
)
IMAGES = (
    OFFICIAL,
    replace(OFFICIAL, name="example/python3-only:*", system_python=("python3",)),
    Image(
        "example/own-entrypoint:*",
        entrypoint=("/usr/local/bin/serve",),
        files={"/usr/local/bin/serve": _OWN_ENTRYPOINT},
    ),
    Image("example/non-root:*", command=("bash",), user=1000),
    Image("debian:*", command=("bash",), env={"HF_HOME": "/srv/models"}),
)
"""The first that fits; any other is like debian."""


def image(name: str) -> Image:
    return next((one for one in IMAGES if fnmatchcase(name, one.name)), IMAGES[-1])


def lay(upper: Path, one: Image, hostname: str, hosts: str) -> None:
    """Make an overlay's upper folder: what the image's disk has; hidden is what this machine has and no image would."""
    shadow = Path("/etc/shadow").read_text()
    disk.write(upper, {
        "etc/hostname": f"{hostname}\n",
        "etc/hosts": hosts,
        "etc/machine-id": f"{uuid.uuid4().hex}\n",
        "etc/resolv.conf": "# No name server: who asks is refused at once.\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        "etc/shadow": re.sub(r"(?m)^root:[^:]*", "root:*", shadow),  # sshd lets nobody into a locked account
        "etc/ssh/sshd_config": _SSHD,
    })  # fmt: skip
    (upper / "etc/shadow").chmod(0o600)
    disk.hide(upper, [str(path) for path in Path("/etc/ssh").glob("ssh_host_*")])
    for path, mode in (("root", 0o700), ("tmp", 0o1777), ("run", 0o755), ("workspace", 0o755)):
        (upper / path).mkdir()
        (upper / path).chmod(mode)
        os.setxattr(upper / path, "trusted.overlay.opaque", b"y")
    disk.write(upper, {"root/.bashrc": _BASHRC})
    if one.system_python:
        disk.give_system_torch(upper, one.system_python)
    else:
        disk.give_torch(upper)
    for path, text in one.files.items():
        disk.write(upper, {path.lstrip("/"): text})
        (upper / path.lstrip("/")).chmod(0o755)
