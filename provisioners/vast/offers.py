"""Vast.ai's own flags, what it has free, and which of it a request means, in the order in which it is tried. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import NoCapacity
from gpuops.core.models import Offer, Price
from provisioners.kit.container_images import cuda_of
from provisioners.kit.documents import Document, number
from provisioners.kit.gpu_names import MIN_MEMORY_GB, is_only_by_name, split_wish
from provisioners.kit.machine_offer import MachineOffer, cheapest
from provisioners.kit.options import Check, OwnOptions, option

MIN_CUDA = 12.8
"""Where an image's name does not tell its CUDA."""
COUNTRY = re.compile(r"[A-Z]{2}")
MIB_OF_GB = 0.93 * 1024
"""A GPU that is sold with a GB has at least so many MiB: an A10 with 24 GB has 23028."""
MIN_INET_MBPS = 100.0
MIN_LIFE_S = 3600
HOURS_OF_MONTH = 730.0
NOTE = (
    "{} GB of disk cost ${:.3f}/h also while it stands still, until it is destroyed; traffic is on top: ${:.3f}/GB in, "
    "${:.3f}/GB out"
)
MAX_ASKS = 64
"""Of what is found, so much is looked at."""


@dataclass(frozen=True)
class Wishes(OwnOptions):
    who = "Vast.ai"
    default_image = "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime"
    min_reliability: float = option(
        "The least share of time that a machine was up, as Vast.ai counts it (0.98).", 0.98, least=0, most=1
    )
    datacenter: bool = option(
        "Only machines in data centers that Vast.ai has looked at; the others are other people's, who can see all that "
        "is on them.",
        False,
    )
    unverified: bool = option("Also machines that Vast.ai has not verified.", False)
    bid: float | None = option(
        "With --spot: $/h for the machine's GPUs; without it, the lowest bid that Vast.ai takes.", least=0.001, most=128
    )
    disk: int = option("GB of disk: fixed for the life of a machine, and paid for until it is destroyed.", 100, least=8)

    @property
    def countries(self) -> list[str]:
        """`SE`; empty: any."""
        return split_wish((self.request.region or "").upper())

    def checks(self) -> list[Check]:
        return [
            (self.bid and not self.request.spot, "--bid is a price for machines that may be taken back", "add --spot"),
            (
                not all(map(COUNTRY.fullmatch, self.countries)),
                f"--region {self.request.region} names no countries",
                "Vast.ai knows a machine's country, by two letters: --region SE,NO",
            ),
        ]


def search_body(wishes: Wishes, names: Sequence[str]) -> dict[str, Any]:
    """The body of a search. `names`: of GPUs, as Vast.ai writes them; empty: any."""
    memory = wishes.request.gpu_mem or (0 if names else MIN_MEMORY_GB)
    return {
        "verified": {"in": [True, False]} if wishes.unverified else {"eq": True},
        "external": {"eq": False},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "num_gpus": {"eq": wishes.gpus},
        "gpu_ram": {"gte": int(memory * MIB_OF_GB)},
        "gpu_arch": {"eq": "nvidia"},
        "cpu_arch": {"eq": "amd64"},
        "reliability2": {"gte": wishes.min_reliability},
        "direct_port_count": {"gte": 1},
        "cuda_max_good": {"gte": float(cuda_of(wishes.image) or MIN_CUDA)},
        "inet_down": {"gte": MIN_INET_MBPS},
        "disk_space": {"gte": wishes.disk},
        "duration": {"gte": MIN_LIFE_S},
        **({"datacenter": {"eq": True}} if wishes.datacenter else {}),
        **({"geolocation": {"in": wishes.countries}} if wishes.countries else {}),
        **({"gpu_name": {"in": list(names)}} if names else {}),
        "type": "bid" if wishes.request.spot else "on-demand",
        "order": [["dph_total", "asc"]],
        "limit": MAX_ASKS,
        "allocated_storage": float(wishes.disk),
    }


