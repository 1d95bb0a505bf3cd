"""What the fake keeps of a machine and of a spot request, besides what moto keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
BY_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
BY_GUEST = (
    "Client.InstanceInitiatedShutdown",
    "Client.InstanceInitiatedShutdown: Instance initiated shutdown",
)
BY_SPOT = (
    "Server.SpotInstanceTermination",
    "Server.SpotInstanceTermination: Instance terminated due to Spot interruption",
)
ENDED = ("terminated",)


@dataclass(eq=False)
class SpotRequest:
    id: str
    region: str
    zone: str
    type: str
    image: str
    subnet: str
    groups: list[dict[str, str]]
    tags: dict[str, str]
    created: float
    instance: str = ""
    price: str = ""
    """$/h, the most that is paid; "": what it costs on demand."""
    state: str = "active"
    code: str = "fulfilled"
    said: str = "Your Spot request is fulfilled."

    def close(self, code: str) -> None:
        if self.state in ("open", "active"):
            self.state, self.code, self.said = "closed", code, f"Your Spot instance was terminated: {code}."
        elif self.state == "cancelled":
            self.code = code


@dataclass(eq=False)
class Instance:
    """`moto` is its object there, which carries state and addresses."""

    id: str
    region: str
    zone: str
    type: str
    market: str
    launch_index: int
    user_data: str
    shutdown: str
    """terminate or stop: what a power-off from inside becomes."""
    moto: Any
    created: float
    request: SpotRequest | None = None
    public: str | None = None
    """Its public address, also while nobody is told yet."""
    interrupted: float | None = None
    """UTC seconds at which AWS takes it back."""
    ending: float | None = None
    ended: float | None = None
    reason: tuple[str, str] = ("", "")
    notices: dict[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> dict[str, str]:
        return dict(self.moto.ec2_backend.tags[self.id])

    @property
    def state(self) -> str:
        return str(self.moto._state.name)

    @state.setter
    def state(self, name: str) -> None:
        self.moto._state.name, self.moto._state.code = name, CODES[name]

    @property
    def lives(self) -> bool:
        return self.state not in ENDED

    @property
    def address(self) -> str | None:
        """Public, as far as it is told."""
        told: str | None = self.moto.nics[0].public_ip
        return told

    @property
    def private_address(self) -> str:
        return str(self.moto.nics[0].private_ip_address)

    @property
    def groups(self) -> list[str]:
        return [group.id for nic in self.moto.nics.values() for group in nic.group_set]

    def blame(self, reason: tuple[str, str]) -> None:
        from moto.ec2.models.instances import StateReason

        self.reason = reason
        self.moto.state_reason = StateReason(reason[1], reason[0])
        self.moto._reason = reason[1] if reason[0].startswith("Server") else f"{reason[1].partition(': ')[2]}"

    def __str__(self) -> str:
        return f"{self.region}: instance {self.id} ({self.type}, {self.market}, {self.state})"
