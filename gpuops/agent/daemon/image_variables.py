"""The environment that an image brings, for everything that runs on a rented machine: set-up, runs, `gpuops ssh`.

A Dockerfile's ENV reaches a container's first process and its children. A login through sshd has none of it: not the
PATH with CUDA's programs, not LD_LIBRARY_PATH, not HF_HOME, and not PIP_BREAK_SYSTEM_PACKAGES, without which pip
installs nothing into the system's Python (PEP 668). RunPod's official images set all of these
(github.com/runpod/containers, the base image's Dockerfile), and their torch is in the system's Python.

A machine whose first process is systemd or init is no container: nothing is taken from it. A machine that was not
rented, a user's own host or computer, keeps the environment of a login.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Mapping, MutableMapping

from gpuops.agent.node import Node, log, read_text, write_text

SCRIPT = "image.sh"
"""In the node's folder: read by the shell of `gpuops ssh`."""
INIT_PROGRAMS = ("systemd", "init")
RENTED = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "UV_BREAK_SYSTEM_PACKAGES": "1"}
"""A rented machine ends with its cluster, so its system's Python may be changed in every distribution."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_THE_IMAGES = re.compile(
    r"(RUNPOD|VAST|CONTAINER|GPUOPS|SSH|PET|MASTER|PRIMARY|TORCHELASTIC)_.*"  # providers', ours, an outer launcher's
    r"|((LOCAL|NODE|GROUP|ROLE)_)?RANK|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|NUM_(NODES|TRAINERS)|(HOST_)?NODE_ADDR"
    r"|(?i:.*(KEY|TOKEN|SECRET|PASSWORD))"
    r"|HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|TERM|HOSTNAME|MAIL|_"  # a login's
)
"""Variables of a first process that must not reach other processes."""


def adopt(node: Node, environ: MutableMapping[str, str] = os.environ, proc: str = "/proc") -> None:
    """On a rented machine, add the image's environment to this process's, and write it down for logins."""
    settings = node.machine_node().settings()
    if not settings.rented:
        return
    image = {**RENTED, **of_image(first_environment(settings.boot_watch, proc))}
    try:
        write_text(node.path(SCRIPT), "".join(line + "\n" for line in script(image)), 0o644)
    except OSError as error:
        log(f"the image's environment cannot be written for logins: {error}")  # a full disk must not end the agent
    environ.update({**image, "PATH": join_paths(image.get("PATH", ""), environ.get("PATH", os.defpath))})


def first_environment(watch: str | None, proc: str = "/proc") -> dict[str, str]:
    """The environment of a container's first process, else of the watchdog in the folder `watch`; {} without either.

    The watchdog replaces a first process that shows none: sshd writes its title over its environment.
    """
    if read_text(os.path.join(proc, "1", "comm")) in ("", *INIT_PROGRAMS):
        return {}
    for pid in ("1", read_text(os.path.join(watch, "pid")) if watch else ""):
        environ = _environment(os.path.join(proc, pid, "environ")) if pid.isdigit() else {}
        if "PATH" in environ:
            return environ
    return {}


def of_image(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of a first process's environment that comes from its image."""
    names = [name for name in environ if NAME.fullmatch(name) and not NOT_THE_IMAGES.fullmatch(name)]
    return {name: environ[name] for name in names}


def join_paths(first: str, then: str) -> str:
    """One PATH of two, each folder once."""
    return os.pathsep.join(dict.fromkeys(part for part in (first + os.pathsep + then).split(os.pathsep) if part))


def script(image: Mapping[str, str]) -> list[str]:
    """Lines of shell that give a login the image's environment."""
    after = {"PATH": ':"$PATH"'}
    return [f"export {name}={shlex.quote(value)}{after.get(name, '')}" for name, value in sorted(image.items())]


def _environment(path: str) -> dict[str, str]:
    """Entries that are not UTF-8 are left out."""
    try:
        with open(path, "rb") as file:
            entries = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry and "\ufffd" not in entry)
