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
    types: tuple[str, ...] = ()
    """Names of instance types, instead of GPUs."""

    def with_type(self, kind: InstanceType) -> Demand:
        """The same demand with this instance type by its name."""
        if kind.gpus:
            return dataclasses.replace(self, gpu_type=kind.type, types=())
        return dataclasses.replace(self, types=(kind.type,))


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
        """vCPUs of all its machines."""
        return self.nodes * self.kind.vcpus

    @property
    def gpus(self) -> int:
        return self.nodes * self.kind.gpus

    @property
    def limit(self) -> float:
        """The quota; 0 where it is not known."""
        return self.place.standing.limits.get(self.counted.code, 0.0)

    @property
    def free(self) -> float | None:
        """What is left of the quota; None where that is not known."""
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
        increase = self.place.standing.closed.get(self.counted.code)
        return increase if increase and increase.wanted > self.limit else None

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
    candidates = [
        dataclasses.replace(candidate, nodes=wanted // candidate.kind.gpus)
        for candidate in _other_machines(asked, place, market)
        if wanted and wanted % candidate.kind.gpus == 0
    ]
    return sorted(
        candidates, key=lambda candidate: (candidate.need, candidate.nodes, candidate.kind.memory, candidate.kind.type)
    )


def fewer_gpus(asked: Demand, place: RegionSurvey, market: str) -> list[Alternative]:
    """As many GPUs as there is room for, the most first; of machines without GPUs as many as there is room for."""
    wanted = total_gpus(asked, place, market)
    if not wanted:
        plain = [
            dataclasses.replace(candidate, nodes=candidate.fitting)
            for candidate in requested_alternatives(asked, [place], market)
        ]
        return sorted(
            (candidate for candidate in plain if 0 < candidate.nodes < asked.nodes),
            key=lambda candidate: -candidate.nodes,
        )
    candidates = [
        dataclasses.replace(candidate, nodes=min(candidate.fitting, wanted // candidate.kind.gpus))
        for candidate in _other_machines(asked, place, market)
        if candidate.kind.vcpus
    ]
    return sorted(
        (candidate for candidate in candidates if candidate.nodes > 0),
        key=lambda candidate: (-candidate.gpus, candidate.need, candidate.nodes, candidate.kind.memory),
    )


def format_equivalents(best: Alternative, candidates: Sequence[Alternative]) -> str:
    """Kinds with as many vCPUs and GPUs."""
    size = (best.kind.vcpus, best.kind.gpus)
    others = [
        candidate.kind.type
        for candidate in candidates
        if candidate is not best and (candidate.kind.vcpus, candidate.kind.gpus) == size
    ]
    return f" (so are {', '.join(others)})" if others else ""


def first_per_region(candidates: Iterable[Alternative]) -> list[Alternative]:
    """The first of each region."""
    found: dict[str, Alternative] = {}
    for candidate in candidates:
        found.setdefault(candidate.place.region, candidate)
    return list(found.values())


def first_per_quota(candidates: Iterable[Alternative]) -> list[Alternative]:
    """The smallest of each quota in each region."""
    found: dict[tuple[str, str], Alternative] = {}
    for candidate in candidates:
        found.setdefault((candidate.place.region, candidate.counted.code), candidate)
    return list(found.values())
