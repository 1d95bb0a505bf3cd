"""Lambda's instance types, which of them a request means, and offers of those that it lists as free. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import NoCapacity, UsageError
from gpuops.core.format import plural
from gpuops.core.models import Offer, Price, Request
from gpuops.core.names import did_you_mean
from provisioners.kit.documents import Document, inner, objects, price
from provisioners.kit.gpu_names import is_only_by_name, join_names, match_gpu

GPU = re.compile(r"(?:Tesla )?(.+?) \((\d+) GB ?(.*)\)")
"""`H100 (80 GB SXM5)`, which is all that Lambda tells of a GPU."""
INSTANCE_TYPE = "instance-type"
UNFILTERED = "us-south-1"
ENDS = (
    "Lambda bills a machine until it is ended through its API, also one that is shut down: the guard on this computer "
    "does that, while it is on"
)
UNFILTERED_NOTE = "Lambda's firewall does not work in us-south-1: every port of a machine there is open to the internet"
ARM_NOTE = "its processor is an ARM"


@dataclass(frozen=True)
class Kind:
    """One instance type. Its number of GPUs is a part of it."""

    type: str
    gpus: int
    gpu: str
    """`H100 SXM5`; empty where it has none."""
    memory: int
    """GB of one GPU; 0 where Lambda does not say."""
    per_hour: float
    """$/h of the whole machine."""
    is_arm: bool
    vcpus: int
    ram: int
    """GiB, as `disk`."""
    disk: int
    regions: tuple[str, ...]
    """Where it is listed as free: no promise, a launch is often refused seconds later."""


def parse_kinds(data: Document) -> list[Kind]:
    """The answer of `/instance-types`: by type, with its regions."""
    return [_parse_kind(inner(data, name), inner(inner(data, name), "instance_type")) for name in sorted(data)]


def _parse_kind(entry: Document, kind: Document) -> Kind:
    named = str(kind.get("gpu_description") or "")
    match, name, specs = GPU.fullmatch(named), str(kind.get("name") or ""), inner(kind, "specs")
    gpus = int(price(specs.get("gpus")))
    return Kind(
        type=name,
        gpus=gpus,
        gpu=(f"{match[1]} {match[3]}".strip() if match else named) if gpus else "",
        memory=int(match[2]) if match else 0,
        per_hour=price(kind.get("price_cents_per_hour")) / 100,
        is_arm=kind.get("architecture") == "arm64" or "gh200" in name,  # older versions do not tell
        vcpus=int(price(specs.get("vcpus"))),
        ram=int(price(specs.get("memory_gib"))),
        disk=int(price(specs.get("storage_gib"))),
        regions=tuple(sorted(str(region["name"]) for region in objects(entry, "regions_with_capacity_available"))),
    )


def select(kinds: Sequence[Kind], request: Request) -> list[Kind]:
    """Those a request speaks of, free or not, the cheapest first. Raises UsageError."""
    wanted = str(request.options.get(INSTANCE_TYPE) or "").strip()
    if wanted and wanted not in (known := [kind.type for kind in kinds]):
        raise UsageError(
            f"Lambda has no instance type '{wanted}'", did_you_mean(wanted, known) or f"it has {join_names(known)}"
        )
    whole = [kind for kind in kinds if kind.gpus]
    if wanted:
        named = [kind for kind in kinds if kind.type == wanted]
    elif request.gpu_type:
        wishes = request.gpu_type.split(",")
        named = [kind for wish in wishes for kind in match_gpu(whole, wish, "Lambda", name=lambda kind: kind.gpu)]
    else:
        named = [kind for kind in whole if not kind.is_arm and not is_only_by_name(kind.gpu)]
    count = request.gpus or (None if wanted else 1)
    fitting = [kind for kind in named if count in (None, kind.gpus)]
    if not fitting:
        counts = sorted({kind.gpus for kind in named})
        sold = ", ".join(map(str, counts))
        raise UsageError(
            f"Lambda sells no machine with {count} x {wanted or request.gpu_type or 'GPU'}: it sells them with {sold}",
            f"take the nearest: {_nearest_flags(counts, count or 0)}",
        )
    large = [kind for kind in fitting if kind.memory >= (request.gpu_mem or 0)]
    if not large:
        most = max(kind.memory for kind in fitting)
        raise UsageError(
            f"no such GPU at Lambda has {request.gpu_mem} GB of memory: the most is {most} GB",
            "ask for less with --gpu-mem, or for another --gpu-type",
        )
    return sorted(dict.fromkeys(large), key=lambda kind: (kind.per_hour, kind.type))


def _nearest_flags(counts: Sequence[int], count: int) -> str:
    """`--gpus 4 or --gpus 2`: the next that has enough, then the next below it."""
    more, fewer = (
        min((one for one in counts if one > count), default=None),
        max((one for one in counts if one < count), default=None),
    )
    return " or ".join(f"--gpus {one}" for one in (more, fewer) if one is not None)


def find_offers(kinds: Sequence[Kind], request: Request, image: str) -> list[Offer]:
    """One for each type and region that is listed as free. Raises NoCapacity with the reason where that is none."""
    selected, regions = select(kinds, request), split_regions(request.region)
    found = [
        _offer(kind, region, request.nodes, image)
        for kind in selected
        for region in kind.regions
        if not regions or region in regions
    ]
    if found:
        return found
    elsewhere = sorted({region for kind in selected for region in kind.regions})
    raise NoCapacity(
        f"Lambda lists no {join_names(kind.type for kind in selected)} as free"
        + (f" in {', '.join(regions)}" if regions else ""),
        f"it is free in {', '.join(elsewhere)}" if elsewhere else "try again later (--wait 2h), or ask for another GPU",
    )


def split_regions(region: str | None) -> list[str]:
    return [part.strip() for part in (region or "").split(",") if part.strip()]


def _offer(kind: Kind, region: str, nodes: int, image: str) -> Offer:
    what = f"{kind.gpus} x {kind.gpu}, {kind.memory} GB each" if kind.gpus else "no GPU"
    each = kind.per_hour * nodes
    columns = {
        "TYPE": kind.type,
        "GPU": kind.gpu,
        "MEMORY": f"{kind.memory} GB",
        "COUNT": f"{nodes} x {kind.gpus}" if nodes > 1 else str(kind.gpus),
        "REGION": region,
        "$/H": f"${each:.2f}",
    }
    return Offer(
        provider="lambda",
        id=f"{kind.type}/{region}",
        say=f"{plural(nodes, 'machine')} {kind.type} ({what}) in {region}",
        nodes=nodes,
        gpus=kind.gpus,
        region=region,
        prices=(Price(f"{nodes} x {kind.type}", each),),
        data={
            "columns": columns,
            "machine": {
                "gpu": kind.gpu,
                "gpu_mem": kind.memory,
                "vcpus": kind.vcpus,
                "ram": kind.ram,
                "disk": kind.disk,
                "where": region,
            },
            "type": kind.type,
            "image": image,
            "memory": kind.memory,
        },
        notes=(ENDS, *([UNFILTERED_NOTE] if region == UNFILTERED else []), *([ARM_NOTE] if kind.is_arm else [])),
    )
