"""What is free, and where a request for GPUs is put."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fakes.runpod import catalog
from tests.fakes.runpod.catalog import DATA_CENTERS, GPUS, GpuType, version
from tests.fakes.runpod.problems import no_capacity
from tests.fakes.runpod.records import Pod, Volume


class Shelf:
    def __init__(self) -> None:
        self.stock = catalog.full_stock()
        self.cuda = {one.id: list(catalog.CUDA) for one in DATA_CENTERS}
        """Data center -> what its machines' drivers can do."""

    def take(self, pod: Pod) -> None:
        self.stock[pod.gpu][pod.data_center] -= pod.gpus

    def put_back(self, pod: Pod) -> None:
        self.stock.setdefault(pod.gpu, {}).setdefault(pod.data_center, 0)
        self.stock[pod.gpu][pod.data_center] += pod.gpus

    def gpu(self, one: str) -> GpuType:
        found = next((gpu for gpu in GPUS if gpu.id == one), None)
        if found is None:
            raise no_capacity()
        return found

    def place(
        self,
        kind: GpuType,
        count: int,
        machines: int,
        wanted: list[str] | None,
        volume: Volume | None,
        gpu: Mapping[str, Any],
    ) -> str:
        """A data center where that much is free, among those that are named; a volume is in one."""
        for place, free in self.stock.get(kind.id, {}).items():
            if free < count * machines or (wanted and place not in wanted):
                continue
            if volume and volume.data_center != place:
                continue
            if kind.manufacturer == "NVIDIA" and not self.driver(place, gpu):
                continue
            return place
        raise no_capacity()

    def driver(self, place: str, gpu: Mapping[str, Any]) -> str | None:
        """The oldest that does: a request that does not say what it needs gets what is left."""
        least, allowed = gpu.get("minCudaVersion"), gpu.get("allowedCudaVersions")
        for one in sorted(self.cuda.get(place, []), key=version):
            if (not least or version(one) >= version(least)) and (not allowed or one in allowed):
                return one
        return None
