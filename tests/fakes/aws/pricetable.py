"""Prices of the right size, not to be relied on: $/h of machines with GPUs, by the vCPU of the others."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

GPUS = {
    "g4dn.xlarge": 0.526, "g4dn.2xlarge": 0.752, "g4dn.4xlarge": 1.204, "g4dn.8xlarge": 2.176,
    "g4dn.12xlarge": 3.912, "g4dn.16xlarge": 4.352, "g4dn.metal": 7.824,
    "g5.xlarge": 1.006, "g5.2xlarge": 1.212, "g5.4xlarge": 1.624, "g5.8xlarge": 2.448, "g5.12xlarge": 5.672,
    "g5.16xlarge": 4.096, "g5.24xlarge": 8.144, "g5.48xlarge": 16.288,
    "g6.xlarge": 0.805, "g6.2xlarge": 0.978, "g6.4xlarge": 1.323, "g6.8xlarge": 2.014, "g6.12xlarge": 4.602,
    "g6.16xlarge": 3.397, "g6.24xlarge": 6.675, "g6.48xlarge": 13.35, "gr6.4xlarge": 1.539, "gr6.8xlarge": 2.446,
    "g6e.xlarge": 1.861, "g6e.2xlarge": 2.242, "g6e.4xlarge": 3.004, "g6e.8xlarge": 4.529, "g6e.12xlarge": 10.493,
    "g6e.16xlarge": 7.577, "g6e.24xlarge": 15.066, "g6e.48xlarge": 30.131,
    "g7.12xlarge": 6.4, "g7.24xlarge": 12.8, "g7.48xlarge": 25.6,
    "g7e.12xlarge": 8.3, "g7e.24xlarge": 16.6, "g7e.48xlarge": 33.1,
    "p3dn.24xlarge": 31.212, "p4d.24xlarge": 21.958, "p4de.24xlarge": 27.447, "p5.4xlarge": 6.88,
    "p5.48xlarge": 55.04, "p5e.48xlarge": 63.3, "p5en.48xlarge": 63.3, "p6-b200.48xlarge": 113.93,
    "p6-b300.48xlarge": 142.4,
}  # fmt: skip
PER_VCPU = 0.05
FACTORS = {"us-east-1": 1.0, "us-east-2": 1.0, "us-west-2": 1.0, "eu-west-1": 1.12, "eu-north-1": 1.06}
ELSEWHERE = 1.2
GP3 = 0.08
"""$ a GB and month, in us-east-1."""
ADDRESS = 0.005
"""$/h of a public IPv4 address."""


def factor(region: str) -> float:
    return FACTORS.get(region, ELSEWHERE)


def vcpus(kind: str) -> int:
    return int(INSTANCE_TYPES[kind]["VCpuInfo"]["DefaultVCpus"])


def gpus(kind: str) -> int:
    found = INSTANCE_TYPES[kind].get("GpuInfo", {}).get("Gpus", [])
    return sum(int(one.get("Count", 0)) for one in found)


def known(kind: str) -> bool:
    return kind in INSTANCE_TYPES


@cache
def offerings(region: str) -> frozenset[tuple[str, str]]:
    """(zone, type) of all that a region has."""
    rows: list[dict[str, Any]] = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return frozenset((row["Location"], row["InstanceType"]) for row in rows)


class OnDemand(dict[tuple[str, str], float]):
    """(type, region) -> $/h."""

    def __missing__(self, at: tuple[str, str]) -> float:
        kind, region = at
        return round(GPUS.get(kind, PER_VCPU * vcpus(kind)) * factor(region), 4)


class Spot(dict[tuple[str, str], float]):
    """(type, zone) -> $/h; what nobody set is a third to a half of what it costs on demand, by the zone."""

    def __init__(self, on_demand: OnDemand) -> None:
        super().__init__()
        self._on_demand = on_demand

    def __missing__(self, at: tuple[str, str]) -> float:
        kind, zone = at
        share = 0.30 + zlib.crc32(f"{kind} {zone}".encode()) % 20 / 100
        return round(self._on_demand[kind, zone[:-1]] * share, 4)
