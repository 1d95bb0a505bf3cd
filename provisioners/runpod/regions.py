"""RunPod's data centers, and which of them a `--region` means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.names import did_you_mean, words
from provisioners.kit.documents import Document

REGION = "runpod"
"""The region of every resource: RunPod lists an account's pods as one, wherever they are."""
ALIASES = {"eu": "europe", "na": "north america", "usa": "us", "states": "us", "apac": "asia"}


@dataclass(frozen=True)
class DataCenter:
    id: str
    """`US-KS-2`."""
    name: str
    continent: str
    """In lower case: `north america`."""


def parse_data_centers(documents: Sequence[Document]) -> list[DataCenter]:
    """The catalog's data centers."""
    return [
        DataCenter(
            str(center["id"]),
            str(center.get("name") or center["id"]),
            str(center.get("region") or "").replace("_", " ").lower(),
        )
        for center in documents
    ]


def select_data_centers(region: str, centers: Sequence[DataCenter]) -> list[str]:
    """The ids that a `--region` means: ids, countries or continents, separated by commas. Raises UsageError."""
    meant: list[str] = []
    for wish in (part.strip() for part in region.split(",")):
        ids = _match_ids(wish, centers)
        if not ids:
            raise UsageError(f"RunPod has no data center or region '{wish}'", _suggest_centers(wish, centers))
        meant += ids
    return list(dict.fromkeys(meant))


def _match_ids(wish: str, centers: Sequence[DataCenter]) -> list[str]:
    """By id; else by continent, the id's country (`us`, `eu-ro`), then a word of the name (`kansas`)."""
    if exact := [center.id for center in centers if center.id.lower() == wish.lower()]:
        return exact
    plain = " ".join(words(wish))
    plain = ALIASES.get(plain, plain)
    if not plain:
        return []
    ways = (
        lambda center: center.continent == plain,
        lambda center: f"{' '.join(words(center.id))} ".startswith(f"{plain} "),
        lambda center: words(center.id)[1:2] == [plain] and words(center.id)[0] not in ("us", "ca"),
        lambda center: set(words(plain)) <= set(words(center.name)),
    )
    return next((ids for way in ways if (ids := [center.id for center in centers if way(center)])), [])


def _suggest_centers(wish: str, centers: Sequence[DataCenter]) -> str:
    known = sorted(center.id for center in centers)
    continents = sorted({center.continent for center in centers if center.continent and center.continent != "unknown"})
    everything = f"it has {', '.join(known)}; or say {', '.join(continents)}"
    return did_you_mean(wish, known, 3, 0.7) or everything
