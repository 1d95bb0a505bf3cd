"""What can be rented: GPU types with their prices, data centers, and how many GPUs of a type are free in each.

Ids, names and memory are the service's; prices are of the right size and not to be relied on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CUDA = ("12.4", "12.6", "12.8", "13.0")
"""What the machines' drivers can do, the oldest first. Who does not ask gets the oldest."""


@dataclass(frozen=True)
class GpuType:
    id: str
    name: str
    memory: int
    """GB."""
    secure: float
    """$/h of one on demand; 0 where there is none in that cloud."""
    community: float
    most: int = 8
    """GPUs of the biggest machine."""
    clusters: bool = False
    pool: str | None = None

    @property
    def manufacturer(self) -> str:
        return "AMD" if self.id.startswith("AMD") else "NVIDIA"

    def price(self, cloud: str) -> float:
        return self.secure if cloud == "SECURE" else self.community

    @property
    def machines(self) -> tuple[tuple[int, int], ...]:
        """GB of RAM and vCPUs that the machines have for one of it, the smallest first: the older interface tells."""
        return ((self.memory * 2, 8), (self.memory * 4, 16))

    @property
    def in_cluster(self) -> float | None:
        """$/h of one in a cluster, which the older interface alone tells: not the price of a pod."""
        return round(self.secure * 1.1, 2) if self.clusters else None


@dataclass(frozen=True)
class DataCenter:
    id: str
    name: str
    region: str
    country: str
    global_network: bool
    volumes: tuple[str, ...]


