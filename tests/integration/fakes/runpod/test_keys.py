"""What a key may, where keys go, and how often one may ask."""

from __future__ import annotations

from typing import Any

from tests.fakes.runpod import FakeRunPod
from tests.integration.fakes.runpod.client import Client, request


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
    assert inside("DELETE", f"/pods/{mine}").status == 404, "as for what is not there"
    assert mine in [pod.id for pod in fake.running()]
    assert inside("POST", f"/pods/{mine}/action", {"action": "terminate"}).status == 204
    assert inside("POST", f"/pods/{mine}/action", {"action": "terminate"}).status == 404
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


def test_a_pod_ends_itself_by_the_older_interface(fake: FakeRunPod, call: Client) -> None:
    mine, other = call.create().body["id"], call.create(name="b").body["id"]
    inside = Client(fake, fake.pods[mine].key)

    def terminate(pod: str) -> dict[str, Any]:
        query = f'mutation {{ podTerminate(input: {{podId: "{pod}"}}) }}'
        return dict(inside("POST", "/graphql", {"query": query}, version="").body)

    assert "errors" in terminate(other)
    assert terminate(mine) == {"data": {"podTerminate": None}}
    assert terminate(mine)["errors"][0]["message"] == "pod not found to terminate"
    assert [pod.id for pod in fake.running()] == [other]
