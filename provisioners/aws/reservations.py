"""Capacity that the user has reserved: on-demand Capacity Reservations, and Capacity Blocks, which are paid beforehand.

A reservation is of one type in one zone, so that it says what is rented and where. A Capacity Block ends at a time that
was bought with it, and AWS begins to terminate its machines half an hour before (AWS, "Capacity Blocks for ML").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import NoCapacity, ProviderError, Rejected
from provisioners.aws.account import Account
from provisioners.aws.api import Document, pages, split_region
from provisioners.aws.errors import code

BLOCK = "capacity-block"
END_EARLY_S = 2400.0
"""How long before a block's end a lease in it ends: AWS terminates from 30 minutes before, and downloads take time."""
ANOTHER = "name another one with --reservation, or leave it out"


@dataclass(frozen=True)
class Reserved:
    """One reservation that machines can start in."""

    id: str
    type: str
    zone: str
    block: bool
    """Paid beforehand: its machines cost nothing more, and no quota counts them."""
    ends: float | None
    """When machines in it end at the latest, in UTC seconds; None: never for that."""

    def parameters(self) -> Document:
        """What it adds to RunInstances'."""
        target = {"CapacityReservationTarget": {"CapacityReservationId": self.id}}
        block = {"InstanceMarketOptions": {"MarketType": BLOCK}} if self.block else {}
        return {"CapacityReservationSpecification": target, **block}


def parse_reservation(document: Document, nodes: int) -> Reserved:
    """A reservation of AWS's answer. Raises Rejected where it cannot be used, NoCapacity where it is too small now."""
    id_, state, ends = str(document["CapacityReservationId"]), str(document.get("State") or ""), document.get("EndDate")
    if state != "active":
        starts = document.get("StartDate")
        when = f" and begins at {starts:%Y-%m-%d %H:%M} UTC" if state == "scheduled" and starts else ""
        raise Rejected(f"the reservation {id_} is {state}{when}", "come back then" if when else ANOTHER)
    platform = str(document.get("InstancePlatform") or "Linux/UNIX")
    if platform != "Linux/UNIX":
        raise Rejected(f"the reservation {id_} is for {platform}, and gpuops starts Linux without a licence", ANOTHER)
    free = int(document.get("AvailableInstanceCount") or 0)
    if free < nodes:
        raise NoCapacity(
            f"the reservation {id_} has room for {free} machines now, and {nodes} are asked for",
            "ask for fewer --nodes, or end what runs in it",
        )
    block = document.get("ReservationType") == BLOCK
    return Reserved(
        id=id_,
        type=str(document.get("InstanceType") or ""),
        zone=str(document.get("AvailabilityZone") or ""),
        block=block,
        ends=ends.timestamp() - END_EARLY_S if block and ends is not None else None,
    )


def find_reservation(account: Account, id_: str, nodes: int, regions: Sequence[str]) -> tuple[Reserved, str]:
    """The reservation, and the region it is in. Raises ProviderError."""
    for region in regions:
        try:
            documents = pages(
                f"look at the reservation {id_} in {split_region(region)[0]}",
                account.client("ec2", region),
                "describe_capacity_reservations",
                "CapacityReservations",
                CapacityReservationIds=[id_],
            )
        except ProviderError as error:
            if not code(error).endswith(".NotFound"):
                raise
            continue
        if documents:
            return parse_reservation(documents[0], nodes), region
    names = ", ".join(split_region(region)[0] for region in regions)
    raise Rejected(f"there is no reservation {id_} in {names}", "name its region: --region us-east-1")
