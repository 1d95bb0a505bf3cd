"""Vast.ai's own flags, and a request checked and in Vast.ai's nouns. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Request
from provisioners.kit.container_images import cuda_of
from provisioners.kit.gpu_names import split_wish

IMAGE = "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime"
MIN_CUDA = 12.8
"""Where an image's name does not tell its CUDA."""
DISK_GB, MIN_DISK_GB = 100, 8
MAX_BID = 128.0
RELIABILITY = 0.98
OPTIONS: Sequence[Option] = (
    Option("min-reliability", f"The least share of time that a machine was up, as Vast.ai counts it ({RELIABILITY}).",
           "float", default=RELIABILITY),
    Option("datacenter", "Only machines in data centers that Vast.ai has looked at; the others are other people's, who "
           "can see all that is on them.", "bool", default=False),
    Option("unverified", "Also machines that Vast.ai has not verified.", "bool", default=False),
    Option("bid", "With --spot: $/h for the machine's GPUs; without it, the lowest bid that Vast.ai takes.", "float"),
    Option("disk", "GB of disk: fixed for the life of a machine, and paid for until it is destroyed.", "int",
           default=DISK_GB),
)  # fmt: skip
COUNTRY = re.compile(r"[A-Z]{2}")


@dataclass(frozen=True)
class Wishes:
    """A checked request; Vast.ai was not asked for anything yet."""

    gpus: int
    spot: bool
    bid: float | None
    reliability: float
    datacenter: bool
    unverified: bool
    disk: int
    image: str
    cuda: float
    """The oldest CUDA of a driver that does."""
    countries: tuple[str, ...]
    """`SE`; empty: any."""


def wishes(request: Request) -> Wishes:
    """Raises UsageError for what makes no sense anywhere."""
    given = request.options
    bid = None if given.get("bid") is None else float(given["bid"])
    reliability = float(RELIABILITY if given.get("min-reliability") is None else given["min-reliability"])
    disk = DISK_GB if given.get("disk") is None else int(given["disk"])
    image = (request.image or IMAGE).strip()
    countries = tuple(split_wish((request.region or "").upper()))
    gpus = 1 if request.gpus is None else request.gpus
    checks = (
        (gpus < 1, "a machine at Vast.ai has at least one GPU", "leave out --gpus, or ask for 1 and more"),
        (bid is not None and not request.spot, "--bid is a price for machines that may be taken back", "add --spot"),
        (bid is not None and not 0 < bid <= MAX_BID, f"--bid {bid} is no price", f"it is in $/h, up to {MAX_BID:g}"),
        (not 0 <= reliability <= 1, f"--min-reliability {reliability:g} is no share", "write it like 0.98"),
        (disk < MIN_DISK_GB, f"a disk of {disk} GB is too small", f"Vast.ai's have {MIN_DISK_GB} GB and more: --disk"),
        (not image or re.search(r"\s", image), f"'{image}' is not the name of an image", f"write it like {IMAGE}"),
        (not all(map(COUNTRY.fullmatch, countries)), f"--region {request.region} names no countries",
         "Vast.ai knows a machine's country, by two letters: --region SE,NO"),
    )  # fmt: skip
    for is_wrong, say, hint in checks:
        if is_wrong:
            raise UsageError(say, hint)
    cuda = float(cuda_of(image) or MIN_CUDA)
    datacenter, unverified = bool(given.get("datacenter")), bool(given.get("unverified"))
    return Wishes(gpus, request.spot, bid, reliability, datacenter, unverified, disk, image, cuda, countries)