def offers(asks: Sequence[Document], wishes: Wishes) -> list[Offer]:
    """The cheapest first. Raises NoCapacity where there is none, with what would help."""
    free = [ask for ask in asks if _is_wanted(ask, wishes)]
    lowest = min((number(ask.get("min_bid")) for ask in free), default=0.0)
    if wishes.bid is not None:
        free = [ask for ask in free if number(ask.get("min_bid")) <= wishes.bid]
    if not free:
        what = f"{wishes.gpus} x {wishes.request.gpu_type or 'any GPU'}"
        low = f" for a bid of ${wishes.bid:g}/h: the lowest is ${lowest:g}/h" if lowest and wishes.bid else ""
        raise NoCapacity(
            f"Vast.ai has no {what} free now that is as wanted{low}",
            "ask for another GPU or fewer, a lower --min-reliability, or try again later",
        )
    return cheapest(_offer(ask, wishes) for ask in free)


def _is_wanted(ask: Document, wishes: Wishes) -> bool:
    """Once more by what counts: nothing is rented that a filter was meant to leave out, and no bid is without a price,
    which would be no bid."""
    return (
        {"id", "gpu_name"} <= ask.keys()
        and number(ask.get("dph_base")) > 0
        and (not wishes.request.spot or number(ask.get("min_bid")) > 0)
        and number(ask.get("num_gpus")) == wishes.gpus
        and number(ask.get("reliability2")) >= wishes.min_reliability
        and (wishes.unverified or ask.get("verification") == "verified")
        and (not wishes.datacenter or ask.get("hosting_type") == 1)
        and (bool(wishes.request.gpu_type) or not is_only_by_name(str(ask["gpu_name"])))
    )


def _offer(ask: Document, wishes: Wishes) -> Offer:
    spot, lowest = wishes.request.spot, math.ceil(number(ask.get("min_bid")) * 1e4) / 1e4
    bid = (wishes.bid or lowest) if spot else None
    disk = max(
        number(ask.get("dph_total")) - number(ask["dph_base"]),
        number(ask.get("storage_cost")) * wishes.disk / HOURS_OF_MONTH,  # $/GB and month, whatever the total says
    )
    name, memory = str(ask["gpu_name"]), round(number(ask.get("gpu_ram")) / 1024)
    where = str(ask.get("geolocation") or "place unknown").strip()
    is_private = ask.get("hosting_type") != 1
    host = "private host" if is_private else "data center"
    host = host if ask.get("verification") == "verified" else f"unverified {host}"
    down, up = (number(ask.get(f"inet_{way}_cost")) for way in ("down", "up"))
    return MachineOffer(
        id=str(ask["id"]),
        say=f"1 machine, {wishes.gpus} x {name} ({memory} GB each), {where}, {host}" + ", may be outbid" * spot,
        prices=[
            Price(f"{wishes.gpus} x {name}", number(ask["dph_base"]) if bid is None else bid),
            Price(f"{wishes.disk} GB disk", disk),
        ],
        gpu=name,
        gpus=wishes.gpus,
        memory=memory,
        where=where,
        vcpus=number(ask.get("cpu_cores_effective")),
        ram=round(number(ask.get("cpu_ram")) / 1024),
        disk=wishes.disk,
        interconnect="NVLink" if number(ask.get("bw_nvlink")) else "",
        spot=spot,
        risk="may be outbid" if spot else "",
        private=is_private,
        notes=[NOTE.format(wishes.disk, disk, down, up)],
        more_columns={"WHERE": where, "HOST": host, "RELIABLE": f"{number(ask.get('reliability2')):.1%}"},
    ).build(
        "vast",
        place=f"machine {ask.get('machine_id')}",
        hosted_by=host,
        bid=bid,
        disk=wishes.disk,
        image=wishes.image,
        **({"ends": number(ask["end_date"])} if number(ask.get("end_date")) else {}),
    )
