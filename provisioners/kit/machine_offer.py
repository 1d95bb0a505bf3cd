"""Machines of one kind at one price, as our `Offer`: its columns, and what `machine` tells of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.models import Offer, Price

MAX_OFFERS = 12
"""How many are tried."""


@dataclass(frozen=True)
class MachineOffer:
    """Numbers of GB are whole where their provider's are; 0 and empty: not told."""

    id: str
    say: str
    """What it is, for people: `2 pods in one cluster, each 8 x H100`."""
    prices: Sequence[Price]
    """Of all machines together."""
    gpu: str
    """`H100 SXM5`; empty where it has none."""
    gpus: int
    """Of each machine, as all that follows."""
    memory: int
    """GB of one GPU, as makers count them."""
    where: str
    """For people: a region, a country, a data center."""
    region: str = ""
    """Of the resources; empty: the provider has one list for all of them, and its name is the region's."""
    nodes: int = 1
    type: str = ""
    vcpus: float = 0
    ram: float = 0
    """GB, as `disk`."""
    disk: float = 0
    interconnect: str = ""
    spot: bool = False
    """Whether the provider may take it back."""
    risk: str = ""
    """How likely that is, in the provider's words."""
    private: bool = False
    """Whether it is somebody's own computer (`RentedProvisioner.warn_of_hosts`)."""
    notes: Sequence[str] = ()
    """What the user should read before accepting."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Heading to text, before the price;"""
    more_columns: Mapping[str, str] = field(default_factory=dict)
    """and behind it."""

    def build(self, provider: str, **data: Any) -> Offer:
        """`data`: further keys of `Offer.data`, and the provider's own."""
        columns = {
            **({"TYPE": self.type} if self.type else {}),
            "GPU": self.gpu or "none",
            "MEMORY": f"{self.memory} GB" if self.gpus else "",
            "COUNT": self.per_node(self.gpus) if self.gpus else "",
            **self.columns,
            "$/H": f"${sum(price.per_hour for price in self.prices):.2f}",
            **self.more_columns,
        }
        facts = {
            "gpu": self.gpu or self.type,
            "gpu_mem": self.memory if self.gpus else None,
            "interconnect": self.interconnect,
            "vcpus": self.vcpus,
            "ram": self.ram,
            "disk": self.disk,
            "spot": self.spot,
            "risk": self.risk,
            "where": self.where,
        }
        return Offer(
            provider=provider,
            id=self.id,
            say=self.say,
            nodes=self.nodes,
            gpus=self.gpus,
            region=self.region or provider,
            prices=tuple(self.prices),
            notes=tuple(self.notes),
            data={"columns": columns, "machine": facts, **({"private": True} if self.private else {}), **data},
        )

    def per_node(self, number: int) -> str:
        """`2 x 8`, and `8` where there is one machine."""
        return f"{self.nodes} x {number}" if self.nodes > 1 else str(number)


def cheapest(offers: Iterable[Offer]) -> list[Offer]:
    """The cheapest first, as many as are tried."""
    return sorted(offers, key=lambda offer: offer.per_hour)[:MAX_OFFERS]
