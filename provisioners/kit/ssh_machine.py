"""A machine that is reached by SSH, as our `Resource`, with every key of docs/providers.md each time. Pure."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.core.models import MACHINE, Resource, ResourceState
from provisioners.kit.documents import number

MAX_PORT = 65535
CARRIER_NAT = ipaddress.ip_network("100.64.0.0/10")


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


@dataclass(frozen=True)
class Machine:
    """A machine as its provider tells it now. What an answer lacks counts as not said: what was known stays."""

    id: str
    name: str
    """Our mark, as the provider's list has it; that of another's machine is what it is."""
    region: str
    """Empty where its provider does not say: then it is in the list of every region, since it may be the lost one."""
    state: ResourceState
    login: Login
    token: str = ""
    per_hour: float = 0.0
    """$/h; 0 where that is not said."""
    private_address: str = ""
    proxy: tuple[str, int] = ("", 0)
    """Host and port where the provider passes bytes on to the same sshd."""
    kind: str = MACHINE
    parent: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of docs/providers.md, and the provider's own."""


def machine_resource(
    machine: Machine, home: Path, account: Mapping[str, str], previous: Resource | None = None
) -> Resource:
    """`previous`: the same machine as the ledger knows it; its name and region stay what they were."""
    kept: Mapping[str, Any] = previous.data if previous else {}
    host_key = machine.login.host_key or str(kept.get("host_public") or "")
    login = dataclasses.replace(machine.login, host_key=host_key)
    hourly = machine.per_hour or (previous.per_hour if previous else 0.0)
    more = {"host_public": host_key, **machine.data}
    return Resource(
        kind=previous.kind if previous else machine.kind,
        id=machine.id,
        region=previous.region if previous else machine.region,
        name=previous.name if previous else machine.name,
        bills=True,
        parent=(previous.parent if previous else "") or machine.parent,
        state=machine.state,
        address=login.host,
        port=login.port if login.host else 0,
        private_address=machine.private_address,
        per_hour=0.0 if machine.state is ResourceState.ENDED else hourly,
        data=ssh_data(home, login, kept, token=machine.token, account=account, **more),
    )


Standing = tuple[ResourceState, dict[str, Any]]
"""A machine's state, and what of its data says more of it."""


def comes(phase: str) -> Standing:
    """It is on its way. `phase`: what it waits for."""
    return ResourceState.STARTING, {"phase": phase}


def unclear(phase: str) -> Standing:
    return ResourceState.UNKNOWN, {"phase": phase}


def hopeless(why: str, *, stopped: bool = False) -> Standing:
    """It never will be ready. `stopped`: neither its image nor the user is why, and another machine may be."""
    return ResourceState.UNKNOWN, {"hopeless": why, "stopped": stopped}


def reclaimed(by: str, why: str) -> Standing:
    """Its provider took it back, and it may bill all the same."""
    return ResourceState.UNKNOWN, {"reclaimed": True, "by": by, "why_ended": why}


def ended(resource: Resource) -> Resource:
    """What its provider knows no more."""
    return dataclasses.replace(resource, state=ResourceState.ENDED, address="", port=0, per_hour=0.0)


def endpoint(host: object, port: object) -> tuple[str, int]:
    """A host and its port, as documents have them; ("", 0) unless both are told and can be reached from outside."""
    found, number_ = str(host or "").strip(), int(number(port))
    return (found, number_) if found and 0 < number_ <= MAX_PORT and not is_behind_carrier(found) else ("", 0)


def is_behind_carrier(address: str) -> bool:
    """Whether an address is behind a carrier's translation (RFC 6598): it cannot be reached from outside."""
    try:
        return ipaddress.ip_address(address) in CARRIER_NAT
    except ValueError:
        return False
