"""What the service keeps: accounts, pods, clusters, volumes."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.fakes.runpod.faults import Life

HOURS_OF_MONTH = 730.0
DISK = 0.10
STOPPED_DISK = 0.20
"""$ for a GB and a month; of a stopped pod only the volume disk is left."""


def new_id(length: int = 14) -> str:
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(length))


def new_key() -> str:
    return "rpa_" + secrets.token_hex(20).upper()


@dataclass(eq=False)
class Account:
    id: str = field(default_factory=lambda: f"user_{new_id(24)}")
    key: str = field(default_factory=new_key)
    read_only_key: str = field(default_factory=new_key)
    balance: float = 100.0
    """$."""
    spend_limit: float = 80.0
    """$/h."""
    ssh_keys: list[str] = field(default_factory=list)
    email: str = "somebody@example.com"


class Body(Protocol):
    """The machine behind a pod."""

    address: str

    @property
    def up(self) -> bool:
        """Whether its container is there."""

    def boot(self, wiped: bool) -> None:
        """Start the container, on an empty disk or on what it left."""

    def halt(self) -> None:
        """End everything in it, without a word."""


class Nothing:
    """No machine: an address at which nobody answers."""

    def __init__(self, address: str = "203.0.113.7") -> None:
        self.address = address
        self.up = False

    def boot(self, wiped: bool) -> None:  # noqa: ARG002
        self.up = True

    def halt(self) -> None:
        self.up = False


@dataclass(eq=False)
class Pod:
    """`request` is what was asked for, with the service's defaults; times are the service's clock's."""

    account: Account
    request: dict[str, Any]
    life: Life
    created: float
    data_center: str
    cuda: str | None
    price: float
    """$/h of its GPUs."""
    cluster: Cluster | None = None
    rank: int | None = None
    network: float = 0.0
    """$/h for the cluster's own network."""
    ip: str = ""
    """In the cluster's own network."""
    id: str = field(default_factory=new_id)
    key: str = field(default_factory=new_key)
    status: str = "PROVISIONING"
    public_port: int = 0
    started: float | None = None
    """Since when RUNNING."""
    runtime: float | None = None
    """Since when there is a container."""
    mapped: bool = False
    """Whether ports lead there from outside."""
    ended: float | None = None
    locked: bool = False
    billed: float = 0.0
    """$."""
    log: list[tuple[float, str, str]] = field(default_factory=list)
    """When, "system" or "container", line."""
    steps: list[tuple[float, str]] = field(default_factory=list)
    """What is to come, and when."""
    body: Body = field(default_factory=Nothing)

    @property
    def name(self) -> str:
        return str(self.request["name"])

    @property
    def env(self) -> dict[str, str]:
        return dict(self.request["env"])

    @property
    def args(self) -> str:
        return str(self.request["args"])

    @property
    def gpu(self) -> str:
        return str(self.request["gpu"]["id"])

    @property
    def gpus(self) -> int:
        return int(self.request["gpu"]["count"])

    @property
    def volume(self) -> dict[str, str] | None:
        """The network volume that it mounts, and where."""
        mounts: list[dict[str, str]] = self.request["mounts"].get("network") or []
        return mounts[0] if mounts else None

    @property
    def bills(self) -> bool:
        return self.status != "TERMINATED"

    @property
    def per_hour(self) -> float:
        """What it costs now, in $: all of it, as the account pays it."""
        if not self.bills:
            return 0.0
        disk, volume_disk = int(self.request["disk"]), int(self.request["mounts"].get("persistent", {}).get("size", 0))
        if self.status == "EXITED":
            return (volume_disk or disk) * STOPPED_DISK / HOURS_OF_MONTH
        return self.price + self.network + (disk + volume_disk) * DISK / HOURS_OF_MONTH

    @property
    def cost(self) -> float:
        """What the service says it costs, its disk with it (field reports); nothing while it is stopped."""
        return 0.0 if self.status in ("EXITED", "TERMINATED") else self.per_hour

    @property
    def address(self) -> str:
        return self.life.address or self.body.address

    @property
    def port(self) -> int:
        return self.life.port or self.public_port

    @property
    def has_ssh(self) -> bool:
        return "22/tcp" in self.request["ports"]

    @property
    def needed_cuda(self) -> str | None:
        """As the image's name says it: …-cu1281-… is 12.8."""
        found = re.search(r"-cu(\d\d)(\d)", self.request["image"])
        return f"{found[1]}.{found[2]}" if found else None

    def say(self, moment: float, line: str, source: str = "system") -> None:
        self.log.append((moment, source, line))


@dataclass(eq=False)
class Cluster:
    account: Account
    request: dict[str, Any]
    created: float
    data_center: str
    network: str
    """The first two numbers of its addresses."""
    number: int
    id: str = field(default_factory=lambda: f"cluster_{new_id(10)}")
    members: list[Pod] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.request["name"])

    def address(self, rank: int) -> str:
        return f"{self.network}.{rank // 250}.{rank % 250 + 2}"


@dataclass(eq=False)
class Volume:
    account: Account
    name: str
    size: int
    data_center: str
    type: str
    id: str = field(default_factory=lambda: new_id(10))
