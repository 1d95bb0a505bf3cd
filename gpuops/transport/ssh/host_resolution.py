"""From what a user typed to a Target. Their own SSH configuration is asked through `ssh -G`, which knows it all."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.core.platform import HERE, NULL_FILE, System
from gpuops.transport.ssh import errors, keys, known_hosts
from gpuops.transport.ssh.target import HOST, USER, Target

ASK_S = 30.0
"""How long `ssh -G` may take: a Match may run a program of the user's."""
DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")
CARRIED = (
    "AddressFamily", "BindAddress", "BindInterface", "CASignatureAlgorithms", "CertificateFile", "Ciphers",
    "GSSAPIAuthentication", "HostKeyAlgorithms", "IdentityAgent", "IPQoS", "KexAlgorithms", "MACs",
    "PKCS11Provider", "PreferredAuthentications", "PubkeyAcceptedAlgorithms", "PubkeyAcceptedKeyTypes",
    "RequiredRSASize", "SecurityKeyProvider",
)  # fmt: skip
"""Lines of the user's configuration that a login may need, where they differ from OpenSSH's defaults."""
HARMLESS = frozenset({"IPQoS", "Ciphers", "MACs", "RequiredRSASize", "AddressFamily", "GSSAPIAuthentication"})
"""Of these, what paramiko may do without."""

Said = Mapping[str, Sequence[str]]
"""What `ssh -G` says: small-letter names, each with its values."""
Ask = Callable[[Sequence[str]], Said]


@dataclass(frozen=True)
class Typed:
    """The parts of `[ssh://][user@]host[:port]`."""

    host: str
    port: int | None = None
    user: str = ""


