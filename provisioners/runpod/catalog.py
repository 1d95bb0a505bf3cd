"""The kinds of GPU and the network volumes that RunPod has, and which of the GPUs a request means. Pure.

RunPod's answers are parsed here into types; of a number that is missing or none, 0 is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from provisioners.kit.documents import Document, inner, number, objects
from provisioners.kit.gpu_names import MIN_MEMORY_GB, is_only_by_name, match_gpus

LEVELS = ("NONE", "LOW", "MEDIUM", "HIGH")


@dataclass(frozen=True)
class CenterStock:
    """A data center with a GPU, and how much of it is free there."""

    id: str
    level: str


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU in one cloud, as the catalog lists it for a number of them in one machine."""

    id: str
    name: str
    maker: str
    memory: int
    """GB."""
    price: float
    """$/h for one; 0 where it is not in that cloud."""
    most: int
    """How many of them the largest machine has; 0 where nothing is said."""
    level: str
    """How many are free: one of LEVELS; empty where nothing is said."""
    places: tuple[CenterStock, ...] = ()
    price_of: str = ""
    """`pods` where a cluster is asked for, and only the price of single pods is known."""
    ram: float = 0
    """GB of RAM of the cheapest machine that has the least that was asked for; 0 where nothing is said."""
    vcpus: float = 0


@dataclass(frozen=True)
class Volume:
    """A network volume of the account."""

    id: str
    name: str
    center: str
    """The data center that it is in: pods elsewhere cannot mount it."""


def parse_volume(document: Document) -> Volume:
    return Volume(str(document["id"]), str(document.get("name") or ""), str(document.get("dataCenter") or ""))


def parse_gpu(document: Document, cloud: str) -> Gpu:
    """A GPU of the catalog, as it is in that cloud (SECURE, COMMUNITY)."""
    side = cloud.lower()
    price = number(inner(document, "price").get(side))
    here = document.get(side) is not False and price > 0
    places = [
        CenterStock(str(item["id"]), _parse_level(item.get("availability")))
        for item in objects(document, "dataCenters")
        if item.get("id")
    ]
    return Gpu(
        id=str(document["id"]),
        name=str(document.get("name") or document["id"]),
        maker=str(document.get("manufacturer") or ""),
        memory=int(number(document.get("memory"))),
        price=price if here else 0.0,
        most=int(number(inner(document, "maxCount").get(side))),
        level=_parse_level(document.get("availability")),
        places=tuple(
            sorted((item for item in places if item.level != "NONE"), key=lambda item: -level_rank(item.level))
        ),
    )


@dataclass(frozen=True)
class CheapestMachine:
    """The cheapest machine with a GPU, of those that have the least RAM and vCPUs that were asked for."""

    is_free: bool
    """Whether there is one: RunPod says a price of it."""
    ram: float
    """GB."""
    vcpus: float


def parse_cluster_prices(data: Document) -> dict[str, float]:
    """$/h for one GPU in a cluster, by the GPU's id: GraphQL's `clusterPrice`, where it is a price."""
    prices = {id_: number(item.get("clusterPrice")) for id_, item in _gpu_types(data).items()}
    return {id_: price for id_, price in prices.items() if price > 0}


def parse_cheapest_machines(data: Document) -> dict[str, CheapestMachine]:
    """By the GPU's id: GraphQL's `lowestPrice`."""
    lowest = {id_: inner(item, "lowestPrice") for id_, item in _gpu_types(data).items()}
    return {
        id_: CheapestMachine(
            is_free=bool(number(item.get("uninterruptablePrice"))),
            ram=number(item.get("minMemory")),
            vcpus=number(item.get("minVcpu")),
        )
        for id_, item in lowest.items()
    }


def _gpu_types(data: Document) -> dict[str, Document]:
    """The `gpuTypes` of GraphQL's answer, by id."""
    return {str(item.get("id")): item for item in objects(data, "gpuTypes")}


def at_cluster_prices(gpus: Sequence[Gpu], prices: Mapping[str, float]) -> list[Gpu]:
    """The GPUs at their prices in a cluster; those without one keep the price of pods (`price_of`)."""
    return [
        dataclasses.replace(gpu, price=prices[gpu.id])
        if gpu.price and gpu.id in prices
        else dataclasses.replace(gpu, price_of="pods")
        for gpu in gpus
    ]


def with_at_least(gpus: Sequence[Gpu], machines: Mapping[str, CheapestMachine], ram: int, vcpus: int) -> list[Gpu]:
    """The GPUs with the RAM (GB) and vCPUs of their machines; `NONE` is free of one whose machines have less. A GPU
    of which nothing is known stays as it is."""
    found = []
    for gpu in gpus:
        machine = machines.get(gpu.id)
        if machine is None:
            found.append(gpu)
            continue
        fits = machine.is_free and machine.ram >= ram and machine.vcpus >= vcpus
        level = gpu.level if fits else "NONE"
        found.append(dataclasses.replace(gpu, ram=machine.ram, vcpus=machine.vcpus, level=level))
    return found


def restrict_to_centers(gpu: Gpu, centers: Collection[str]) -> Gpu:
    """The GPU as it is in these data centers alone."""
    places = tuple(place for place in gpu.places if place.id in centers)
    best = max((place.level for place in places), key=level_rank, default="NONE")
    return dataclasses.replace(gpu, level=best, places=places)


def level_rank(name: str) -> int:
    return LEVELS.index(name) if name in LEVELS else 1


def select_gpus(gpus: Sequence[Gpu], wish: str | None, memory: int | None) -> list[Gpu]:
    """Those a request speaks of. Raises UsageError for a name that means none, or several, and where none is left."""
    named = _match(gpus, wish) if wish else _default_gpus(gpus, memory)
    here = [gpu for gpu in named if gpu.price]
    if wish and not here:
        raise UsageError(
            f"{named[0].name} is not in that cloud of RunPod's", "ask for the other --cloud, or another GPU"
        )
    large = [gpu for gpu in here if gpu.memory >= (memory or 0)]
    if not large:
        most = max((gpu.memory for gpu in here or gpus if gpu.price), default=0)
        what = wish or "no GPU there"
        raise UsageError(
            f"{what} has {'not ' if wish else ''}{memory or MIN_MEMORY_GB} GB of memory: the most is {most} GB",
            "ask for less with --gpu-mem, or for another --cloud",
        )
    return large


def _match(gpus: Sequence[Gpu], wish: str) -> list[Gpu]:
    """The GPUs that names mean, by RunPod's name or id, in all forms that fit. Raises UsageError."""
    return match_gpus(
        gpus,
        wish,
        "RunPod",
        name=lambda gpu: gpu.name,
        aliases=lambda gpu: [gpu.id],
        is_there=lambda gpu: gpu.price > 0,
    )


def _default_gpus(gpus: Iterable[Gpu], memory: int | None) -> list[Gpu]:
    """The GPUs that a request without a name means: NVIDIA's, whole, not too old, not too small unless asked for."""
    least = MIN_MEMORY_GB if memory is None else memory
    fit = [gpu for gpu in gpus if gpu.price and gpu.maker in ("NVIDIA", "") and gpu.memory >= least]
    return [gpu for gpu in fit if not is_only_by_name(gpu.name, gpu.id)]


def _parse_level(value: object) -> str:
    return value.upper() if isinstance(value, str) else ""
