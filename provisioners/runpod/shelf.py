"""What RunPod has, as it tells of it now: GPUs, data centers, the account's network volumes. Reads only."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gpuops.errors import UsageError
from provisioners.runpod import catalog, options, places
from provisioners.runpod.api import Api
from provisioners.runpod.options import Wishes

SHAPES = 6
"""How many kinds of cluster a hint names."""


class Shelf:
    """Raises ProviderError, UsageError."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def gpus(self, wishes: Wishes) -> list[catalog.Gpu]:
        """All kinds, as they are in one cloud; what is said of how many are free is for this number in one machine.

        The plain list knows every name; the one with availability may leave out what is not to be had.
        """
        doing = "list GPUs"
        everything = self._api.pages("/catalog/gpus", "gpus", doing)
        free = {
            one["id"]: one
            for one in self._api.pages(
                "/catalog/gpus",
                "gpus",
                doing,
                include="AVAILABILITY",
                product="CLUSTER" if wishes.nodes > 1 else "POD",
                count=wishes.gpus,
                cloud=wishes.cloud,
                minCudaVersion=wishes.cuda or None,
            )
        }
        told = [{**one, **free.get(one["id"], {"availability": "NONE"})} for one in everything]
        return [catalog.read(one, wishes.cloud) for one in told]

    def centers(self, region: str | None) -> list[str]:
        """The ids of the data centers that a `--region` means; empty without one."""
        if not region:
            return []
        return places.meant(region, places.read(self._api.pages("/catalog/datacenters", "dataCenters", "list regions")))

    def volume(self, wish: str, centers: Sequence[str]) -> dict[str, Any]:
        """The network volume of that id or name, in one of those data centers."""
        there = self._api.pages("/network-volumes", "networkVolumes", "list network volumes")
        found = [one for one in there if one["id"] == wish] or [one for one in there if one.get("name") == wish]
        if len(found) != 1:
            what = f"more than one network volume is called '{wish}'"
            names = ", ".join(f"{one.get('name')} ({one['id']}, {one.get('dataCenter')})" for one in found or there)
            raise UsageError(
                what if found else f"there is no network volume '{wish}'",
                f"name one by its id: {names}" if names else "make one in RunPod's console (Storage)",
            )
        place = str(found[0].get("dataCenter") or "")
        if centers and place not in centers:
            raise UsageError(
                f"the network volume '{wish}' is in {place}, not in {', '.join(centers)}", "leave out --region"
            )
        return found[0]

    def shapes(self, wishes: Wishes) -> str:
        """Which clusters could be had instead: whole machines are what most are made of."""
        whole = dataclasses.replace(wishes, gpus=options.CLUSTER_GPUS)
        there = [gpu.name for gpu in self.gpus(whole) if gpu.price and gpu.level != "NONE"]
        if not there:
            return "RunPod has no cluster of any kind now: try again later, or ask for one node"
        return f"clusters can be had now with --gpus {whole.gpus} of {', '.join(there[:SHAPES])}"
