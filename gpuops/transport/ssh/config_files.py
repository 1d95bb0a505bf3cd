"""Generated files for people, editors and rsync: `<cluster>.conf` and `<cluster>.known_hosts`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.core.files import private_folder, write_private
from gpuops.core.models import NAME
from gpuops.transport.ssh.config_lines import control_path, host_lines, known_hosts_lines, mark
from gpuops.transport.ssh.openssh import end_master, ssh_program
from gpuops.transport.ssh.quoting import encoded, shell_line
from gpuops.transport.ssh.target import Target

PERSIST_S = 600
"""How long a login by hand is kept for the next one."""
CONTROL = re.compile(r"^\s*# Target ([0-9a-f]{16})$", re.MULTILINE)
FORWARD = re.compile(r"[\w.:/\[\]*-]+")


def alias(cluster: str, index: int) -> str:
    """The name under which `ssh` knows a node."""
    return f"gpuops-{cluster}-{index}"


def write_config(folder: Path, cluster: str, targets: Sequence[Target]) -> Path:
    """Write a cluster's files, each whole or not at all. Raises UsageError, NodeError, LocalDisk."""
    _check(cluster)
    private_folder(folder)
    private_folder(folder / "cm")
    known = folder / f"{cluster}.known_hosts"
    config = folder / f"{cluster}.conf"
    trusted: list[str] = []
    lines = [f"# Written by gpuops for the cluster {cluster}; `gpuops down {cluster}` removes it."]
    for index, target in enumerate(targets):
        name = alias(cluster, index)
        trusted += known_hosts_lines(name, target)
        lines += [
            "",
            f"# Target {mark(target)}",
            *host_lines(name, target, known, control_path(folder, target), PERSIST_S),
        ]
    write_private(known, "\n".join([*trusted, ""]))
    write_private(config, "\n".join([*lines, ""]))
    return config


def remove_config(folder: Path, cluster: str) -> None:
    """Remove a cluster's files and end the logins made with them; never raises."""
    if not NAME.fullmatch(cluster):
        return
    config = folder / f"{cluster}.conf"
    others = [path for path in folder.glob("*.conf") if path != config]
    shared = {target for path in others for target in _marks(path)}
    for target in _marks(config) - shared:
        for socket in (folder / "cm").glob(f"{target}-*"):
            end_master(socket)
        for path in (folder / "own").glob(f"{target}[.-]*"):
            _unlink(path)
    _unlink(config)
    _unlink(folder / f"{cluster}.known_hosts")


def _marks(config: Path) -> set[str]:
    """Which targets a file of ours names."""
    try:
        return set(CONTROL.findall(config.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return set()  # there is none, or none that is ours


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # a stale file makes nothing wrong: hosts are checked by key


def command_line(
    folder: Path,
    cluster: str,
    index: int,
    argv: Sequence[str] = (),
    *,
    tty: bool = False,
    forwards: Sequence[str] = (),
    quiet: bool = False,
) -> list[str]:
    """The command of the system's `ssh` on this computer that runs `argv` on a node, a shell without any.

    `forwards` are as after `ssh -L`; with them and without `argv` nothing is run.
    `quiet`: what goes wrong with the login is ours to say. Raises UsageError.
    """
    _check(cluster)
    config = folder / f"{cluster}.conf"
    if not config.exists():
        raise UsageError(f"there is no SSH configuration for the cluster {cluster}", "see `gpuops status`")
    line = [ssh_program(), "-F", str(config)]
    if quiet:
        line += ["-o", "LogLevel=QUIET"]
    for forward in forwards:
        if not FORWARD.fullmatch(forward) or forward.startswith("-"):
            raise UsageError(f"{forward!r} is not a port to forward", "write it as 8080:127.0.0.1:8080")
        line += ["-L", forward]
    if forwards:
        # A login of its own: a shared one would keep the port after its user has gone.
        line += ["-S", "none", "-o", "ExitOnForwardFailure=yes", *([] if argv else ["-N"])]
    if tty:
        line.append("-t")
    elif argv:
        line.append("-T")
    line.append(alias(cluster, index))
    if argv:
        line.append(encoded(shell_line(argv)).decode("utf-8", "surrogateescape"))
    return line


def _check(cluster: str) -> None:
    if not NAME.fullmatch(cluster):
        raise UsageError(f"{cluster!r} is not the name of a cluster", "names are small letters, digits and dashes")
