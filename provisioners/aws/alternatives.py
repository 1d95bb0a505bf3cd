"""What could serve a request, or come close: a number of machines of one type, counted against one quota. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuops.core.quota import QuotaIncrease
from provisioners.aws.api import split_region
from provisioners.aws.catalog import InstanceType, is_legacy
from provisioners.aws.quotas import UNIT, AccountQuotas, QuotaClass, quota_class_of


@dataclass(frozen=True)
class Demand:
    """What a request asks for, as its flags say."""

    nodes: int
    gpus: int | None
    gpu_type: str | None
    gpu_mem: int | None
    market: str
    profile: str = ""
    types: str = ""
    """Names of instance types, with commas, instead of GPUs."""

    def with_type(self, kind: InstanceType) -> Demand:
        """The same demand with this instance type by its name."""
        if kind.gpus:
            return dataclasses.replace(self, gpu_type=kind.type, types="")
        return dataclasses.replace(self, types=kind.type)


@dataclass(frozen=True)
class RegionSurvey:
    """One region: its instance types, those that the request would take by market, and how the account stands."""

    region: str
    kinds: Sequence[InstanceType]
    chosen: Mapping[str, Sequence[InstanceType]]
    standing: AccountQuotas


@dataclass(frozen=True)
class Alternative:
    """A number of machines of one kind in one place, counted against one quota."""

    place: RegionSurvey
    kind: InstanceType
    nodes: int
    counted: QuotaClass

    @property
    def need(self) -> int:
        return self.nodes * self.kind.vcpus

    @property
    def gpus(self) -> int:
        return self.nodes * self.kind.gpus

    @property
    def free(self) -> float | None:
        return self.place.standing.free(self.counted)

    @property
    def fits(self) -> bool:
        return self.free is not None and self.need <= self.free

    @property
    def fitting(self) -> int:
        """How many machines of its kind the quota has room for."""
        return int((self.free or 0) // self.kind.vcpus)

    @property
    def used(self) -> float:
        return self.place.standing.used.get(self.counted.code) or 0.0

    @property
    def total(self) -> int:
        """The quota that would suffice, beside what is in use."""
        return math.ceil(self.used + self.need)

    @property
    def region(self) -> str:
        return split_region(self.place.region)[0]

    @property
    def increases(self) -> Sequence[QuotaIncrease]:
        return (self.place.standing.increases or {}).get(self.counted.code, ())

    @property
    def closed(self) -> QuotaIncrease | None:
        """The last request for an increase, where it was closed and the quota is still below what it asked for."""
        one = self.place.standing.closed.get(self.counted.code)
        return one if one and one.wanted > self.place.standing.limits.get(self.counted.code, 0.0) else None

    def say(self) -> str:
        each = f"{self.kind.gpus or 'no'} GPU{'s' * (self.kind.gpus != 1)}"
        nodes = f"{self.nodes} nodes of {each} each" if self.nodes > 1 else f"one node of {each}"
        return f"{self.nodes} x {self.kind.type} is {self.need} {UNIT}, {nodes}"


def requested_alternatives(asked: Demand, places: Iterable[RegionSurvey], market: str) -> Iterator[Alternative]:
    """The instance types that the request names, the smallest first in each region."""
    for place in places:
        for kind in sorted(place.chosen.get(market, ()), key=lambda kind: (kind.vcpus, kind.type)):
            yield Alternative(place, kind, asked.nodes, quota_class_of(kind.type, market))


def _other_machines(asked: Demand, place: RegionSurvey, market: str) -> Iterator[Alternative]:
    """Other machines with GPUs as good as those asked for, one by one."""
    meant = {kind.gpu for kind in place.chosen.get(market, ())}
    for kind in place.kinds:
        named = kind.gpu in meant if asked.gpu_type else not is_legacy(kind)
        if kind.gpus and market in kind.markets and named and kind.memory >= (asked.gpu_mem or 0):
            yield Alternative(place, kind, 1, quota_class_of(kind.type, market))


def total_gpus(asked: Demand, place: RegionSurvey, market: str) -> int:
    """How many GPUs the request has in all."""
    kinds = place.chosen.get(market, ())
    return asked.nodes * (asked.gpus or min((kind.gpus for kind in kinds), default=0))


def same_gpu_count(asked: Demand, place: RegionSurvey, market: str) -> list[Alternative]:
    """The same number of GPUs in other machines; the fewest vCPUs first, of equals the fewest machines."""
    wanted = total_gpus(asked, place, market)
    ways = [
        dataclasses.replace(way, nodes=wanted // way.kind.gpus)
        for way in _other_machines(asked, place, market)
        if wanted and wanted % way.kind.gpus == 0
    ]
    return sorted(ways, key=lambda way: (way.need, way.nodes, way.kind.memory, way.kind.type))


def fewer_gpus(asked: Demand, place: RegionSurvey, market: str) -> list[Alternative]:
    """As many GPUs as there is room for, the most first; of machines without GPUs as many as there is room for."""
    wanted = total_gpus(asked, place, market)
    if not wanted:
        plain = [dataclasses.replace(way, nodes=way.fitting) for way in requested_alternatives(asked, [place], market)]
        return sorted((way for way in plain if 0 < way.nodes < asked.nodes), key=lambda way: -way.nodes)
    ways = [
        dataclasses.replace(way, nodes=min(way.fitting, wanted // way.kind.gpus))
        for way in _other_machines(asked, place, market)
        if way.kind.vcpus
    ]
    return sorted(
        (way for way in ways if way.nodes > 0), key=lambda way: (-way.gpus, way.need, way.nodes, way.kind.memory)
    )


def format_equivalents(best: Alternative, ways: Sequence[Alternative]) -> str:
    """Kinds with as many vCPUs and GPUs."""
    size = (best.kind.vcpus, best.kind.gpus)
    others = [way.kind.type for way in ways if way is not best and (way.kind.vcpus, way.kind.gpus) == size]
    return f" (so are {', '.join(others)})" if others else ""


def first_per_region(ways: Iterable[Alternative]) -> list[Alternative]:
    """The first of each region."""
    found: dict[str, Alternative] = {}
    for way in ways:
        found.setdefault(way.place.region, way)
    return list(found.values())


def first_per_quota(ways: Iterable[Alternative]) -> list[Alternative]:
    """The smallest of each quota in each region."""
    found: dict[tuple[str, str], Alternative] = {}
    for way in ways:
        found.setdefault((way.place.region, way.counted.code), way)
    return list(found.values())
