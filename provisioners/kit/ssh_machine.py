"""What `Resource.data` says of a machine that is reached by SSH (docs/providers.md): every key each time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Login:
    """How a machine is logged in to, as far as it is known yet."""

    user: str
    host: str
    """Empty while it has no address."""
    port: int
    host_key: str
    """`ssh-ed25519 AAAA…`, which it must show; empty while that is not known."""


def ssh_data(
    home: Path,
    login: Login,
    kept: Mapping[str, Any],
    *,
    token: str,
    account: Mapping[str, str],
    phase: str = "",
    hopeless: str = "",
    **more: Any,
) -> dict[str, Any]:
    """The data of a machine that keeps its files over a reboot.

    home    gpuops' own folder (`Context.home`), which has the login's key (`keys.ensure_login_key`)
    kept    the data that the ledger has of it; empty for a new one
    token   as the provider tells it; empty where it does not
    more    further keys of section 3, and the provider's own
    """
    target = {
        "host": login.host,
        "port": login.port,
        "user": login.user,
        "identities": [str(home / "ssh" / "id_ed25519")],
        "identities_only": True,
        "host_keys": [login.host_key],
    }
    return {
        "connection": "ssh",
        "ssh_folder": str(home / "ssh"),
        "token": token or str(kept.get("token") or ""),
        "revives": True,
        "throwaway_key": kept.get("throwaway_key", True),  # its private half went through the provider
        "account": dict(account),
        "phase": phase,
        "hopeless": hopeless,
        **more,
        **({"target": target} if login.host and login.host_key else {}),
    }
