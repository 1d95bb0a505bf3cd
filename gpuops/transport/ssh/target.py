"""How one host is logged in to, as data: plain, frozen, JSON-able both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import UsageError

HOST = re.compile(r"\w[\w.-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?")
"""A name, or an address; nothing that a shell or a configuration file could read as more than that."""
USER = re.compile(r"\w[\w.@+-]*\$?")
OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*")


@dataclass(frozen=True)
class Target:
    """One host. Raises UsageError for a name that could be taken for something else than a name."""

    host: str
    port: int = 22
    user: str = ""
    identities: tuple[str, ...] = ()
    """Paths of private keys on this computer."""
    identities_only: bool = False
    proxy: str = ""
    """A ProxyCommand line, "" for none."""
    system: bool = False
    """It takes the system's OpenSSH: a proxy, a security key, a certificate, or what paramiko cannot."""
    options: tuple[tuple[str, str], ...] = ()
    """Further lines of ssh_config, from the user's own, that OpenSSH needs."""
    host_keys: tuple[str, ...] = ()
    """Keys it may present, `ssh-ed25519 AAAA…`. Without one it is never logged in to."""

    def __post_init__(self) -> None:
        if not HOST.fullmatch(self.host):
            raise UsageError(f"{self.host!r} is not the name or address of a host", "write it as user@host:port")
        if self.user and not USER.fullmatch(self.user):
            raise UsageError(f"{self.user!r} is not the name of a user", "write it as user@host:port")
        if not 0 < self.port < 65536:
            raise UsageError(f"{self.port} is not a port", "ports are 1 to 65535")
        for line in (self.proxy, *self.identities, *(text for option in self.options for text in option)):
            if any(char in line for char in "\0\r\n"):
                raise UsageError(f"{line!r} is more than one line", "check your SSH configuration")
        if any(not OPTION.fullmatch(name) for name, _ in self.options):
            raise UsageError("an option of ssh has a name that none has", "check your SSH configuration")

    @property
    def by_system(self) -> bool:
        """Whether a login needs the system's `ssh`."""
        return self.system or bool(self.proxy)

    @property
    def where(self) -> str:
        """For messages: `user@host:port`, without what goes without saying."""
        host = f"[{self.host}]" if ":" in self.host and self.port != 22 else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port != 22 else "")

    @property
    def address(self) -> str:
        """Where the login knocks first, for counting: all hosts behind one jump host are one address."""
        return self.proxy or f"{self.host}:{self.port}"

    def document(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "identities": list(self.identities),
            "identities_only": self.identities_only,
            "proxy": self.proxy,
            "system": self.system,
            "options": [list(option) for option in self.options],
            "host_keys": list(self.host_keys),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Target:
        """The target that `document` made, of this version or an earlier one. Raises UsageError."""
        try:
            return cls(
                host=str(document["host"]),
                port=int(document.get("port", 22)),
                user=str(document.get("user", "")),
                identities=tuple(str(path) for path in document.get("identities", ())),
                identities_only=bool(document.get("identities_only", False)),
                proxy=str(document.get("proxy", "")),
                system=bool(document.get("system", False)),
                options=tuple((str(name), str(value)) for name, value in document.get("options", ())),
                host_keys=tuple(str(key) for key in document.get("host_keys", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError("what is stored of a host cannot be read", "name the host again") from error
