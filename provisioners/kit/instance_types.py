"""Machines that a provider rents by type, each with its GPUs, in regions: which a request means, and offers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpuops.core.errors import NoCapacity, UsageError
from gpuops.core.format import plural
from gpuops.core.models import Offer, Option, Price, Request
from gpuops.core.names import did_you_mean
from provisioners.kit.gpu_names import is_only_by_name, join_names, match_gpus, split_wish
from provisioners.kit.machine_offer import MachineOffer

OPTION = "instance-type"


@dataclass(frozen=True)
class InstanceType:
    """Its number of GPUs is a part of it."""

    type: str
    gpus: int
    gpu: str
    """`H100 SXM5`; empty where it has none."""
    memory: int
    """GB of one GPU, as makers count them; 0 where that is not said."""
    per_hour: float
    """$/h of the whole machine."""
    regions: tuple[str, ...]
    """Where it is free now."""
    vcpus: int = 0
    ram: int = 0
    """GB, as `disk`; 0: not said."""
    disk: int = 0
    is_only_by_name: bool = False
    """Whether it is not meant where no GPU is named: its processor is an ARM."""
    notes: tuple[str, ...] = ()
    """What the user should read before accepting."""


def type_option(examples: str, who: str) -> Option:
    """The provider's own flag: `--instance-type NAME`."""
    return Option(OPTION, f"One of {who}'s types by its name ({examples}).")


def select_types(types: Sequence[InstanceType], request: Request, who: str) -> list[InstanceType]:
    """Those a request speaks of, free or not, the cheapest first. Raises UsageError."""
    wanted = str(request.options.get(OPTION) or "").strip()
    if wanted and wanted not in (known := [one.type for one in types]):
        raise UsageError(
            f"{who} has no instance type '{wanted}'", did_you_mean(wanted, known) or f"it has {join_names(known)}"
        )
    whole = [one for one in types if one.gpus]
    if wanted:
        named = [one for one in types if one.type == wanted]
    elif request.gpu_type:
        named = match_gpus(whole, request.gpu_type, who, name=lambda one: one.gpu)
    else:
        named = [one for one in whole if not one.is_only_by_name and not is_only_by_name(one.gpu)]
    count = request.gpus or (None if wanted else 1)
    fitting = [one for one in named if count in (None, one.gpus)]
    if not fitting:
        counts = sorted({one.gpus for one in named})
        sold = ", ".join(map(str, counts))
        raise UsageError(
            f"{who} sells no machine with {count} x {wanted or request.gpu_type or 'GPU'}: it sells them with {sold}",
            f"take the nearest: {_nearest_flags(counts, count or 0)}",
        )
    large = [one for one in fitting if one.memory >= (request.gpu_mem or 0)]
    if not large:
        most = max(one.memory for one in fitting)
        raise UsageError(
            f"no such GPU at {who} has {request.gpu_mem} GB of memory: the most is {most} GB",
            "ask for less with --gpu-mem, or for another --gpu-type",
        )
    return sorted(large, key=lambda one: (one.per_hour, one.type))


def _nearest_flags(counts: Sequence[int], count: int) -> str:
    """`--gpus 4 or --gpus 2`: the next that has enough, then the next below it."""
    more = min((one for one in counts if one > count), default=None)
    fewer = max((one for one in counts if one < count), default=None)
    return " or ".join(f"--gpus {one}" for one in (more, fewer) if one is not None)


def find_offers(
    types: Sequence[InstanceType],
    request: Request,
    who: str,
    *,
    notes: Sequence[str] = (),
    region_notes: Mapping[str, Sequence[str]] = MappingProxyType({}),
    **data: Any,
) -> list[Offer]:
    """One for each type and region that is free. Raises NoCapacity with the reason where that is none.

    notes         of every offer; `region_notes` of those in a region
    data          further keys of `Offer.data`, beside `type`
    """
    selected, regions = select_types(types, request, who), split_wish(request.region)
    found = [
        _offer(one, region, request, (*notes, *region_notes.get(region, ())), data)
        for one in selected
        for region in one.regions
        if not regions or region in regions
    ]
    if found:
        return found
    elsewhere = sorted({region for one in selected for region in one.regions})
    raise NoCapacity(
        f"{who} lists no {join_names(one.type for one in selected)} as free"
        + (f" in {', '.join(regions)}" if regions else ""),
        f"it is free in {', '.join(elsewhere)}" if elsewhere else "try again later (--wait 2h), or ask for another GPU",
    )


def _offer(one: InstanceType, region: str, request: Request, notes: Sequence[str], data: Mapping[str, Any]) -> Offer:
    nodes = request.nodes
    what = f"{one.gpus} x {one.gpu}, {one.memory} GB each" if one.gpus else "no GPU"
    return MachineOffer(
        id=f"{one.type}/{region}",
        say=f"{plural(nodes, 'machine')} {one.type} ({what}) in {region}",
        prices=[Price(f"{nodes} x {one.type}", one.per_hour * nodes)],
        gpu=one.gpu,
        gpus=one.gpus,
        memory=one.memory,
        where=region,
        region=region,
        nodes=nodes,
        type=one.type,
        vcpus=one.vcpus,
        ram=one.ram,
        disk=one.disk,
        notes=(*notes, *one.notes),
        columns={"REGION": region},
    ).build(request.provider, type=one.type, memory=one.memory, **data)
