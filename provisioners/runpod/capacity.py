"""What RunPod has now: GPUs, data centers, and the account's volumes, templates and registries. Reads only."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from gpuops.core.errors import UsageError
from provisioners.runpod import catalog, options, regions
from provisioners.runpod.api import Api
from provisioners.runpod.catalog import Volume
from provisioners.runpod.options import Wishes

MAX_CLUSTER_KINDS = 6
"""How many kinds of cluster a hint names."""


class Stock:
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
            item["id"]: item
            for item in self._api.pages(
                "/catalog/gpus",
                "gpus",
                doing,
                include="AVAILABILITY",
                product="CLUSTER" if wishes.nodes > 1 else "POD",
                count=wishes.gpus,
                cloud=wishes.cloud,
                minCudaVersion=wishes.min_cuda or None,
            )
        }
        merged = [{**item, **free.get(item["id"], {"availability": "NONE"})} for item in everything]
        return [catalog.parse_gpu(item, wishes.cloud) for item in merged]

    def with_cluster_prices(self, gpus: Sequence[catalog.Gpu]) -> list[catalog.Gpu]:
        """The GPUs at their prices in a cluster, where GraphQL has them: REST v2 has the prices of pods alone."""
        data = self._api.graphql("query { gpuTypes { id clusterPrice } }")
        return catalog.at_cluster_prices(gpus, catalog.parse_cluster_prices(data))

    def with_minimums(self, gpus: Sequence[catalog.Gpu], wishes: Wishes, centers: Sequence[str]) -> list[catalog.Gpu]:
        """The GPUs with the RAM and vCPUs of their machines, which GraphQL alone has."""
        least = {
            "gpuCount": wishes.gpus,
            **({"minMemoryInGb": wishes.min_ram} if wishes.min_ram else {}),
            **({"minVcpuCount": wishes.min_vcpu} if wishes.min_vcpu else {}),
            "secureCloud": wishes.cloud == "SECURE",
            **({"dataCenterId": centers[0]} if len(centers) == 1 else {}),
        }
        given = ", ".join(f"{name}: {json.dumps(value)}" for name, value in least.items())
        fields = "stockStatus uninterruptablePrice minVcpu minMemory"
        data = self._api.graphql(f"query {{ gpuTypes {{ id lowestPrice(input: {{{given}}}) {{ {fields} }} }} }}")
        return catalog.with_at_least(gpus, catalog.parse_cheapest_machines(data), wishes.min_ram, wishes.min_vcpu)

    def centers(self, region: str | None) -> list[str]:
        """The ids of the data centers that a `--region` means; empty without one."""
        if not region:
            return []
        return regions.select_data_centers(
            region, regions.parse_data_centers(self._api.pages("/catalog/datacenters", "dataCenters", "list regions"))
        )

    def resolve_ids(self, wishes: Wishes) -> Wishes:
        """The wishes with ids where names were given."""
        own, kept = "/templates", "/registries"
        return dataclasses.replace(
            wishes,
            template=self._find_id(wishes.template, "template", "templates", (own, "/catalog/templates")),
            registry=self._find_id(wishes.registry, "registry", "registries", (kept,)),
        )

    def _find_id(self, wish: str, what: str, name: str, paths: Sequence[str]) -> str:
        if not wish:
            return ""
        for path in paths:
            listed = self._api.pages(path, name, f"list {name}")
            found = [item for item in listed if item["id"] == wish] or [
                item for item in listed if item.get("name") == wish
            ]
            if len(found) == 1:
                return str(found[0]["id"])
            if found:
                raise UsageError(
                    f"more than one {what} is called '{wish}'",
                    f"name one by its id: {', '.join(str(item['id']) for item in found)}",
                )
        raise UsageError(f"there is no {what} '{wish}'", f"RunPod's console lists them; --{what} takes a name or an id")

    def volume(self, wish: str, centers: Sequence[str]) -> Volume:
        """The network volume of that id or name, in one of these data centers; `centers` empty: in any."""
        documents = self._api.pages("/network-volumes", "networkVolumes", "list network volumes")
        volumes = [catalog.parse_volume(item) for item in documents]
        matching = [item for item in volumes if item.id == wish] or [item for item in volumes if item.name == wish]
        if len(matching) != 1:
            many = f"more than one network volume is called '{wish}'"
            names = ", ".join(f"{item.name} ({item.id}, {item.center})" for item in matching or volumes)
            raise UsageError(
                many if matching else f"there is no network volume '{wish}'",
                f"name one by its id: {names}" if names else "make one in RunPod's console (Storage)",
            )
        volume = matching[0]
        if centers and volume.center not in centers:
            raise UsageError(
                f"the network volume '{wish}' is in {volume.center}, not in {', '.join(centers)}", "leave out --region"
            )
        return volume

    def suggest_clusters(self, wishes: Wishes) -> str:
        """A hint: which clusters could be had instead. Most are made of whole machines."""
        request = dataclasses.replace(wishes.request, gpus=options.CLUSTER_GPUS)
        whole = dataclasses.replace(wishes, request=request)
        available = [gpu.name for gpu in self.gpus(whole) if gpu.price and gpu.level != "NONE"]
        if not available:
            return "RunPod has no cluster of any kind now: try again later, or ask for one node"
        return f"clusters can be had now with --gpus {whole.gpus} of {', '.join(available[:MAX_CLUSTER_KINDS])}"
