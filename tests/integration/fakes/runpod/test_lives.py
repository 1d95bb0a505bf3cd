"""How pods come up, do not, and end of themselves; what their logs tell."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.conftest import HANG_S
from tests.fakes.runpod import FakeRunPod, Fault, Life, faults
from tests.integration.fakes.runpod.client import RTX, Client


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
