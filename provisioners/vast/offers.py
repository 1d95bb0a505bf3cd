"""What Vast.ai has free, and which of it a request means, in the order in which it is tried. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.core.errors import NoCapacity
from gpuops.core.models import Offer, Price, Request
from provisioners.kit.documents import Document, number
from provisioners.kit.gpu_names import is_only_by_name
from provisioners.vast.options import Wishes

REGION = "vast"
"""The region of every resource: Vast.ai lists an account's instances as one, wherever they are."""
PRIVATE = "private host"
MIN_MEMORY_GB = 16
MIB_OF_GB = 0.93 * 1024
"""A GPU that is sold with a GB has at least so many MiB: an A10 with 24 GB has 23028."""
MIN_INET_MBPS = 100.0
MIN_LIFE_S = 3600
HOURS_OF_MONTH = 730.0
MAX_ASKS = 64
"""Of what is found, so much is looked at,"""
MAX_OFFERS = 12
"""and so much tried."""


def search_body(wishes: Wishes, request: Request, names: Sequence[str]) -> dict[str, Any]:
    """The body of a search. `names`: of GPUs, as Vast.ai writes them; empty: any."""
    memory = request.gpu_mem or (0 if names else MIN_MEMORY_GB)
    return {
        "verified": {"in": [True, False]} if wishes.unverified else {"eq": True},
        "external": {"eq": False},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "num_gpus": {"eq": wishes.gpus},
        "gpu_ram": {"gte": int(memory * MIB_OF_GB)},
        "gpu_arch": {"eq": "nvidia"},
        "cpu_arch": {"eq": "amd64"},
        "reliability2": {"gte": wishes.reliability},
        "direct_port_count": {"gte": 1},
        "cuda_max_good": {"gte": wishes.cuda},
        "inet_down": {"gte": MIN_INET_MBPS},
        "disk_space": {"gte": wishes.disk},
        "duration": {"gte": MIN_LIFE_S},
        **({"datacenter": {"eq": True}} if wishes.datacenter else {}),
        **({"geolocation": {"in": list(wishes.countries)}} if wishes.countries else {}),
        **({"gpu_name": {"in": list(names)}} if names else {}),
        "type": "bid" if wishes.spot else "on-demand",
        "order": [["dph_total", "asc"]],
        "limit": MAX_ASKS,
        "allocated_storage": float(wishes.disk),
    }


def offers(asks: Sequence[Document], wishes: Wishes, request: Request) -> list[Offer]:
    """The cheapest first. Raises NoCapacity where there is none, with what would help."""
    free = [ask for ask in asks if _is_wanted(ask, wishes, by_name=bool(request.gpu_type))]
    lowest = min((number(ask.get("min_bid")) for ask in free), default=0.0)
    if wishes.bid is not None:
        free = [ask for ask in free if number(ask.get("min_bid")) <= wishes.bid]
    if not free:
        what = f"{wishes.gpus} x {request.gpu_type or 'any GPU'}"
        low = f" for a bid of ${wishes.bid:g}/h: the lowest is ${lowest:g}/h" if lowest and wishes.bid else ""
        raise NoCapacity(
            f"Vast.ai has no {what} free now that is as wanted{low}",
            "ask for another GPU or fewer, a lower --min-reliability, or try again later",
        )
    made = [_offer(ask, wishes) for ask in free]
    return sorted(made, key=lambda offer: offer.per_hour)[:MAX_OFFERS]


def _is_wanted(ask: Document, wishes: Wishes, *, by_name: bool) -> bool:
    """Once more by what counts: nothing is rented that a filter was meant to leave out, and no bid is without a price,
    which would be no bid."""
    return (
        {"id", "gpu_name"} <= ask.keys()
        and number(ask.get("dph_base")) > 0
        and (not wishes.spot or number(ask.get("min_bid")) > 0)
        and number(ask.get("num_gpus")) == wishes.gpus
        and number(ask.get("reliability2")) >= wishes.reliability
        and (wishes.unverified or ask.get("verification") == "verified")
        and (not wishes.datacenter or ask.get("hosting_type") == 1)
        and (by_name or not is_only_by_name(str(ask["gpu_name"])))
    )


def _offer(ask: Mapping[str, Any], wishes: Wishes) -> Offer:
    bid = wishes.bid or math.ceil(number(ask.get("min_bid")) * 1e4) / 1e4
    base = bid if wishes.spot else number(ask["dph_base"])
    disk = max(
        number(ask.get("dph_total")) - number(ask["dph_base"]),
        number(ask.get("storage_cost")) * wishes.disk / HOURS_OF_MONTH,  # $/GB and month, whatever the total says
    )
    name, memory = str(ask["gpu_name"]), round(number(ask.get("gpu_ram")) / 1024)
    where, host = str(ask.get("geolocation") or "place unknown").strip(), _host(ask)
    down, up = (number(ask.get(f"inet_{way}_cost")) for way in ("down", "up"))
    note = (
        f"{wishes.disk} GB of disk cost ${disk:.3f}/h also while it stands still, until it is destroyed; traffic is "
        f"on top: ${down:.3f}/GB in, ${up:.3f}/GB out"
    )
    return Offer(
        provider="vast",
        id=str(ask["id"]),
        say=f"1 machine, {wishes.gpus} x {name} ({memory} GB each), {where}, {host}" + ", may be outbid" * wishes.spot,
        nodes=1,
        gpus=wishes.gpus,
        region=REGION,
        prices=(Price(f"{wishes.gpus} x {name}", base), Price(f"{wishes.disk} GB disk", disk)),
        notes=[note],
        data={
            "columns": {
                "GPU": name,
                "MEMORY": f"{memory} GB",
                "COUNT": str(wishes.gpus),
                "$/H": f"${base + disk:.2f}",
                "WHERE": where,
                "HOST": host,
                "RELIABLE": f"{number(ask.get('reliability2')):.1%}",
            },
            "machine": {
                "gpu": name,
                "gpu_mem": memory,
                "interconnect": "NVLink" if number(ask.get("bw_nvlink")) else "",
                "vcpus": number(ask.get("cpu_cores_effective")),
                "ram": round(number(ask.get("cpu_ram")) / 1024),
                "disk": wishes.disk,
                "spot": wishes.spot,
                "risk": "may be outbid" if wishes.spot else "",
                "where": where,
            },
            "place": f"machine {ask.get('machine_id')}",
            "hosted_by": host,
            "bid": bid if wishes.spot else None,
            "disk": wishes.disk,
            "image": wishes.image,
            **({"ends": number(ask["end_date"])} if number(ask.get("end_date")) else {}),
        },
    )


def _host(ask: Mapping[str, Any]) -> str:
    verified = "" if ask.get("verification") == "verified" else "unverified "
    return verified + ("data center" if ask.get("hosting_type") == 1 else PRIVATE)