GPUS = (
    GpuType("AMD Instinct MI300X OAM", "MI300X", 192, 2.49, 0),
    GpuType("NVIDIA A100 80GB PCIe", "A100 PCIe", 80, 1.64, 1.19, pool="AMPERE_80"),
    GpuType("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, 1.74, 0, clusters=True, pool="AMPERE_80"),
    GpuType("NVIDIA A30", "A30", 24, 0, 0.22),
    GpuType("NVIDIA A40", "A40", 48, 0.40, 0.35, 10, pool="AMPERE_48"),
    GpuType("NVIDIA B200", "B200", 180, 5.98, 0, clusters=True, pool="BLACKWELL_180"),
    GpuType("NVIDIA B300 SXM6 AC", "B300", 288, 7.39, 0, clusters=True),
    GpuType("NVIDIA GeForce RTX 3070", "RTX 3070", 8, 0, 0.13, 4),
    GpuType("NVIDIA GeForce RTX 3080", "RTX 3080", 10, 0, 0.17, 4),
    GpuType("NVIDIA GeForce RTX 3080 Ti", "RTX 3080 Ti", 12, 0, 0.18, 4),
    GpuType("NVIDIA GeForce RTX 3090", "RTX 3090", 24, 0.46, 0.22, pool="AMPERE_24"),
    GpuType("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti", 24, 0, 0.27, 4),
    GpuType("NVIDIA GeForce RTX 4070 Ti", "RTX 4070 Ti", 12, 0, 0.19, 4),
    GpuType("NVIDIA GeForce RTX 4080", "RTX 4080", 16, 0, 0.27, 4),
    GpuType("NVIDIA GeForce RTX 4080 SUPER", "RTX 4080 SUPER", 16, 0, 0.28, 4),
    GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, 0.34, pool="ADA_24"),
    GpuType("NVIDIA GeForce RTX 5080", "RTX 5080", 16, 0, 0.39, 4),
    GpuType("NVIDIA GeForce RTX 5090", "RTX 5090", 32, 0.99, 0.69, pool="ADA_32_PRO"),
    GpuType("NVIDIA H100 80GB HBM3", "H100 SXM", 80, 2.99, 2.69, clusters=True, pool="HOPPER_80"),
    GpuType("NVIDIA H100 NVL", "H100 NVL", 94, 2.79, 2.59),
    GpuType("NVIDIA H100 PCIe", "H100 PCIe", 80, 2.39, 1.99),
    GpuType("NVIDIA H200", "H200 SXM", 141, 3.99, 0, clusters=True, pool="HOPPER_141"),
    GpuType("NVIDIA H200 NVL", "NVIDIA H200 NVL", 143, 3.39, 0),
    GpuType("NVIDIA L4", "L4", 24, 0.39, 0.32, pool="ADA_24"),
    GpuType("NVIDIA L40", "L40", 48, 0.99, 0.69, pool="ADA_48_PRO"),
    GpuType("NVIDIA L40S", "L40S", 48, 0.86, 0.79, pool="ADA_48_PRO"),
    GpuType("NVIDIA RTX 2000 Ada Generation", "RTX 2000 Ada", 16, 0.24, 0),
    GpuType("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada", 20, 0.26, 0),
    GpuType("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 Ada SFF", 20, 0, 0.18),
    GpuType("NVIDIA RTX 5000 Ada Generation", "RTX 5000 Ada", 32, 0, 0.49),
    GpuType("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 48, 0.77, 0.74, pool="ADA_48_PRO"),
    GpuType("NVIDIA RTX A2000", "RTX A2000", 6, 0, 0.12),
    GpuType("NVIDIA RTX A4000", "RTX A4000", 16, 0.25, 0.17, pool="AMPERE_16"),
    GpuType("NVIDIA RTX A4500", "RTX A4500", 20, 0.25, 0.19, pool="AMPERE_16"),
    GpuType("NVIDIA RTX A5000", "RTX A5000", 24, 0.27, 0.16, pool="AMPERE_24"),
    GpuType("NVIDIA RTX A6000", "RTX A6000", 48, 0.49, 0.33, pool="AMPERE_48"),
    GpuType("NVIDIA RTX PRO 4500 Blackwell", "RTX PRO 4500", 32, 0.64, 0),
    GpuType("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 MaxQ", 96, 0, 1.59, 4),
    GpuType("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", "PRO 6000 MIG 24GB", 24, 0.48, 0),
    GpuType("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 2g.48gb", "PRO 6000 MIG 48GB", 48, 0.95, 0),
    GpuType("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000", 96, 1.89, 1.69),
    GpuType("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 WK", 96, 2.09, 1.69, 4),
    GpuType("Tesla V100-PCIE-16GB", "Tesla V100", 16, 0, 0.19),
    GpuType("Tesla V100-SXM2-16GB", "V100 SXM2", 16, 0, 0.19),
    GpuType("Tesla V100-SXM2-32GB", "V100 SXM2 32GB", 32, 0, 0.23),
)

_GLOBAL = (
    "CA-MTL-3", "EU-CZ-1", "EU-FR-1", "EU-NL-1", "EU-RO-1", "EU-SE-1", "EUR-IS-2", "OC-AU-1", "US-CA-2", "US-GA-1",
    "US-GA-2", "US-IL-1", "US-KS-2", "US-NC-1", "US-TX-3", "US-TX-4", "US-WA-1",
)  # fmt: skip
_WITH_VOLUMES = (
    "EU-RO-1", "CA-MTL-1", "EU-SE-1", "US-IL-1", "EUR-IS-1", "EU-CZ-1", "US-TX-3", "US-KS-2", "US-GA-2", "US-WA-1",
    "CA-MTL-3", "EU-NL-1", "US-TX-4", "US-CA-2", "US-NC-1",
)  # fmt: skip
_FAST_VOLUMES = ("US-KS-2", "US-CA-2", "EU-RO-1", "EUR-IS-1")
_REGIONS = {
    "EU-RO-1": ("EU Romania 1", "EUROPE", "RO"), "CA-MTL-1": ("CA Montreal 1", "NORTH_AMERICA", "CA"),
    "EU-SE-1": ("EU Sweden 1", "EUROPE", "SE"), "US-IL-1": ("US Illinois 1", "NORTH_AMERICA", "US"),
    "EUR-IS-1": ("EUR Iceland 1", "EUROPE", "IS"), "EU-CZ-1": ("EU Czechia 1", "EUROPE", "CZ"),
    "US-TX-3": ("US Texas 3", "NORTH_AMERICA", "US"), "EUR-IS-2": ("EUR Iceland 2", "EUROPE", "IS"),
    "US-KS-2": ("US Kansas 2", "NORTH_AMERICA", "US"), "US-GA-2": ("US Georgia 2", "NORTH_AMERICA", "US"),
    "US-WA-1": ("US Washington 1", "NORTH_AMERICA", "US"), "US-TX-1": ("US Texas 1", "NORTH_AMERICA", "US"),
    "CA-MTL-3": ("CA Montreal 3", "NORTH_AMERICA", "CA"), "EU-NL-1": ("EU Netherlands 1", "EUROPE", "NL"),
    "US-TX-4": ("US Texas 4", "NORTH_AMERICA", "US"), "US-CA-2": ("US California 2", "NORTH_AMERICA", "US"),
    "US-NC-1": ("US North Carolina 1", "NORTH_AMERICA", "US"), "OC-AU-1": ("OC Australia 1", "OCEANIA", "AU"),
    "US-DE-1": ("US Delaware 1", "NORTH_AMERICA", "US"), "EUR-IS-3": ("EUR Iceland 3", "EUROPE", "IS"),
    "CA-MTL-2": ("CA Montreal 2", "NORTH_AMERICA", "CA"), "AP-JP-1": ("AP Japan 1", "ASIA", "JP"),
    "EUR-NO-1": ("EUR Norway 1", "EUROPE", "NO"), "EU-FR-1": ("EU France 1", "EUROPE", "FR"),
    "US-KS-3": ("US Kansas 3", "NORTH_AMERICA", "US"), "US-GA-1": ("US Georgia 1", "NORTH_AMERICA", "US"),
}  # fmt: skip


def _volumes(data_center: str) -> tuple[str, ...]:
    if data_center not in _WITH_VOLUMES:
        return ()
    return ("STANDARD", "HIGH_PERFORMANCE") if data_center in _FAST_VOLUMES else ("STANDARD",)


DATA_CENTERS = tuple(
    DataCenter(one, name, region, country, one in _GLOBAL, _volumes(one))
    for one, (name, region, country) in _REGIONS.items()
)

Stock = dict[str, dict[str, int]]
"""GPU id -> data center -> GPUs that are free."""


def full_stock() -> Stock:
    """Every type in some data centers, the ones for clusters with several whole machines in two."""
    homes = list(_REGIONS)
    stock: Stock = {}
    for at, gpu in enumerate(GPUS):
        places = [homes[(at * 5 + step * 3) % len(homes)] for step in range(3)]
        stock[gpu.id] = dict(zip(places, (24, 8, 2), strict=True))
        if gpu.clusters:
            stock[gpu.id] |= {"US-KS-2": 64, "US-TX-3": 32}
    stock["NVIDIA GeForce RTX 4090"] |= {"US-KS-2": 32, "EU-RO-1": 16}
    stock["NVIDIA RTX A4000"] |= {"US-KS-2": 16, "EU-RO-1": 16}
    return stock


def level(free: int, count: int) -> str:
    """How the catalog words so many free GPUs for somebody who wants `count` on one machine."""
    if free < count:
        return "NONE"
    return "HIGH" if free >= 16 else "MEDIUM" if free >= 6 else "LOW"


def offered(gpu: GpuType, cloud: str | None, product: str, count: int) -> bool:
    if product == "CLUSTER" and not gpu.clusters:
        return False
    if count > gpu.most:
        return False
    return bool(gpu.price(cloud)) if cloud else bool(gpu.secure or gpu.community)


def gpu_view(gpu: GpuType) -> dict[str, Any]:
    price = {"secure": gpu.secure, "community": gpu.community}
    return {
        "id": gpu.id,
        "name": gpu.name,
        "pool": gpu.pool,
        "manufacturer": gpu.manufacturer,
        "memory": gpu.memory,
        "secure": bool(gpu.secure),
        "community": bool(gpu.community),
        "price": price | ({"serverless": round(gpu.secure * 1.6, 2)} if gpu.pool else {}),
        "maxCount": {"secure": gpu.most if gpu.secure else 0, "community": gpu.most if gpu.community else 0},
    }


def availability(
    gpu: GpuType, free: Mapping[str, int], count: int, cuda: Iterable[str], countries: Iterable[str]
) -> dict[str, Any]:
    """What include=AVAILABILITY adds: over all, where, and with which drivers."""
    wanted = set(countries)
    places = [one for one in DATA_CENTERS if free.get(one.id) and (not wanted or one.country in wanted)]
    levels = {one.id: level(free[one.id], count) for one in places}
    added: dict[str, Any] = {"availability": level(max([free[one.id] for one in places], default=0), count)}
    if any(found != "NONE" for found in levels.values()):
        added["dataCenters"] = [
            {"id": one.id, "name": one.name, "availability": levels[one.id]}
            for one in places
            if levels[one.id] != "NONE"
        ]
    if gpu.manufacturer == "NVIDIA":
        added["cudaVersions"] = [{"version": version, "available": added["availability"] != "NONE"} for version in cuda]
    return added


def data_center_view(one: DataCenter) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "region": one.region,
        "globalNetwork": one.global_network,
        "networkVolumeTypes": list(one.volumes),
        "compliance": ["SOC_2_TYPE_2", "ISO_IEC_27001"] if one.volumes else [],
    }


def version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
