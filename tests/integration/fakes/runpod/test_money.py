"""What pods cost, and what happens when nothing is left."""

from __future__ import annotations

import pytest

from tests.fakes.runpod import FakeRunPod
from tests.integration.fakes.runpod.client import H100, Client


def test_a_pod_bills_from_its_create_to_its_end(fake: FakeRunPod, call: Client) -> None:
    made = call.create(disk=73).body
    assert made["cost"] == pytest.approx(0.70), "its disk is in it"
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
