"""The fake of RunPod behaves as the service is known to: rules, quirks, lives of pods, money, faults, keys."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.runpod import FakeRunPod, Fault, Life, Request, faults, spec
from tests.fakes.runpod.problems import NO_CAPACITY
from tests.fakes.runpod.requests import Answer

RTX, H100 = "NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3"
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"


@dataclasses.dataclass
class Said:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def detail(self) -> str:
        return str(self.body["detail"])


class Client:
    """One request at a time, with one key."""

    def __init__(self, fake: FakeRunPod, key: str = "") -> None:
        self.fake = fake
        self.key = key or fake.account_key

    def __call__(self, method: str, path: str, body: Any = None, agent: str = "test/1", version: str = "/v2") -> Said:
        connection = http.client.HTTPConnection(self.fake.base_url.removeprefix("http://"), timeout=HANG_S)
        headers = {"User-Agent": agent, "Authorization": f"Bearer {self.key}"}
        try:
            connection.request(method, version + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        kept = {name.lower(): value for name, value in answer.getheaders()}
        is_json = "json" in kept.get("content-type", "")
        return Said(answer.status, json.loads(text) if is_json else text.decode(), kept)

    def create(self, **more: Any) -> Said:
        return self("POST", "/pods", request(**more))

    def cluster(self, **more: Any) -> Said:
        compute = {"gpuTypeId": H100, "gpuCountPerPod": 1, "podCount": 2}
        body = {"name": "c", "type": "TRAINING", "compute": compute, "image": IMAGE, "ports": ["22/tcp"], **more}
        return self("POST", "/clusters", body)

    def pods(self, query: str = "") -> list[str]:
        return [one["name"] for one in self("GET", f"/pods{query}").body["pods"]]


def request(**more: Any) -> dict[str, Any]:
    gpu = {"id": RTX, "count": 1, "minCudaVersion": "12.8"}
    return {"name": "a", "image": IMAGE, "gpu": gpu, "ports": ["22/tcp"], "env": {"K": "v"}, **more}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRunPod]:
    """Time stands still but for `advance`."""
    with FakeRunPod(tmp_path / "runpod", frozen=True) as one:
        yield one


@pytest.fixture
def call(fake: FakeRunPod) -> Client:
    return Client(fake)


# ---- requests


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


# ---- keys


def test_what_a_key_may(fake: FakeRunPod, call: Client) -> None:
    mine, other = call.create().body["id"], call.create(name="b").body["id"]
    assert Client(fake, "rpa_wrong")("GET", "/pods").status == 401
    assert Client(fake, fake.other_key).pods() == []
    assert Client(fake, fake.other_key)("GET", f"/pods/{mine}").status == 404

    reader = Client(fake, fake.read_only_key)
    assert len(reader.pods()) == 2
    assert reader("DELETE", f"/pods/{mine}").status == reader.create().status == 403

    inside = Client(fake, fake.pods[mine].key)
    assert inside("GET", f"/pods/{mine}").status == 200
    refused = [
        ("GET", "/pods", None), ("GET", f"/pods/{other}", None), ("DELETE", f"/pods/{other}", None),
        ("PATCH", f"/pods/{mine}", {"name": "x"}), ("POST", "/pods", request()), ("GET", "/account/ssh-keys", None),
    ]  # fmt: skip
    assert [inside(*one).status for one in refused] == [403] * len(refused)
    assert inside("POST", "/graphql", {"query": "{ myself { id } }"}, version="").status == 401
    assert inside("DELETE", f"/pods/{mine}").status == 204
    assert inside("DELETE", f"/pods/{mine}").status == 404
    assert [pod.id for pod in fake.running()] == [other]


def test_account_keys_go_to_pods_that_ask(fake: FakeRunPod, call: Client) -> None:
    call("PUT", "/account/ssh-keys", {"keys": ["ssh-ed25519 AAAA me"]})
    call.create(startSsh=True)
    call.create(startSsh=True, env={"PUBLIC_KEY": "ssh-ed25519 BBBB"})
    call.create()
    assert [pod.env.get("PUBLIC_KEY") for pod in fake.pods.values()] == [
        "ssh-ed25519 AAAA me", "ssh-ed25519 BBBB", None
    ]  # fmt: skip


def test_a_quota(fake: FakeRunPod, call: Client) -> None:
    fake.quota = 2
    assert [call("GET", "/pods").status for _ in range(3)] == [200, 200, 429]
    assert 1 <= int(call("GET", "/pods").headers["retry-after"]) <= 60


# ---- lives


def test_how_a_pod_comes_up(fake: FakeRunPod, call: Client) -> None:
    fake.life = Life(assign_s=10, starting=True, pull_s=60, map_s=5)
    place = f"/pods/{call.create().body['id']}"

    def now() -> tuple[Any, ...]:
        pod = call("GET", place).body
        runtime = pod["runtime"] and bool(pod["runtime"]["ports"])
        return pod["status"], runtime, bool(pod["ssh"]["proxy"]), bool(pod["ssh"]["direct"])

    seen = [now()]
    for seconds in (5, 5, 60, 5):
        fake.advance(seconds)
        seen.append(now())
    assert seen == [
        ("PROVISIONING", {}, False, False),
        ("STARTING", None, False, False),
        ("RUNNING", None, True, False),
        ("RUNNING", False, True, False),
        ("RUNNING", True, True, True),
    ]


def test_ports_are_told_when_they_are_mapped(fake: FakeRunPod, call: Client) -> None:
    place = f"/pods/{call.create(ports=['22/tcp', '8888/http']).body['id']}"
    fake.advance(10)
    pod = call("GET", place).body
    direct = pod["ssh"]["direct"]
    ssh, http = pod["runtime"]["ports"]
    assert (ssh["private"], ssh["public"], ssh["ip"]) == (22, direct["port"], direct["host"])
    assert http["type"] == "http"
    no_ssh = f"/pods/{call.create(ports=[]).body['id']}"
    fake.advance(10)
    assert call("GET", no_ssh).body["ssh"]["direct"] is None


@pytest.mark.parametrize(
    ("life", "words"),
    [(faults.PULL_ERROR, "manifest unknown"), (faults.CUDA_MISMATCH, "unsatisfied condition: cuda>=12.8")],
)
def test_a_pod_that_never_comes_up_says_why(fake: FakeRunPod, call: Client, life: Life, words: str) -> None:
    fake.play(Fault("POST /pods", life=life))
    made = call.create().body["id"]
    fake.advance(3600)
    pod = call("GET", f"/pods/{made}").body
    assert (pod["status"], pod["runtime"]) == ("RUNNING", None)
    assert fake.billed() > 0.69
    assert words in " ".join(log_lines(fake, made, "source=system", 3)[-1])


@pytest.mark.parametrize(
    ("life", "runtime", "host"),
    [
        (faults.SLOW, False, None),
        (faults.UNMAPPED, True, None),
        (faults.PRIVATE, True, "100.65.0.119"),
        (Life(address="127.0.0.1", port=2222), True, "127.0.0.1"),
    ],
)
def test_a_pod_that_cannot_be_reached_or_elsewhere(
    fake: FakeRunPod, call: Client, life: Life, runtime: bool, host: str | None
) -> None:
    fake.life = life
    place = f"/pods/{call.create().body['id']}"
    fake.advance(300)
    pod = call("GET", place).body
    assert (pod["status"], bool(pod["runtime"])) == ("RUNNING", runtime)
    assert (pod["ssh"]["direct"] or {}).get("host") == host
    assert host != "127.0.0.1" or pod["ssh"]["direct"]["port"] == 2222


def test_who_asks_for_no_driver_gets_an_old_one(fake: FakeRunPod, call: Client) -> None:
    made = call.create(gpu={"id": RTX, "count": 1}).body
    assert made["cudaVersion"] == "12.4"
    fake.advance(60)
    assert call("GET", f"/pods/{made['id']}").body["runtime"] is None


def log_lines(fake: FakeRunPod, pod: str, query: str, count: int, header: tuple[str, str] = ("X", "")) -> list[Any]:
    """So many events of the stream: (id, line)."""
    connection = http.client.HTTPConnection(fake.base_url.removeprefix("http://"), timeout=HANG_S)
    headers = {"User-Agent": "test", "Authorization": f"Bearer {fake.account_key}", header[0]: header[1]}
    connection.request("GET", f"/v2/pods/{pod}/logs?{query}", headers=headers)
    answer = connection.getresponse()
    assert answer.getheader("content-type") == "text/event-stream"
    events: list[Any] = []
    try:
        while len(events) < count:
            line = answer.readline().decode().rstrip()
            if line.startswith("id: "):
                data = json.loads(answer.readline().decode().removeprefix("data: "))
                events.append((line.removeprefix("id: "), data["line"]))
    finally:
        connection.close()
    return events


def test_the_log_goes_on(fake: FakeRunPod, call: Client) -> None:
    made = call.create().body["id"]
    pod = fake.pods[made]
    for at in range(5):
        pod.say(fake.clock.now() + at, f"line {at}", "container")
    assert [line for _, line in log_lines(fake, pod.id, "source=container&tail=2", 2)] == ["line 3", "line 4"]
    (third, _) = log_lines(fake, pod.id, "source=container", 4)[3]
    assert [line for _, line in log_lines(fake, pod.id, "", 2, ("Last-Event-ID", third))] == ["line 3", "line 4"]


@pytest.mark.parametrize(("how", "status"), [("EXITED", 200), ("ERROR", 200), ("TERMINATED", 404), ("GONE", 404)])
def test_a_pod_that_ends_of_itself(fake: FakeRunPod, call: Client, how: str, status: int) -> None:
    fake.play(Fault("POST /pods", life=Life(end=how, end_s=100)))
    place = f"/pods/{call.create().body['id']}"
    fake.advance(99)
    assert call("GET", place).body["status"] == "RUNNING"
    fake.advance(2)
    said = call("GET", place)
    assert said.status == status
    assert status == 404 or said.body["status"] == how


def test_an_ended_pod_may_be_told_for_a_while(fake: FakeRunPod, call: Client) -> None:
    fake.life = Life(linger_s=2)
    place = f"/pods/{call.create().body['id']}"
    call("DELETE", place)
    assert (call("GET", place).body["status"], call("DELETE", place).status) == ("TERMINATED", 404)
    fake.advance(3)
    assert call("GET", place).status == 404


# ---- money


def test_a_pod_bills_from_its_create_to_its_end(fake: FakeRunPod, call: Client) -> None:
    made = call.create(disk=73).body
    assert made["cost"] == 0.69
    fake.advance(3600)
    assert fake.billed() == pytest.approx(0.69 + 0.01)
    assert fake.balance == pytest.approx(100 - 0.70)
    call("DELETE", f"/pods/{made['id']}")
    fake.advance(3600)
    assert fake.billed() == pytest.approx(0.70)
    assert fake.per_hour() == 0


def test_no_money_no_pods(fake: FakeRunPod, call: Client) -> None:
    volume = call("POST", "/network-volumes", {"name": "v", "size": 10, "dataCenter": "US-KS-2"}).body["id"]
    call.create(name="kept", mounts={"network": [{"volumeId": volume, "path": "/workspace"}]})
    call.create(name="gone")
    fake.balance = 0.69
    fake.advance(60 * 60)
    assert {pod.name: pod.status for pod in fake.pods.values()} == {"kept": "EXITED", "gone": "TERMINATED"}
    assert fake.billed() == pytest.approx(0.69, abs=0.01)
    assert call.create().status == 402


def test_the_spend_limit(fake: FakeRunPod, call: Client) -> None:
    fake.balance = 1000
    assert call.create(gpu={"id": H100, "count": 8}).status == 201
    fake.spend_limit = 30
    assert call.create(gpu={"id": H100, "count": 8}).status == 402


def test_money_is_told_by_graphql_alone(fake: FakeRunPod, call: Client) -> None:
    call.create()
    query = "query myself { myself { id clientBalance currentSpendPerHr spendLimit pods { name } } }"
    told = call("POST", "/graphql", {"query": query}, version="").body["data"]["myself"]
    assert told["id"] == fake.account_id
    assert told["clientBalance"] == 100
    assert told["currentSpendPerHr"] == pytest.approx(fake.per_hour())
    assert (told["spendLimit"], told["pods"]) == (80, [{"name": "a"}])
    wrong = call("POST", "/graphql", {"query": "{ myself { balance } }"}, version="")
    assert wrong.body["errors"][0]["message"] == 'Cannot query field "balance" on type "User".'
    assert Client(fake, "no")("POST", "/graphql", {"query": query}, version="").status == 401


def test_stock_runs_out_and_comes_back(fake: FakeRunPod, call: Client) -> None:
    fake.stock = {RTX: {"US-KS-2": 2, "EU-RO-1": 1}}
    first = call.create(gpu={"id": RTX, "count": 2, "minCudaVersion": "12.8"})
    assert (first.status, first.body["dataCenterId"]) == (201, "US-KS-2")
    assert call.create(dataCenterIds=["US-KS-2"]).status == 400
    assert call.create().body["dataCenterId"] == "EU-RO-1"
    assert call.create().status == 400
    call("DELETE", f"/pods/{first.body['id']}")
    assert call.create().body["dataCenterId"] == "US-KS-2"


# ---- catalog and volumes


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


# ---- clusters


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


# ---- faults


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (faults.capacity(), 400, NO_CAPACITY),
        (faults.broke(), 402, "insufficient balance"),
        (faults.denied(), 403, "access denied"),
        (faults.too_many(), 429, "rate limit"),
        (Fault("POST /pods", status=503), 503, "Service Unavailable"),
    ],
)
def test_a_create_that_goes_wrong_makes_nothing(
    fake: FakeRunPod, call: Client, fault: Fault, status: int, words: str
) -> None:
    fake.play(fault)
    said = call.create()
    assert said.status == status
    assert words in said.detail
    assert fake.pods == {}


def test_faults_count_and_choose(fake: FakeRunPod, call: Client) -> None:
    fake.play(Fault("POST /pods", nth=2, times=2, status=500), faults.capacity(times=None, gpus=(H100,)))
    assert [call.create().status for _ in range(4)] == [201, 500, 500, 201]
    assert call.create(gpu={"id": H100, "count": 1}).status == 400
    fake.play(faults.capacity(times=None, data_centers=("US-KS-2",)))
    assert call.create(dataCenterIds=["US-KS-2"]).status == 400
    assert call.create(dataCenterIds=["US-KS-2", "EU-RO-1"]).status == 201
    fake.play(faults.BANNED, faults.too_many("GET /pods/*", retry_after=None))
    assert call("GET", "/pods").body == "error code: 1010"
    assert "retry-after" not in call("GET", "/pods/x").headers


@pytest.mark.parametrize("status", [500, 0])
def test_a_create_whose_answer_is_lost(fake: FakeRunPod, call: Client, status: int) -> None:
    fake.play(faults.lost_create(status))
    if status:
        assert call.create().status == 500
    else:
        with pytest.raises(http.client.RemoteDisconnected):
            call.create()
    assert call.pods() == ["a"]


def test_a_create_that_hangs(fake: FakeRunPod) -> None:
    fake.play(Fault("POST /pods", hang_s=3600, takes_effect=True))
    body = json.dumps(request())
    connection = http.client.HTTPConnection(fake.base_url.removeprefix("http://"), timeout=1)
    connection.request("POST", "/v2/pods", body, {"Authorization": f"Bearer {fake.account_key}", "User-Agent": "t"})
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert len(fake.running()) == 1


def test_a_delete_that_lies_and_one_that_fails(fake: FakeRunPod, call: Client) -> None:
    place = f"/pods/{call.create().body['id']}"
    fake.play(faults.deaf_delete(), Fault("DELETE /pods/*", nth=2, status=500))
    assert [call("DELETE", place).status for _ in range(2)] == [204, 500]
    assert len(fake.running()) == 1
    assert call("DELETE", place).status == 204


def test_a_list_that_lags(fake: FakeRunPod, call: Client) -> None:
    fake.play(Fault("POST /pods", life=Life(listed_s=30)))
    made = call.create().body["id"]
    assert call.pods() == []
    assert call("GET", f"/pods/{made}").status == 200
    fake.advance(31)
    assert call.pods() == ["a"]


# ---- who asks

ASKING = """
    import http.client, sys
    connection = http.client.HTTPConnection(sys.argv[1])
    connection.request("POST", "/v2/pods", sys.stdin.read(), {"Authorization": "Bearer " + sys.argv[2]})
    print(connection.getresponse().status)
