"""Providers side by side, each with a vice of its own; their machines are tents as of the fair (tests/fakes/fair.py),
each provider's under `<home>/<its name>`.

stall    honest: two kinds of GPU, one of them interruptible
booth    honest, and the cheapest
liar     tells prices that are none, other GPUs, other counts, and one true offer
silent   never answers
slow     answers after `$SLOW_S` seconds
shut     fails at all that it is asked
keyless  tells its prices to everybody, and rents to nobody without a key
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gpuops.core import errors
from gpuops.core.models import Offer, Option, Payer, Price, Problem, Request
from gpuops.core.provider import Context
from tests.fakes.fair import Fair

NAMES = ("stall", "booth", "liar", "silent", "slow", "shut", "keyless")


def settle(site: Path, names: Sequence[str] = NAMES) -> list[str]:
    """Write the metadata of their wheel; what `sys.path` needs for them to be found."""
    folder = site / "gpuops_stalls-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuops-stalls\nVersion: 1.0\n")
    points = [f"{name} = tests.fakes.stalls:{name.capitalize()}" for name in names]
    (folder / "entry_points.txt").write_text("\n".join(["[gpuops.provisioners]", *points, ""]))
    return [str(site)]


class Stall(Fair):
    """Tents that are said to have GPUs."""

    name = "stall"
    options: Sequence[Option] = (Option("awning", "Which colour."),)
    kinds: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"gpu": "RTX 4090", "gpu_mem": 24, "vcpus": 32, "ram": 128, "disk": 100, "where": "row 1", "price": 0.34},
        {"gpu": "A100 SXM", "gpu_mem": 80, "interconnect": "NVLink", "spot": True, "risk": "5-10 % a month",
         "where": "row 2", "price": 0.99},
    )  # fmt: skip

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.root = context.home / self.name

    def offers(self, request: Request) -> Sequence[Offer]:
        return [self.offer(request, kind) for kind in self.kinds if kind["gpu_mem"] >= (request.gpu_mem or 0)]

    def offer(self, request: Request, kind: Mapping[str, Any], **other: Any) -> Offer:
        price, gpus = kind["price"], other.pop("gpus", request.gpus or 1)
        fields: dict[str, Any] = {
            "provider": self.name,
            "id": kind["gpu"].replace(" ", "-"),
            "say": f"{request.nodes} x {gpus} x {kind['gpu']}",
            "nodes": request.nodes,
            "gpus": gpus,
            "prices": (Price(kind["gpu"], price * gpus * request.nodes),),
            "data": {"machine": kind, "per_hour": price * gpus, "place": kind.get("where", "")},
        }
        return Offer(**{**fields, **other})


class Booth(Stall):
    name = "booth"
    options = ()
    kinds = ({"gpu": "A10G", "gpu_mem": 24, "where": "the corner", "price": 0.30},)


class Liar(Stall):
    name = "liar"
    kinds = ({"gpu": "L4", "gpu_mem": 24, "where": "nowhere", "price": 0.5},)

    def offers(self, request: Request) -> Sequence[Any]:
        kind, small = self.kinds[0], {"gpu": "RTX 3060", "gpu_mem": 12, "price": 0.1}
        return [
            self.offer(request, kind, say="negative", prices=(Price("L4", -1.0),)),
            self.offer(request, kind, say="in part negative", prices=(Price("L4", 3.0), Price("a gift", -2.0))),
            self.offer(request, kind, say="NaN", prices=(Price("L4", math.nan),)),
            self.offer(request, kind, say="absent", prices=()),
            self.offer(request, kind, say="a word", prices=(Price("L4", "cheap"),)),  # type: ignore[arg-type]
            self.offer(request, kind, say="other nodes", nodes=request.nodes + 1),
            self.offer(request, kind, say="fewer GPUs", gpus=(request.gpus or 2) - 1),
            self.offer(request, small, say="less memory"),
            self.offer(request, {**small, "gpu_mem": 24}, say="another GPU"),
            self.offer(request, kind, say="another's", provider="stall"),
            "an offer, on my word",
            self.offer(request, kind, say="the true one"),
        ]


class Silent(Stall):
    name = "silent"

    def preflight(self, request: Request) -> Sequence[Problem]:  # noqa: ARG002
        while True:
            time.sleep(3600)


class Slow(Stall):
    name = "slow"
    kinds = ({"gpu": "H100 SXM", "gpu_mem": 80, "price": 2.5},)

    def offers(self, request: Request) -> Sequence[Offer]:
        time.sleep(float(os.environ.get("SLOW_S", "0.1")))
        return super().offers(request)


class Shut(Stall):
    name = "shut"

    def preflight(self, request: Request) -> Sequence[Problem]:  # noqa: ARG002
        raise errors.RateLimited("shut wants fewer requests", "wait a minute")


class Keyless(Stall):
    name = "keyless"
    kinds = ({"gpu": "L40S", "gpu_mem": 48, "price": 0.2},)

    def preflight(self, request: Request) -> Sequence[Problem]:  # noqa: ARG002
        return [Problem("there is no key of keyless", "export KEYLESS_KEY=…")]

    def payer(self, request: Request, patience_s: float) -> Payer:  # noqa: ARG002
        raise errors.NotSetUp("there is no key of keyless", "export KEYLESS_KEY=…")
