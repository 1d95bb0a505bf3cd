"""What a machine of an offer has, as far as its provider tells: for the table of several providers. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuops.core.format import one_line
from gpuops.core.models import Offer

MAX_TEXT_CHARS = 40
"""A provider's words in one cell."""


@dataclass(frozen=True)
class MachineFacts:
    """`Offer.data["machine"]`, of one machine; None and empty: not told."""

    gpu: str = ""
    """Its GPU's name."""
    gpu_mem: float | None = None
    """GB of one GPU, as makers count them."""
    interconnect: str = ""
    """What joins its GPUs, or the machines: `NVLink`, `400 Gbit/s EFA`."""
    vcpus: float | None = None
    ram: float | None = None
    """GB."""
    disk: float | None = None
    """GB."""
    spot: bool = False
    """Whether its provider may take it back."""
    risk: str = ""
    """How likely that is, in the provider's words."""
    where: str = ""


def read_facts(offer: Offer) -> MachineFacts:
    """The facts of an offer. Where a provider tells none, those that its own table (`columns`) has."""
    told = _mapping(offer.data.get("machine"))
    shown = {heading.upper(): str(text) for heading, text in _mapping(offer.data.get("columns")).items()}
    return MachineFacts(
        gpu=_text(told.get("gpu") or shown.get("GPU")),
        gpu_mem=_number(told.get("gpu_mem")) or _leading_number(shown.get("MEMORY", "")),
        interconnect=_text(told.get("interconnect")),
        vcpus=_number(told.get("vcpus")),
        ram=_number(told.get("ram")),
        disk=_number(told.get("disk")),
        spot=told.get("spot") is True or shown.get("MARKET") == "spot",
        risk=_text(told.get("risk")),
        where=_text(told.get("where") or offer.data.get("place") or offer.region),
    )


def _mapping(value: object) -> dict[str, Any]:
    return {str(name): item for name, item in value.items()} if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return one_line(value, MAX_TEXT_CHARS) if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """A number that may be shown; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None


def _leading_number(text: str) -> float | None:
    """`24 GB` is 24."""
    found = re.match(r"\d+(\.\d+)?", text)
    return float(found[0]) if found else None
