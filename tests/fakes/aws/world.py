"""All that is so in the fake's AWS: one account, its machines, what there is to be had, and what is allowed."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any

from tests.fakes.aws import pricetable
from tests.fakes.aws.pictures import USUAL, Picture
from tests.fakes.aws.quotatable import QuotaRequest, Quotas, code
from tests.fakes.aws.records import Instance, SpotRequest
from tests.fakes.aws.standin import StandIn
from tests.fakes.runpod.clock import DrivenClock

if TYPE_CHECKING:
    from tests.fakes.aws.body import Bodies

OPT_IN = ("af-south-1", "ap-east-1", "ap-southeast-3", "eu-south-1", "me-south-1")
"""Regions that an account has to ask for."""


class World:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clock = DrivenClock()
        self.account = f"{secrets.randbelow(9 * 10**11) + 10**11}"
        self.user = "gpuops-tester"
        self.moto = StandIn(self.account)
        self.bodies: Bodies | None = None
        """Where instances are machines."""

        self.instances: dict[str, Instance] = {}
        self.spot_requests: dict[str, SpotRequest] = {}
        self.tokens: dict[tuple[str, str, str], tuple[str, Any]] = {}
        """(region, zone, client token) -> what was asked for, and what it made."""
        self.withheld: list[tuple[float, str, str, str, Any]] = []
        """(until, region, VPC, id, group): groups that nobody is told of yet."""
        self.console: dict[str, str] = {}
        """Instance -> what it printed, where that is not its machine's."""
        self.mishaps: dict[int, str] = {}
        """Launch index -> what befalls the machines that come next: see machines.MISHAPS."""

        self.quota = Quotas()
        self.quota_requests: dict[str, QuotaRequest] = {}
        self.grants: list[tuple[float, str, str, float]] = []
        """(when, region, code, vCPUs): what is granted, and not in force yet."""
        self.grants_s = 0.0
        """From a grant until it is in force: an hour at most."""
        self.capacity: dict[tuple[str, str], int] = {}
        self.on_demand = pricetable.OnDemand()
        self.price = pricetable.Spot(self.on_demand)
        self.scores: dict[tuple[str, str], int] = {}
        self.not_offered: set[tuple[str, str]] = set()
        self.pictures: list[Picture] = list(USUAL)
        self.opted_in: set[str] = set()
        self.only_regions: tuple[str, ...] = ()
        """All that are listed, where any is named: who looks everywhere asks each of seventeen, and for long."""
        self.instance_profiles: set[str] = set()
        self.placement_groups: set[str] = set()
        self.reservations: dict[str, dict[str, Any]] = {}
        """As DescribeCapacityReservations tells of each, and `region`."""
        self.spot_role = True
        """Whether the account has the role that spot needs, or may make it."""
        self.plan = "PAID"
        """FREE: nothing but the smallest types starts; "": an account from before there were plans."""

        self.lag_s = 0.0
        self.pending_s = 0.1
        self.ending_s = 360.0
        """From the request to terminate a machine until it is terminated: GPU machines take minutes, and meanwhile keep
        their security group (karpenter #7019, packer-plugin-amazon #682)."""
        self.close_s = 0.0
        """From a spot machine's end until its request is closed, and draws on the quota no more."""
        self.dry_s = 600.0
        """From a preemption until the zone has any of that type again; before it from the notice on."""
        self.counted_s = 120.0
        """So long after the end of a machine that was taken back a launch counts its vCPUs, though no list shows it."""
        self.told_s = 3600.0
        """How long a terminated machine is still listed."""
        self._default_vpc = True
        self._prepared: set[str] = set()

    def now(self) -> float:
        return self.clock.now()

    def arn(self) -> str:
        return f"arn:aws:iam::{self.account}:user/{self.user}"

    # ---- regions

    def ec2(self, region: str) -> Any:
        """moto's EC2 of a region, furnished."""
        backend = self.moto.ec2(region)
        if region not in self._prepared:
            self._prepared.add(region)
            self._furnish(backend)
        for picture in self.pictures:
            picture.register(backend, region)
        return backend

    def _furnish(self, backend: Any) -> None:
        if not self._default_vpc:
            for subnet in list(backend.get_default_subnets().values()):
                backend.delete_subnet(subnet.id)
            if default := backend.get_default_vpc():
                backend.groups.pop(default.id, None)
                backend.delete_vpc(default.id)
        elif not backend.get_default_vpc():
            backend.default_vpc = backend.create_default_vpc()

    @property
    def default_vpc(self) -> bool:
        return self._default_vpc

    @default_vpc.setter
    def default_vpc(self, there: bool) -> None:
        with self.lock:
            self._default_vpc = there
            for _, backend in self.moto.regions():
                self._furnish(backend)

    def closed(self, region: str) -> bool:
        return region in OPT_IN and region not in self.opted_in

    def offered(self, region: str) -> set[tuple[str, str]]:
        """(zone, type) of what there is."""
        return set(pricetable.offerings(region)) - self.not_offered

    # ---- what is used, and what is left

    def living(self) -> list[Instance]:
        return [one for one in self.instances.values() if one.lives]

    def used(self, region: str, quota: str) -> int:
        """vCPUs that draw on a quota: of machines, and of spot requests that are not closed."""
        on_demand = [
            one.type
            for one in self.living()
            if one.region == region and one.market != "spot" and one.state in ("pending", "running")
        ]
        spot = [
            one.type
            for one in self.spot_requests.values()
            if one.region == region and (one.state in ("open", "active") or self._lives(one.instance))
        ]
        spot += [
            one.type
            for one in self.instances.values()
            if one.region == region and one.interrupted and one.ended and self.now() - one.ended < self.counted_s
        ]
        return sum(
            pricetable.vcpus(kind)
            for market, kinds in (("on-demand", on_demand), ("spot", spot))
            for kind in kinds
            if code(kind, market) == quota
        )

    def _lives(self, instance: str) -> bool:
        return instance in self.instances and self.instances[instance].lives

    def free(self, zone: str, kind: str) -> int:
        """How many machines of a type a zone still has."""
        taken = [one for one in self.instances.values() if (one.zone, one.type) == (zone, kind) and one.interrupted]
        if any(self.now() - (one.interrupted or 0.0) < self.dry_s for one in taken):
            return 0
        most = self.capacity.get((zone, kind), 10_000)
        return most - sum(one.zone == zone and one.type == kind for one in self.living())

    def visible(self, one: Instance) -> bool:
        return self.now() >= one.created + self.lag_s and (one.ended is None or self.now() < one.ended + self.told_s)
