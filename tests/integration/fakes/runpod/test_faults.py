"""What goes wrong with a request."""

from __future__ import annotations

import http.client
import json

import pytest

from tests.conftest import until
from tests.fakes.runpod import FakeRunPod, Fault, Life, faults
from tests.fakes.runpod.problems import NO_CAPACITY
from tests.integration.fakes.runpod.client import H100, Client, request


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
    until(lambda: len(fake.running()) == 1, "the pod exists all the same")


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
