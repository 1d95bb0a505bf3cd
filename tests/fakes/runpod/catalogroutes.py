"""The catalog's paths: what there is, what of it is free."""

from __future__ import annotations

from typing import Any

from tests.fakes.runpod import catalog
from tests.fakes.runpod.catalog import DATA_CENTERS, GPUS
from tests.fakes.runpod.problems import Refusal, not_found
from tests.fakes.runpod.requests import Answer, Caller, Request
from tests.fakes.runpod.routing import route
from tests.fakes.runpod.service import Service


def _several(request: Request, name: str) -> list[str]:
    return [one for one in request.query.get(name, "").split(",") if one]


def _gpu_filters(request: Request) -> tuple[list[str], str | None, int]:
    """Products, cloud, count; only with include=AVAILABILITY are they allowed."""
    include, products = _several(request, "include"), _several(request, "product")
    if include not in ([], ["AVAILABILITY"]):
        raise Refusal(400, "include must be AVAILABILITY")
    if include and not products:
        raise Refusal(400, "product is required with include=AVAILABILITY")
    if not include and (products or "count" in request.query or "cloud" in request.query):
        raise Refusal(400, "product, count and cloud are valid only with include=AVAILABILITY")
    if not set(products) <= {"POD", "CLUSTER", "SERVERLESS"}:
        raise Refusal(400, "product must be POD, CLUSTER or SERVERLESS")
    count = request.query.get("count", "1")
    if not count.isdigit() or int(count) < 1:
        raise Refusal(400, "count must be at least 1")
    return products, request.query.get("cloud"), int(count)


def _gpu(service: Service, request: Request, gpu: catalog.GpuType) -> dict[str, Any]:
    products, cloud, count = _gpu_filters(request)
    view = catalog.gpu_view(gpu)
    if not products:
        return view
    least, exact = request.query.get("minCudaVersion"), _several(request, "cudaVersions")
    free = {}
    if any(catalog.offered(gpu, cloud, product, count) for product in products):
        for place, number in service.shelf.stock.get(gpu.id, {}).items():
            drivers = [one for one in service.shelf.cuda.get(place, []) if not exact or one in exact]
            fitting = [one for one in drivers if not least or catalog.version(one) >= catalog.version(least)]
            if fitting or gpu.manufacturer != "NVIDIA":
                free[place] = number
    drivers = sorted({one for place in free for one in service.shelf.cuda.get(place, [])}, key=catalog.version)
    return view | catalog.availability(gpu, free, count, drivers, _several(request, "countryCodes"))


@route("GET", "/catalog/gpus")
def list_gpus(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    return Answer(200, {"gpus": [_gpu(service, request, gpu) for gpu in GPUS]})


@route("GET", "/catalog/gpus/{id}")
def get_gpu(service: Service, caller: Caller, request: Request, one: str) -> Answer:  # noqa: ARG001
    found = next((gpu for gpu in GPUS if gpu.id == one), None)
    if not found:
        raise not_found()
    return Answer(200, _gpu(service, request, found))


def _data_center(service: Service, request: Request, one: catalog.DataCenter) -> dict[str, Any]:
    view = catalog.data_center_view(one)
    free = {gpu: service.shelf.stock.get(gpu.id, {}).get(one.id, 0) for gpu in GPUS}
    if "GPU_AVAILABILITY" in _several(request, "include") and any(free.values()):
        view["gpuAvailability"] = [
            {"id": gpu.id, "name": gpu.name, "availability": catalog.level(count, 1)}
            for gpu, count in free.items()
            if count
        ]
    return view


@route("GET", "/catalog/datacenters")
def list_data_centers(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    found = [_data_center(service, request, one) for one in DATA_CENTERS]
    regions, tiers = _several(request, "regions"), set(_several(request, "networkVolumeTypes"))
    spanned = request.query.get("globalNetwork")
    found = [one for one in found if not regions or one["region"] in regions]
    found = [one for one in found if tiers <= set(one["networkVolumeTypes"])]
    found = [one for one in found if spanned is None or one["globalNetwork"] == (spanned == "true")]
    return Answer(200, {"dataCenters": found})


@route("GET", "/catalog/datacenters/{id}")
def get_data_center(service: Service, caller: Caller, request: Request, one: str) -> Answer:  # noqa: ARG001
    found = next((each for each in DATA_CENTERS if each.id == one), None)
    if not found:
        raise not_found()
    return Answer(200, _data_center(service, request, found))