def parse(text: str) -> Typed:
    """Take apart what was typed. Raises UsageError."""
    rest = text.strip().removeprefix("ssh://").rstrip("/") if text.strip().startswith("ssh://") else text.strip()
    user, at, place = rest.rpartition("@")
    bracketed = re.fullmatch(r"\[(?P<host>[^\[\]]+)\](:(?P<port>\d+))?", place)
    if bracketed:
        host, port = bracketed["host"], bracketed["port"]
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:
        host, port = place, None  # a name, or an IPv6 address without brackets
    if not HOST.fullmatch(host) or (at and not USER.fullmatch(user)):
        raise UsageError(f"{text!r} is not a host", "write it as user@host, user@host:port, or a name of ~/.ssh/config")
    if port is not None and not (port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
        raise UsageError(f"{text!r} does not end with a port", "ports are 1 to 65535")
    return Typed(host, None if port is None else int(port), user)


def resolve(typed: str, *, identity: str | None = None, config: Path | None = None) -> Target:
    """How to log in to the host that was typed: an address, or a name of the user's configuration (`config`,
    else their own). Keys that their known_hosts files name for it are pinned. Raises UsageError.
    """
    place = parse(typed)
    if identity is not None:
        identity = os.path.abspath(os.path.expanduser(identity))
        if not os.path.isfile(identity):
            raise UsageError(f"the identity {identity} does not exist", "name the file of a private key")
    program = shutil.which("ssh")
    if program is None:
        return plain(place, identity, Path.home())
    asked = [*_options(place), "--", place.host]
    origin = ["-F", str(config)] if config is not None else []
    said = _ask(program, [*origin, *asked])
    defaults = _ask(program, ["-F", NULL_FILE, *asked])
    return from_config(place, said, defaults, identity, config)


def plain(place: Typed, identity: str | None, home: Path) -> Target:
    """Without an `ssh` to ask: what was typed, and the usual keys."""
    usual = (str(home / ".ssh" / name) for name in DEFAULT_IDENTITIES)
    identities = (identity,) if identity else tuple(path for path in usual if os.path.isfile(path))
    port = place.port or 22
    return Target(
        host=place.host,
        port=port,
        user=place.user or getpass.getuser(),
        identities=identities,
        identities_only=identity is not None,
        host_keys=known_hosts.known_keys(place.host, port),
    )


def from_config(
    place: Typed, said: Said, defaults: Said, identity: str | None = None, config: Path | None = None
) -> Target:
    """The target that `ssh -G`'s words describe. `defaults` is what it says without any configuration."""
    host, port, user = _one(said, "hostname") or place.host, _port(_one(said, "port")), _one(said, "user")
    identities = (identity,) if identity else _identities(said, host, port, user)
    options = tuple((name, text) for name in CARRIED for text in _carried(name, said, defaults))
    jump, command = _one(said, "proxyjump"), _one(said, "proxycommand")
    proxy = jump_line(jump, config) if jump not in ("", "none") else "" if command == "none" else command
    target = Target(
        host=host,
        port=port,
        user=user,
        identities=identities,
        identities_only=identity is not None or _one(said, "identitiesonly") == "yes",
        proxy=proxy,
        options=options,
        host_keys=_pinned(said, host, port),
    )
    return replace(target, system=bool(proxy) or needs_system(target))


def needs_system(target: Target) -> bool:
    """Whether the login takes more than paramiko can: see HARMLESS for what it may do without."""
    if any(name not in HARMLESS for name, _ in target.options):
        return True
    if ("GSSAPIAuthentication", "yes") in target.options:
        return True
    return any(keys.file_kind(path).startswith("sk-") for path in target.identities) or any(
        os.path.isfile(f"{path}-cert.pub") for path in target.identities
    )


def jump_line(jumps: str, config: Path | None = None, system: System = HERE) -> str:
    """ProxyJump as a ProxyCommand. Each hop is looked up in the user's own configuration, and none may ask anything."""
    line = ""
    for jump in jumps.split(","):
        hop = parse(jump)
        words = ["ssh", *(["-F", str(config)] if config is not None else []), "-o", "BatchMode=yes"]
        if line:
            words += ["-o", "ProxyCommand=" + line.replace("%", "%%")]
        words += ["-W", "[%h]:%p", *_options(hop), "--", hop.host]
        line = system.shell_line(words)
    return line


def _options(place: Typed) -> list[str]:
    return [*(["-p", str(place.port)] if place.port else []), *(["-l", place.user] if place.user else [])]


def _ask(program: str, arguments: Sequence[str]) -> Said:
    """Run `ssh -G`. Raises UsageError with its own words."""
    try:
        done = subprocess.run(
            [program, "-G", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            "`ssh -G`, which reads your SSH configuration, does not answer", "check the Match lines in ~/.ssh/config"
        ) from error
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(
            f"your SSH configuration cannot be read: {errors.shown(words[-1] if words else 'ssh does not say why')}",
            "check ~/.ssh/config",
        )
    said: dict[str, list[str]] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        name, _, text = line.partition(" ")
        said.setdefault(name.lower(), []).append(text)
    return said


def _one(said: Said, name: str) -> str:
    return next(iter(said.get(name, ())), "")


def _port(text: str) -> int:
    """Raises UsageError."""
    if text and not (text.isdecimal() and len(text) <= 5):
        raise UsageError(f"your SSH configuration names the port {text!r}", "ports are 1 to 65535")
    return int(text or 22)


def _carried(name: str, said: Said, defaults: Said) -> Sequence[str]:
    found = said.get(name.lower(), ())
    if list(found) == list(defaults.get(name.lower(), ())):
        return ()
    if name == "GSSAPIAuthentication" and not _has_ticket():
        return ()  # distributions turn it on for everybody; without a ticket it does nothing
    return [text for text in found if text]


def _has_ticket() -> bool:
    if os.environ.get("KRB5CCNAME"):
        return True
    return not HERE.windows and os.path.exists(f"/tmp/krb5cc_{os.getuid()}")


def _identities(said: Said, host: str, port: int, user: str) -> tuple[str, ...]:
    """The identity files that exist."""
    tokens = {"%%": "%", "%d": str(Path.home()), "%h": host, "%p": str(port), "%r": user, "%u": getpass.getuser()}
    found = []
    for text in said.get("identityfile", ()):
        path = re.sub("%.", lambda token: tokens.get(token[0], token[0]), os.path.expanduser(text))
        if os.path.isfile(path) or os.path.isfile(f"{path}.pub"):
            found.append(path)
    return tuple(dict.fromkeys(found))


def _paths(text: str) -> Sequence[str]:
    """Several of them on a line; an apostrophe in one (`/home/o'hara`) is no quotation mark."""
    try:
        return HERE.paths(text)
    except ValueError:
        return text.split()


def _pinned(said: Said, host: str, port: int) -> tuple[str, ...]:
    """What the user's known_hosts files say, under the names their configuration gives."""
    files = [
        os.path.expanduser(file)
        for name in ("userknownhostsfile", "globalknownhostsfile")
        for text in said.get(name, ())
        for file in _paths(text)
    ]
    name = _one(said, "hostkeyalias")
    return known_hosts.known_keys(name, 22, files) if name else known_hosts.known_keys(host, port, files)
