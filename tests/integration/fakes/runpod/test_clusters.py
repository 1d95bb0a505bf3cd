"""Clusters and their members."""

from __future__ import annotations

from tests.fakes.runpod import FakeRunPod, Life, faults
from tests.fakes.runpod.problems import NO_CAPACITY
from tests.integration.fakes.runpod.client import RTX, Client


def test_a_cluster(fake: FakeRunPod, call: Client) -> None:
    made = call.cluster().body
    place = f"/clusters/{made['id']}"
    members = call("GET", f"{place}/pods").body["pods"]
    assert [one["cluster"] for one in members] == [{"id": made["id"], "rank": None}] * 2
    fake.advance(10)
    members = call("GET", f"{place}/pods").body["pods"]
    assert [one["cluster"]["rank"] for one in members] == [0, 1]
    assert len({one["cluster"]["ip"] for one in members} | {one["dataCenterId"] for one in members}) == 3
    told = call("GET", place).body
    assert told["pods"] == {"total": 2, "byStatus": {"RUNNING": 2}}
    assert told["primary"]["podId"] == members[0]["id"]

    assert call.pods() == []
    assert call.pods("?includeClusterPods=true") == ["c-node-0", "c-node-1"]
    assert call("DELETE", f"/pods/{members[0]['id']}").status == 409
    assert call("PATCH", place, {"name": "d"}).body["name"] == "d"
    assert call("DELETE", place).status == 204
    assert call("DELETE", place).status == 404
    assert fake.running() == []


def test_a_cluster_of_what_forms_none(call: Client) -> None:
    compute = {"gpuTypeId": RTX, "gpuCountPerPod": 1, "podCount": 2}
    assert call.cluster(compute=compute).detail == NO_CAPACITY


def test_a_cluster_that_comes_up_unevenly_and_leaves_members(fake: FakeRunPod, call: Client) -> None:
    fake.play(faults.half_cluster(1, Life(assign_s=None)), faults.leaving_members())
    place = f"/clusters/{call.cluster().body['id']}"
    fake.advance(100)
    assert call("GET", place).body["pods"]["byStatus"] == {"RUNNING": 1, "PROVISIONING": 1}
    assert call("DELETE", place).status == 204
    assert len(fake.running()) == 2
    left = call("GET", "/pods?includeClusterPods=true").body["pods"]
    assert [call("DELETE", f"/pods/{one['id']}").status for one in left] == [204, 204]
    assert fake.running() == []
