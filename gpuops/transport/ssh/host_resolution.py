"""Makes the Target of a host that a user typed: address, user, keys and what else a login there needs.

`ssh -G` evaluates the user's own SSH configuration, with its Match and Include lines; without an `ssh` on this computer
only the typed parts and the default keys count. A login that needs more than paramiko can do is marked for OpenSSH.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.core.format import one_line
from gpuops.core.platform import HERE, NULL_FILE, System
from gpuops.transport.ssh import errors, known_hosts_files, private_keys
from gpuops.transport.ssh.target import HOST, USER, Target

SSH_CONFIG_TIMEOUT_S = 30.0
"""How long `ssh -G` may take. A Match line may run a program of the user, so it is not immediate."""
DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")
FORWARDED_OPTIONS = (
    "AddressFamily", "BindAddress", "BindInterface", "CASignatureAlgorithms", "CertificateFile", "Ciphers",
    "GSSAPIAuthentication", "HostKeyAlgorithms", "IdentityAgent", "IPQoS", "KexAlgorithms", "MACs",
    "PKCS11Provider", "PreferredAuthentications", "PubkeyAcceptedAlgorithms", "PubkeyAcceptedKeyTypes",
    "RequiredRSASize", "SecurityKeyProvider",
)  # fmt: skip
"""Options of the user's configuration that are part of the Target where they differ from OpenSSH's defaults."""
PARAMIKO_IGNORABLE_OPTIONS = frozenset(
    {"IPQoS", "Ciphers", "MACs", "RequiredRSASize", "AddressFamily", "GSSAPIAuthentication"}
)
"""Forwarded options that a login by paramiko may ignore."""

SshConfig = Mapping[str, Sequence[str]]
"""The output of `ssh -G`: option names in small letters, each with its values in order."""


@dataclass(frozen=True)
class HostSpec:
    """The parts of `[ssh://][user@]host[:port]`."""

    host: str
    port: int | None = None
    user: str = ""


def parse_host_spec(text: str) -> HostSpec:
    """Parse a host as a user types it. Raises UsageError where it is not `[ssh://][user@]host[:port]`."""
    rest = text.strip().removeprefix("ssh://").rstrip("/") if text.strip().startswith("ssh://") else text.strip()
    user, at, endpoint = rest.rpartition("@")
    bracketed = re.fullmatch(r"\[(?P<host>[^\[\]]+)\](:(?P<port>\d+))?", endpoint)
    if bracketed:
        host, port = bracketed["host"], bracketed["port"]
    elif endpoint.count(":") == 1:
        host, _, port = endpoint.partition(":")
    else:
        host, port = endpoint, None  # a name, or an IPv6 address without brackets
    if not HOST.fullmatch(host) or (at and not USER.fullmatch(user)):
        raise UsageError(f"{text!r} is not a host", "write it as user@host, user@host:port, or a name of ~/.ssh/config")
    if port is not None and not (port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
        raise UsageError(f"{text!r} does not end with a port", "ports are 1 to 65535")
    return HostSpec(host, None if port is None else int(port), user)


def resolve_target(typed: str, *, identity: str | None = None, config: Path | None = None) -> Target:
    """Find out how to log in to a host: an address, or a name of an SSH configuration (`config`, else the user's).

    The host keys of the user's known_hosts files are pinned in the Target. `identity` is the file of a private key
    to use instead of the configured ones. Raises UsageError.
    """
    spec = parse_host_spec(typed)
    if identity is not None:
        identity = os.path.abspath(os.path.expanduser(identity))
        if not os.path.isfile(identity):
            raise UsageError(f"the identity {identity} does not exist", "name the file of a private key")
    program = shutil.which("ssh")
    if program is None:
        return target_without_openssh(spec, identity, Path.home())
    config_option = ["-F", str(config)] if config is not None else []
    ssh_config = _read_ssh_config(program, [*config_option, *_login_options(spec), "--", spec.host])
    with _DEFAULTS_LOCK:  # the hosts of one cluster are looked up at once
        defaults = _openssh_defaults(program)
    return target_from_ssh_config(spec, ssh_config, defaults, identity, config)


def target_without_openssh(spec: HostSpec, identity: str | None, home: Path) -> Target:
    """The target where this computer has no `ssh`: the typed parts and the default keys in `home`/.ssh."""
    default_paths = (str(home / ".ssh" / name) for name in DEFAULT_IDENTITIES)
    identities = (identity,) if identity else tuple(path for path in default_paths if os.path.isfile(path))
    port = spec.port or 22
    return Target(
        host=spec.host,
        port=port,
        user=spec.user or getpass.getuser(),
        identities=identities,
        identities_only=identity is not None,
        host_keys=known_hosts_files.known_keys(spec.host, port),
    )


def target_from_ssh_config(
    spec: HostSpec, ssh_config: SshConfig, defaults: SshConfig, identity: str | None = None, config: Path | None = None
) -> Target:
    """The target that the output of `ssh -G` describes. Raises UsageError.

    `defaults` is the output of `ssh -G` without any configuration; `config` is the file that hops of a ProxyJump use.
    """
    host = _first_value(ssh_config, "hostname") or spec.host
    port, user = _port(_first_value(ssh_config, "port")), _first_value(ssh_config, "user")
    identities = (identity,) if identity else _identities(ssh_config, host, port, user)
    options = tuple(
        (name, value) for name in FORWARDED_OPTIONS for value in _forwarded_values(name, ssh_config, defaults)
    )
    jump, command = _first_value(ssh_config, "proxyjump"), _first_value(ssh_config, "proxycommand")
    proxy = jump_line(jump, config) if jump not in ("", "none") else "" if command == "none" else command
    target = Target(
        host=host,
        port=port,
        user=user,
        identities=identities,
        identities_only=identity is not None or _first_value(ssh_config, "identitiesonly") == "yes",
        proxy=proxy,
        options=options,
        host_keys=_pinned_host_keys(ssh_config, host, port),
    )
    return replace(target, system=bool(proxy) or needs_openssh(target))


def needs_openssh(target: Target) -> bool:
    """Whether a login needs OpenSSH: for an option that paramiko may not ignore, a security key or a certificate."""
    if any(name not in PARAMIKO_IGNORABLE_OPTIONS for name, _ in target.options):
        return True
    if ("GSSAPIAuthentication", "yes") in target.options:
        return True
    return any(private_keys.file_kind(path).startswith("sk-") for path in target.identities) or any(
        os.path.isfile(f"{path}-cert.pub") for path in target.identities
    )


def jump_line(jumps: str, config: Path | None = None, system: System = HERE) -> str:
    """Translate a ProxyJump value into a ProxyCommand. Raises UsageError.

    `ssh` looks up each hop in the user's configuration (`config`, by default their own) and never asks for input.
    """
    line = ""
    for jump in jumps.split(","):
        hop = parse_host_spec(jump)
        arguments = ["ssh", *(["-F", str(config)] if config is not None else []), "-o", "BatchMode=yes"]
        if line:
            arguments += ["-o", "ProxyCommand=" + line.replace("%", "%%")]
        arguments += ["-W", "[%h]:%p", *_login_options(hop), "--", hop.host]
        line = system.shell_line(arguments)
    return line


def _login_options(spec: HostSpec) -> list[str]:
    return [*(["-p", str(spec.port)] if spec.port else []), *(["-l", spec.user] if spec.user else [])]


def _read_ssh_config(program: str, arguments: Sequence[str]) -> SshConfig:
    """Run `ssh -G`. Raises UsageError with the last line of its errors where it fails or does not answer."""
    try:
        process = subprocess.run(
            [program, "-G", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SSH_CONFIG_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            "`ssh -G`, which reads your SSH configuration, does not answer", "check the Match lines in ~/.ssh/config"
        ) from error
    if process.returncode != 0:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        why = one_line(lines[-1], errors.MAX_SHOWN_CHARS) if lines else "ssh does not say why"
        raise UsageError(f"your SSH configuration cannot be read: {why}", "check ~/.ssh/config")
    ssh_config: dict[str, list[str]] = {}
    for line in process.stdout.decode(errors="replace").splitlines():
        name, _, value = line.partition(" ")
        ssh_config.setdefault(name.lower(), []).append(value)
    return ssh_config


@cache
def _openssh_defaults(program: str) -> SshConfig:
    """What holds for any host without any configuration. Raises UsageError."""
    return _read_ssh_config(program, ["-F", NULL_FILE, "--", "localhost"])


_DEFAULTS_LOCK = threading.Lock()


def _first_value(ssh_config: SshConfig, name: str) -> str:
    return next(iter(ssh_config.get(name, ())), "")


def _port(text: str) -> int:
    """The port that `ssh -G` gives; 22 for an empty text. Raises UsageError."""
    if text and not (text.isdecimal() and len(text) <= 5):
        raise UsageError(f"your SSH configuration names the port {text!r}", "ports are 1 to 65535")
    return int(text or 22)


def _forwarded_values(name: str, ssh_config: SshConfig, defaults: SshConfig) -> Sequence[str]:
    """The values of an option that the Target carries: none where they are OpenSSH's defaults."""
    values = ssh_config.get(name.lower(), ())
    if list(values) == list(defaults.get(name.lower(), ())):
        return ()
    if name == "GSSAPIAuthentication" and not _has_kerberos_ticket():
        return ()  # distributions turn it on for everybody; without a ticket it does nothing
    return [value for value in values if value]


def _has_kerberos_ticket() -> bool:
    if os.environ.get("KRB5CCNAME"):
        return True
    return not HERE.windows and os.path.exists(f"/tmp/krb5cc_{os.getuid()}")


def _identities(ssh_config: SshConfig, host: str, port: int, user: str) -> tuple[str, ...]:
    """Paths of the configured identities of which the private or the public file exists, with ssh's tokens replaced."""
    tokens = {"%%": "%", "%d": str(Path.home()), "%h": host, "%p": str(port), "%r": user, "%u": getpass.getuser()}
    existing = []
    for text in ssh_config.get("identityfile", ()):
        path = re.sub("%.", lambda token: tokens.get(token[0], token[0]), os.path.expanduser(text))
        if os.path.isfile(path) or os.path.isfile(f"{path}.pub"):
            existing.append(path)
    return tuple(dict.fromkeys(existing))


def _split_paths(text: str) -> Sequence[str]:
    """Split a line of paths; at blanks only, where an apostrophe in it (`/home/o'hara`) closes no quotation."""
    try:
        return HERE.paths(text)
    except ValueError:
        return text.split()


def _pinned_host_keys(ssh_config: SshConfig, host: str, port: int) -> tuple[str, ...]:
    """The host keys that the configured known_hosts files give for the host, or for its HostKeyAlias."""
    files = [
        os.path.expanduser(file)
        for name in ("userknownhostsfile", "globalknownhostsfile")
        for text in ssh_config.get(name, ())
        for file in _split_paths(text)
    ]
    name = _first_value(ssh_config, "hostkeyalias")
    return known_hosts_files.known_keys(name, 22, files) if name else known_hosts_files.known_keys(host, port, files)
