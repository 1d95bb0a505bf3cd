"""Tents of a fair, which its owner takes back: `tests/system/packaging/plugin` with several places, refusals and an end
that nobody asked for.

    <home>/tent/full      a line for each place where nothing can be had
    <home>/tent/once      the same of places where something can be had the first time
    <home>/tent/short     a line for each place whose quota is used up; west and north share theirs
    <home>/tent/taken/    a file for each tent that was taken back
    <home>/tent/fragile   a line for each place whose tents are taken back before anybody is in them

Each tent asks `$FAIR_NOTICES`, where it is set, as a machine at EC2 asks for its notices; for `PLACE` stands the
number of its place, from 1.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from gpuops.core.errors import NoCapacity, QuotaExceeded
from gpuops.core.models import Intent, Journal, Offer, Option, Price, Problem, Request, Resource
from gpuops.core.provider import Context
from tests.files import change
from tests.system.packaging.plugin.gpuops_tent import REGION, TentProvisioner

PLACES = {"east": 0.36, "west": 0.40, "north": 0.50}
WHY = "the owner of the fair took the tent back"


def settle(site: Path) -> list[str]:
    """Write the metadata of its wheel; what `sys.path` needs for it to be found."""
    folder = site / "gpuops_fair-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuops-fair\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[gpuops.provisioners]\nfair = tests.fakes.fair:Fair\n")
    return [str(site)]


class Fair(TentProvisioner):
    name = "fair"
    capabilities: Mapping[str, bool | str] = {**TentProvisioner.capabilities, "spot": True}
    options: Sequence[Option] = ()

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.notices = context.env.get("FAIR_NOTICES")

    def preflight(self, request: Request) -> Sequence[Problem]:  # noqa: ARG002
        return []

    def offers(self, request: Request) -> Sequence[Offer]:
        return [
            Offer(self.name, place, f"{request.nodes} tents in the {place}", request.nodes, 0, REGION,
                  (Price("tents", per_hour * request.nodes),),
                  {"per_hour": per_hour, "place": place, "quota": "east" if place == "east" else "others"})
            for place, per_hour in PLACES.items()
        ]  # fmt: skip

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        self._note(f"create {offer.id}")
        again = asked(self.root).count(offer.id) > 1
        if offer.id in self._lines("full") or (again and offer.id in self._lines("once")):
            raise NoCapacity(f"no tent is left in the {offer.id}", "wait, or go elsewhere")
        if offer.id in self._lines("short"):
            raise QuotaExceeded(f"the quota of the {offer.id} is used up", "file a request")
        made = super().create(offer, intent, journal)
        if offer.id in self._lines("fragile"):
            (self.root / "taken").mkdir(exist_ok=True)
            for tent in made:
                (self.root / "taken" / tent.id).touch()
        if self.notices:
            url = self.notices.replace("PLACE", str(1 + [*PLACES].index(offer.id)))
            for tent in made:
                change(self._folder(tent) / "node.json", notices={"kind": "ec2", "url": url})
        return made

    def describe(self, resource: Resource) -> Resource:
        found = super().describe(resource)
        if not (self.root / "taken" / resource.id).exists():
            return found
        return dataclasses.replace(found, data={**found.data, "reclaimed": True, "why_ended": WHY})

    def _lines(self, name: str) -> list[str]:
        path = self.root / name
        return path.read_text().split() if path.exists() else []

    def _note(self, line: str) -> None:
        self.root.mkdir(exist_ok=True)
        with (self.root / "asked").open("a") as asked:
            asked.write(line + "\n")


def asked(root: Path) -> list[str]:
    """The places where something was to be made, in order."""
    return [line.partition(" ")[2] for line in (root / "asked").read_text().splitlines()]


def take_back(root: Path) -> list[str]:
    """Every tent that stands is gone in this instant, with all that runs in it. Returns whose they were."""
    names = []
    (root / "taken").mkdir(exist_ok=True)
    for path in sorted((root / "ground").glob("*.json")):
        names.append(str(json.loads(path.read_text())["name"]))
        (root / "taken" / path.stem).touch()
        (root / "struck").mkdir(exist_ok=True)
        path.replace(root / "struck" / path.name)
    inside = [process for process in psutil.process_iter() if _is_in(process, root / "nodes")]
    for act in (psutil.Process.suspend, psutil.Process.kill):  # none sees another one's end
        for process in inside:
            with suppress(psutil.Error):
                act(process)
    return names


def _is_in(process: psutil.Process, nodes: Path) -> bool:
    try:
        words = [*process.cmdline(), *process.environ().values()]
        return any(f"{nodes}{os.sep}" in word for word in words) and "gpuops" not in process.cmdline()[1:3]
    except psutil.Error:
        return False
