"""What the service keeps: asks (slices of machines that can be rented), instances, and how one of these comes up."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.runpod.records import Body, Nothing

HOURS_OF_MONTH = 730.0


@dataclass(frozen=True)
class Life:
    """How an instance comes up, in seconds after one another; None: that never comes."""

    created_s: float = 0.1
    """Until `created`: before, its status is null."""
    loading_s: float | None = 0.1
    """Until its image is being pulled,"""
    running_s: float | None = 0.1
    """and until it is there."""
    status_msg: str = "success, running pytorch/ssh"
    """What is told beside the status."""
    becomes: str = ""
    """exited, offline, unknown: in place of `running`."""
    blocked: bool = False
    """Its direct port leads to nobody: a firewall of its host's."""
    mapped: bool = True
    """Whether it has a direct port at all."""
    proxied: bool = True
    """Whether Vast.ai's proxy leads to it."""
    listed_s: float = 0.0
    """From the create on, how long the list does not have it."""
    deaf: bool = False


AT_ONCE = Life(created_s=0.0, loading_s=0.0, running_s=0.0)
OCI_ERROR = Life(
    loading_s=None,
    status_msg="Error response from daemon: failed to create task for container: failed to create shim task: "
    "OCI runtime create failed: runc create failed: unable to start container process: nvidia-container-cli: "
    "device error: 3: unknown device",
)
"""It stays `created`, and bills its disk."""
PULL_ERROR = Life(running_s=None, status_msg="Error: manifest for example/none:1 not found: manifest unknown")
NEVER = Life(running_s=None, status_msg="pulling image")
UNREACHABLE = Life(blocked=True, proxied=False)


@dataclass(eq=False)
class Ask:
    """A slice of a machine, as a search tells it; rented at most once at a time."""

    id: int
    document: dict[str, Any]
    taken: bool = False
    min_bid: float = 0.0

    def told(self, kind: str, storage: float) -> dict[str, Any]:
        """Prices are for this kind of contract and so many GB."""
        base = self.min_bid if kind == "bid" else self.document["dph_base"]
        disk = self.document["storage_cost"] * storage / HOURS_OF_MONTH
        prices = {"dph_base": base, "dph_total": base + disk, "storage_total_cost": disk, "min_bid": self.min_bid}
        own = {"id": self.id, "ask_contract_id": self.id, "rentable": not self.taken, "rented": False}
        return {**self.document, **prices, **own, "is_bid": kind == "bid"}


@dataclass(eq=False)
class Instance:
    """`request` is what was asked for; times are the service's clock's. Its names are those of a pod's, so that it is
    a machine of a lab in the same way."""

    number: int
    account: str
    """The account's key."""
    ask: Ask
    request: dict[str, Any]
    life: Life
    created: float
    bid: float | None
    key: str = field(default_factory=lambda: secrets.token_hex(32))
    """CONTAINER_API_KEY."""
    stopped: bool = False
    up_at: float | None = None
    """Since when it boots: its creation, or the last reboot."""
    booted: bool = False
    dead: bool = False
    """Its first process has ended."""
    ended: float | None = None
    billed: float = 0.0
    direct_port: int = 0
    proxy_port: int = 0
    log: list[tuple[float, str, str]] = field(default_factory=list)
    body: Body = field(default_factory=Nothing)
    cluster: None = None
    volume: None = None

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def name(self) -> str:
        return str(self.request.get("label") or "")

    @property
    def env(self) -> dict[str, str]:
        given = self.request.get("env") or {}
        return {name: value for name, value in given.items() if not name.startswith("-")}

    @property
    def bills(self) -> bool:
        """Its disk does, until it is destroyed."""
        return self.ended is None

    @property
    def disk_per_hour(self) -> float:
        return float(self.ask.document["storage_cost"] * self.request["disk"] / HOURS_OF_MONTH)

    @property
    def gpu_per_hour(self) -> float:
        return float(self.ask.document["dph_base"] if self.bid is None else self.bid)

    @property
    def per_hour(self) -> float:
        """What it costs now: its GPUs while it runs alone."""
        if not self.bills:
            return 0.0
        return self.disk_per_hour + (self.gpu_per_hour if self.booted and not self.stopped else 0.0)

    def status(self, now: float) -> str | None:
        """`actual_status`."""
        if self.stopped or self.dead:
            return "exited"
        passed, life = now - (self.up_at or self.created), self.life
        if passed < life.created_s:
            return None
        if life.loading_s is None or passed < life.created_s + life.loading_s:
            return "created"
        if life.running_s is None or passed < life.created_s + life.loading_s + life.running_s:
            return "loading"
        return life.becomes or "running"

    def say(self, moment: float, line: str, source: str = "system") -> None:
        self.log.append((moment, source, line))
