"""The lines of ssh_config and known_hosts for one target. Pure; the same for our own programs and for people."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.core.platform import HERE, NULL_FILE, System
from gpuops.transport.ssh import host_keys
from gpuops.transport.ssh.target import Target

CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr"
"""All that OpenSSH takes by default, the fastest first (older versions cannot say `^aes128-gcm@openssh.com`)."""


def value(text: str) -> str:
    """A value in quotes. Raises UsageError for one that could end them, or that `ssh` would take for a variable."""
    if any(ord(char) < 32 or ord(char) == 127 for char in text) or '"' in text or "\\" in text or "${" in text:
        raise UsageError(
            f"{text!r} cannot stand in an SSH configuration", "choose a path without quotes and backslashes"
        )
    return f'"{text}"'


def path_value(path: str | Path, system: System = HERE) -> str:
    """A path in quotes; a percent sign in it is none of `ssh`'s tokens."""
    return value(system.config_path(str(path)).replace("%", "%%"))


def mark(target: Target) -> str:
    """A short name for exactly this target."""
    text = json.dumps(target.document(), sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def control_path(folder: Path, target: Target, number: int = 0) -> Path:
    """The socket through which all programs share a login: the same target, the same socket."""
    return folder / "cm" / f"{mark(target)}-{number}"


def host_lines(
    alias: str,
    target: Target,
    known_hosts: Path,
    control: Path | None,
    persist_s: int,
    ping_s: int = 10,
    system: System = HERE,
) -> list[str]:
    """A Host section. `control` is the shared socket, None for a login each. Raises UsageError."""
    lines = [
        f"HostName {value(target.host.replace('%', '%%'))}",
        f"Port {target.port}",
        *([f"User {value(target.user)}"] if target.user else []),
        *(f"IdentityFile {path_value(path, system)}" for path in target.identities),
        f"IdentitiesOnly {'yes' if target.identities_only else 'no'}",
        f"HostKeyAlias {alias}",
        f"UserKnownHostsFile {path_value(known_hosts, system)}",
        f"GlobalKnownHostsFile {NULL_FILE}",
        "StrictHostKeyChecking yes",
        "UpdateHostKeys no",
        "CheckHostIP no",
        "ForwardAgent no",
        "ForwardX11 no",
        "PermitLocalCommand no",
        "ConnectTimeout 15",
        f"ServerAliveInterval {ping_s}",
        "ServerAliveCountMax 3",
    ]
    if control is not None and system.shares_logins and system.fits_socket(str(control)):
        lines += ["ControlMaster auto", f"ControlPath {path_value(control, system)}", f"ControlPersist {persist_s}"]
    if target.proxy:
        lines.append(f"ProxyCommand {target.proxy}")
    if not any(name.lower() == "ciphers" for name, _ in target.options):
        lines.append(f"Ciphers {CIPHERS}")
    lines += [f"{name} {text}" for name, text in target.options]
    return [f"Host {alias}", *(f"  {line}" for line in lines)]


def known_hosts_lines(alias: str, target: Target) -> list[str]:
    """Raises NodeError for a key that is none."""
    return [f"{alias} {host_keys.canonical(key)}" for key in target.host_keys]
