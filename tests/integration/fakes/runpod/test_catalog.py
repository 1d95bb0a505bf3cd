"""What is free, and volumes that pin their pods."""

from __future__ import annotations

from typing import Any

from tests.fakes.runpod import FakeRunPod
from tests.integration.fakes.runpod.client import H100, RTX, Client


def test_stock_runs_out_and_comes_back(fake: FakeRunPod, call: Client) -> None:
    fake.stock = {RTX: {"US-KS-2": 2, "EU-RO-1": 1}}
    first = call.create(gpu={"id": RTX, "count": 2, "minCudaVersion": "12.8"})
    assert (first.status, first.body["dataCenterId"]) == (201, "US-KS-2")
    assert call.create(dataCenterIds=["US-KS-2"]).status == 400
    assert call.create().body["dataCenterId"] == "EU-RO-1"
    assert call.create().status == 400
    call("DELETE", f"/pods/{first.body['id']}")
    assert call.create().body["dataCenterId"] == "US-KS-2"


def test_the_catalog_says_what_is_free(fake: FakeRunPod, call: Client) -> None:
    fake.stock = {RTX: {"US-KS-2": 20, "EU-RO-1": 1}}

    def found(query: str) -> dict[str, Any]:
        return {one["id"]: one for one in call("GET", f"/catalog/gpus{query}").body["gpus"]}

    assert "availability" not in found("")[RTX]
    free = found("?include=AVAILABILITY&product=POD&count=2&minCudaVersion=12.8")
    assert free[RTX]["dataCenters"] == [{"id": "US-KS-2", "name": "US Kansas 2", "availability": "HIGH"}]
    assert free[H100]["availability"] == "NONE"
    assert found("?include=AVAILABILITY&product=CLUSTER")[RTX]["availability"] == "NONE"
    assert found("?include=AVAILABILITY&product=POD&countryCodes=RO")[RTX]["availability"] == "LOW"
    assert found("?include=AVAILABILITY&product=POD&minCudaVersion=19.0")[RTX]["availability"] == "NONE"
    assert call("GET", "/catalog/gpus?include=AVAILABILITY").status == 400
    centers = call("GET", "/catalog/datacenters?include=GPU_AVAILABILITY&regions=EUROPE").body["dataCenters"]
    assert {one["id"]: one.get("gpuAvailability") for one in centers}["EU-RO-1"][0]["availability"] == "LOW"


def test_a_volume_pins_its_pods(fake: FakeRunPod, call: Client) -> None:
    refused = call("POST", "/network-volumes", {"name": "v", "size": 10, "dataCenter": "US-DE-1"})
    assert (refused.status, "US-KS-2" in refused.detail) == (400, True)
    volume = call("POST", "/network-volumes", {"name": "v", "size": 10, "dataCenter": "US-KS-2"}).body["id"]
    mounts = {"network": [{"volumeId": volume, "path": "/workspace"}]}
    assert call.create(mounts=mounts, dataCenterIds=["EU-RO-1"]).status == 400
    made = call.create(mounts=mounts).body
    assert made["dataCenterId"] == "US-KS-2"
    place = f"/network-volumes/{volume}"
    assert call("DELETE", place).status == 400
    assert call("PATCH", place, {"size": 9 + 2}).body["size"] == 11
    assert call("PATCH", place, {"size": 10}).status == 400
    call("DELETE", f"/pods/{made['id']}")
    assert call("DELETE", place).status == 204
    assert fake.volumes == {}
