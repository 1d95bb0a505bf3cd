"""Pods made, read, listed and deleted; what a wrong request is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.runpod import FakeRunPod
from tests.fakes.runpod.problems import NO_CAPACITY
from tests.integration.fakes.runpod.client import RTX, Client, request


def test_a_pod_is_made_read_listed_and_deleted_once(fake: FakeRunPod, call: Client) -> None:
    made = call.create()
    assert (made.status, made.body["status"], made.body["runtime"]) == (201, "PROVISIONING", {})
    assert made.body["env"] == {"K": "v"}
    place = f"/pods/{made.body['id']}"
    assert call("GET", place).body["name"] == "a"
    assert call.pods("?desiredStatus=EXITED") == ["a"]  # what it does not know it does not look at

    assert call("DELETE", place).status == 204
    assert call("DELETE", place).status == call("GET", place).status == 404
    assert call.pods() == []
    assert [pod.status for pod in fake.pods.values()] == ["TERMINATED"]
    assert fake.running() == []


def test_what_is_left_out_is_none(call: Client) -> None:
    body = request()
    del body["ports"], body["env"]
    made = call("POST", "/pods", body).body
    assert (made["ports"], made["env"], made["mounts"], made["args"]) == ([], {}, {}, "")


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"gpuCount": 1}, 422, "$: additional properties 'gpuCount' not allowed"),
        ({"gpu": {"id": RTX, "count": 0}}, 422, "$.gpu.count: minimum: got 0, want 1"),
        ({"gpu": {"id": RTX, "count": "1"}}, 422, "$.gpu.count: got string, want integer"),
        ({"cloud": "ALL"}, 422, "$.cloud: value must be one of"),
        ({"env": {"A": 1}}, 422, "$.env.A: got integer, want string"),
        ({"mounts": {"persistent": {"size": 9, "path": "/w"}}}, 422, "$.mounts.persistent.size: minimum"),
        ({"gpu": {"id": RTX}}, 400, NO_CAPACITY),
        ({"gpu": {"id": "H100", "count": 1}}, 400, NO_CAPACITY),
        ({"gpu": {"id": RTX, "count": 9}}, 400, NO_CAPACITY),
        ({"gpu": {"id": RTX, "count": 1, "minCudaVersion": "19.0"}}, 400, NO_CAPACITY),
        ({"dataCenterIds": ["OC-AU-1"]}, 400, NO_CAPACITY),
        ({"gpu": {"id": RTX, "count": 1, "minCudaVersion": "12.8", "allowedCudaVersions": ["12.8"]}}, 400, "exclusive"),
        ({"mounts": {"persistent": {"size": 10, "path": "/w"}, "network": [{"volumeId": "v", "path": "/v"}]}}, 400,
         "exclusive"),
        ({"mounts": {"network": [{"volumeId": "v", "path": "/v"}]}}, 404, "resource not found"),
        ({"templateId": "t"}, 404, "resource not found"),
        ({"image": "gone:1"}, 422, "registry"),
        ({"env": {f"N{at}": "" for at in range(51)}}, 400, "50 environment variables"),
    ],
)  # fmt: skip
def test_a_create_that_is_refused(
    fake: FakeRunPod, call: Client, change: dict[str, Any], status: int, words: str
) -> None:
    fake.no_such_images.add("gone:1")
    said = call.create(**change)
    assert said.status == said.body["status"] == status
    assert words in " ".join([said.detail, *said.body.get("errors", [])])
    assert said.headers["content-type"] == "application/problem+json"
    assert fake.pods == {}


def test_something_missing_makes_strangers_of_the_rest(call: Client) -> None:
    said = call("POST", "/network-volumes", {"name": "v", "size": 10, "dataCenterId": "US-KS-2"})
    assert said.body["errors"] == [
        "$: missing property 'dataCenter'",
        "$: additional properties 'name', 'size', 'dataCenterId' not allowed",
    ]


def test_paths_methods_and_agents(call: Client) -> None:
    assert call("GET", "/networkvolumes").status == 404
    assert call("GET", "/pods", version="").status == 404
    not_allowed = call("PUT", "/pods", {})
    assert (not_allowed.status, not_allowed.headers["allow"]) == (405, "GET, POST")
    banned = call("GET", "/pods", agent="Python-urllib/3.11")
    assert (banned.status, banned.body) == (403, "error code: 1010")
    assert banned.headers["content-type"].startswith("text/html")
    right = call("GET", "/pods")
    assert right.headers["x-request-id"]
    assert right.headers["ratelimit"].startswith('"minute";r=')


def test_actions_and_another_port_after_a_stop(fake: FakeRunPod, call: Client) -> None:
    place = f"/pods/{call.create().body['id']}"
    fake.advance(10)
    before = call("GET", place).body
    assert before["status"] == "RUNNING"
    act = f"{place}/action"
    assert call("POST", act, {"action": "start"}).status == 409
    assert "value must be one of" in call("POST", act, {"action": "reset"}).body["errors"][0]
    stopped = call("POST", act, {"action": "stop"}).body
    assert (stopped["status"], stopped["cost"], stopped["runtime"]) == ("EXITED", 0, None)
    assert 0 < fake.per_hour() < 0.05  # its disk

    assert call("POST", act, {"action": "start"}).status == 200
    fake.advance(10)
    after = call("GET", place).body
    assert after["ssh"]["direct"]["port"] != before["ssh"]["direct"]["port"]
    assert call("POST", act, {"action": "restart"}).status == 200
    assert call("POST", act, {"action": "terminate"}).status == 204
