"""The environment that an image brings, for all that runs on a rented machine: set-up, runs, `gpuops ssh`.

A Dockerfile's ENV reaches a container's first process and what that starts. A login through sshd sees nothing of it:
not the PATH with CUDA's programs, not LD_LIBRARY_PATH, not HF_HOME, and not PIP_BREAK_SYSTEM_PACKAGES, without which
pip installs nothing into the system's own Python (PEP 668). RunPod's official images set all of these
(github.com/runpod/containers, the base image's Dockerfile), and torch is in their system's Python.

A machine whose first process is systemd or init is no container, and has nothing to take. One that nobody rented, a
user's own host or computer, is left as a login finds it.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Mapping, MutableMapping

from gpuops.agent.node import Node, log
from gpuops.agent.python.environments import write_lines

SCRIPT = "image.sh"
"""In the node's folder: what a shell of `gpuops ssh` reads."""
NO_CONTAINER = ("systemd", "init")
RENTED = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "UV_BREAK_SYSTEM_PACKAGES": "1"}
"""A rented machine ends with its cluster: its system's Python may be changed, whatever its distribution says."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_THE_IMAGES = re.compile(
    r"(RUNPOD|GPUOPS|SSH|PET|MASTER|PRIMARY|TORCHELASTIC)_.*"  # the provider's, ours, an outer launcher's
    r"|((LOCAL|NODE|GROUP|ROLE)_)?RANK|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|NUM_(NODES|TRAINERS)|(HOST_)?NODE_ADDR"
    r"|(?i:.*(KEY|TOKEN|SECRET|PASSWORD))"
    r"|HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|TERM|HOSTNAME|MAIL|_"  # a login's
)
"""Names that stand in a first process's environment and are not for others."""


def adopt(node: Node, environ: MutableMapping[str, str] = os.environ, proc: str = "/proc") -> None:
    """On a rented machine, make the image's environment this process's, and write it down for logins."""
    settings = (node.host() or node).settings()
    if not settings.get("rented"):
        return
    image = {**RENTED, **brought(first_environment(settings.get("boot_watch"), proc))}
    path = node.path(SCRIPT)
    try:
        os.replace(write_lines(path + ".tmp", script(image)), path)
    except OSError as error:
        log(f"what logins read of the image's environment cannot be written: {error}")  # a full disk ends no agent
    environ.update({**image, "PATH": joined(image.get("PATH", ""), environ.get("PATH", os.defpath))})


def first_environment(watch: str | None, proc: str = "/proc") -> dict[str, str]:
    """The environment of a container's first process, else of the watchdog that came with it; {} where neither tells.

    An sshd that is the first process writes its title over its environment.
    """
    if _line(os.path.join(proc, "1", "comm")) in ("", *NO_CONTAINER):
        return {}
    for pid in ("1", _line(os.path.join(watch, "pid")) if watch else ""):
        found = _environment(os.path.join(proc, pid, "environ")) if pid.isdigit() else {}
        if "PATH" in found:
            return found
    return {}


def brought(environ: Mapping[str, str]) -> dict[str, str]:
    """What of a first process's environment is its image's."""
    names = [name for name in environ if NAME.fullmatch(name) and not NOT_THE_IMAGES.fullmatch(name)]
    return {name: environ[name] for name in names}


def joined(first: str, then: str) -> str:
    """One PATH of two, each folder once."""
    return os.pathsep.join(dict.fromkeys(part for part in (first + os.pathsep + then).split(os.pathsep) if part))


def script(image: Mapping[str, str]) -> list[str]:
    """Lines of shell that give a login what the image brings."""
    after = {"PATH": ':"$PATH"'}
    return [f"export {name}={shlex.quote(value)}{after.get(name, '')}" for name, value in sorted(image.items())]


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def _environment(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            entries = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry and "\ufffd" not in entry)