"""


@pytest.mark.parametrize("moment", ["before", "after", "sent"])
def test_the_very_process_that_asked_can_be_killed(fake: FakeRunPod, moment: str) -> None:
    seen: list[int] = []

    def kill(request: Request, when: str) -> None:
        if when == moment:
            seen.append(len(fake.service.course.pods))
            os.kill(request.client_pid, signal.SIGKILL)

    fake.on_answer(kill)
    argv = [sys.executable, "-c", textwrap.dedent(ASKING), fake.base_url.removeprefix("http://"), fake.account_key]
    done = subprocess.run(argv, input=json.dumps(request()), text=True, capture_output=True, timeout=HANG_S)
    assert done.returncode == -signal.SIGKILL or moment == "sent"  # there its answer may have been quicker
    until(lambda: fake.running(), "the service does not care")
    assert seen == [0 if moment == "before" else 1]


def test_an_answer_can_be_lost_or_a_request_dropped(fake: FakeRunPod, call: Client) -> None:
    lose = [True]

    def interfere(request: Request, moment: str) -> None:
        if moment == "before":
            request.lose() if lose else request.drop()

    fake.on_answer(interfere)
    for _ in range(2):
        with pytest.raises(http.client.RemoteDisconnected):
            call.create()
        assert len(fake.running()) == 1
        lose.clear()


def test_requests_are_kept(fake: FakeRunPod, call: Client) -> None:
    call.create()
    call("GET", "/pods?includeClusterPods=true")
    first, second = fake.requests
    assert (str(first), first.body["name"], first.answer["name"]) == ("POST /pods 201", "a", "a")
    assert second.query == {"includeClusterPods": "true"}
    assert fake.asked("POST", "/pods") == [first]
    assert fake.env["RUNPOD_API_URL"] == fake.url


def test_a_command_with_the_fake_for_its_service() -> None:
    asking = "exec(__import__('sys').argv[1])"
    body = textwrap.dedent("""
        import http.client, json, os
        place = os.environ["RUNPOD_API_URL"].split("/")[2]
        connection = http.client.HTTPConnection(place)
        made = {"name": "left", "image": "x", "gpu": {"id": "NVIDIA L4", "count": 1, "minCudaVersion": "12.8"}}
        headers = {"Authorization": "Bearer " + os.environ["RUNPOD_API_KEY"]}
        connection.request("POST", "/v2/pods", json.dumps(made), headers)
        print(connection.getresponse().status)
    """)
    argv = [sys.executable, "-m", "tests.fakes.runpod", sys.executable, "-c", asking, body]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, cwd=Path(__file__).parents[2])
    assert done.stdout == "201\n", done.stderr
    assert "still rented: left" in done.stderr


# ---- the judge


def test_a_fake_that_drifts_fails(tmp_path: Path) -> None:
    """Where the vendor's description of the API is at hand; it is not ours to bring along."""
    fake = FakeRunPod(tmp_path, frozen=True)
    judge = spec.found()
    if judge is None:
        fake.judge(Request("GET", "/pods/x", {}, {}, None), Answer(200, {"id": "x"}))
        return fake.close()
    asked = Request("GET", "/pods/x", {}, {}, None)
    wrong = judge.mismatches(asked, Answer(200, {"id": "x"}))
    assert any("'status' is a required property" in one for one in wrong)
    taken = judge.mismatches(Request("POST", "/network-volumes", {}, {}, {"name": "v"}), Answer(201, {}))
    assert any("took a body that is wrong" in one for one in taken)
    fake.judge(asked, Answer(200, {"id": "x"}))
    with pytest.raises(AssertionError, match="not as the service"):
        fake.close()
    return None
