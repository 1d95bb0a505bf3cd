"""Data centers, and which of them a `--region` means. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import UsageError
from provisioners.runpod.catalog import words

REGION = "runpod"
"""The one region of every resource: an account's list is one, wherever its pods are."""
ALIASES = {"eu": "europe", "na": "north america", "usa": "us", "states": "us", "apac": "asia"}


@dataclass(frozen=True)
class Center:
    id: str
    name: str
    continent: str


def read(documents: Sequence[Any]) -> list[Center]:
    return [
        Center(
            str(one["id"]), str(one.get("name") or one["id"]), str(one.get("region") or "").replace("_", " ").lower()
        )
        for one in documents
        if isinstance(one, dict) and one.get("id")
    ]


def meant(region: str, centers: Sequence[Center]) -> list[str]:
    """The ids that a `--region` means: ids, or words for countries and continents, by commas. Raises UsageError."""
    found: list[str] = []
    for wish in (part.strip() for part in region.split(",")):
        ids = _one(wish, centers)
        if not ids:
            raise UsageError(f"RunPod has no data center or region '{wish}'", _near(wish, centers))
        found += ids
    return list(dict.fromkeys(found))


def _one(wish: str, centers: Sequence[Center]) -> list[str]:
    """By id; else by continent, the id's country (`us`, `eu-ro`), then a word of the name (`kansas`)."""
    if exact := [one.id for one in centers if one.id.lower() == wish.lower()]:
        return exact
    said = " ".join(words(wish))
    said = ALIASES.get(said, said)
    if not said:
        return []
    ways = (
        lambda one: one.continent == said,
        lambda one: f"{' '.join(words(one.id))} ".startswith(f"{said} "),
        lambda one: words(one.id)[1:2] == [said] and words(one.id)[0] not in ("us", "ca"),
        lambda one: set(words(said)) <= set(words(one.name)),
    )
    return next((ids for way in ways if (ids := [one.id for one in centers if way(one)])), [])


def _near(wish: str, centers: Sequence[Center]) -> str:
    known = {one.id.lower(): one.id for one in centers}
    close = difflib.get_close_matches(wish.lower(), known, 3, 0.7)
    if close:
        return f"did you mean {' or '.join(known[one] for one in close)}?"
    continents = sorted({one.continent for one in centers if one.continent and one.continent != "unknown"})
    return f"it has {', '.join(sorted(known.values()))}; or say {', '.join(continents)}"
