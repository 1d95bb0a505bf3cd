"""Results sent to a bucket by a real node, whoever dies on the way."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.bucket import DotenvPolicy
from gpuops.core.context import Context
from gpuops.core.models import Lease
from gpuops.core.polling import Clock
from gpuops.core.run_models import RunRequest
from gpuops.core.signals import Signals
from gpuops.core.sink import BucketSink
from gpuops.guard.services import SERVICES
from gpuops.runs.results.url_renewal import UrlRenewal
from gpuops.sync import bucket as home
from tests.fakes.bucket import KEY, SECRET, Asked, FakeBucket
from tests.files import change
from tests.integration.agent.conftest import RealNode, alive, until
from tests.integration.agent.test_node_preemption import Metadata


class At(Clock):
    """Real time, but for what a calendar shows."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


MAKES = "import os; [open(f'{n}.pt', 'wb').write(os.urandom(9 << 20)) for n in range(3)]"


@pytest.fixture
def fake() -> Iterator[FakeBucket]:
    with FakeBucket() as one:
        yield one


def start(node: RealNode, fake: FakeBucket, tmp_path: Path, source: str, end: bool = False) -> None:
    world = Context(tmp_path, "o", tmp_path, fake.env, Output(), Signals(), SERVICES)
    granted = home.create_upload_grant(world, BucketSink(fake.name, region="us-east-1"), "r-1", 1, None)
    spec = node.spec("r-1", [sys.executable, "-c", source], sink={"bucket": granted.place, "end": end}, hold_s=600)
    client = node.client()
    client.call("start", spec=spec, secrets={}, gang_secret="", urls=granted.urls[0].document())
    client.close()


def state(node: RealNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.file("r-1", "sink.json") or b"{}")
    return found


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def test_an_agent_that_is_killed_has_a_successor_who_sends_the_rest(
    node: RealNode, fake: FakeBucket, tmp_path: Path
) -> None:
    fake.play("PUT", "partNumber=3&", "500", times=10_000)
    start(node, fake, tmp_path, MAKES)
    until(lambda: set(json.loads(node.file("r-1", "parts.json") or b"{}")) >= {"1", "2"}, "two parts are there")
    killed = node.process("agent")
    os.kill(killed, signal.SIGKILL)
    until(lambda: not alive(killed), "it is gone")
    fake.faults.clear()
    until(lambda: state(node).get("state") == "safe", "its successor has sent the rest")
    inside = members(fake.content("r-1/node0.tar"))
    for number in range(3):
        assert inside[f"out/{number}.pt"] == (node.folder / f"project/{number}.pt").read_bytes()
    sent = [one.query["partNumber"] for one in fake.of_nodes("PUT", "partNumber") if one.status == 200]
    assert sorted(sent).count("1") == 1, "what was there is not sent again"
    until(lambda: "parts" not in json.loads(node.file("r-1", "urls.json")), "what is used up goes")


def test_a_machine_that_is_taken_back_sends_what_it_has_the_time_for(
    node: RealNode, fake: FakeBucket, tmp_path: Path
) -> None:
    fake.play("PUT", "partNumber=3&", "500", times=10_000)
    start(node, fake, tmp_path, MAKES + "; import time; print('made', flush=True); time.sleep(600)")
    until(lambda: node.file("r-1", "launcher.out"), "it has made something")
    killed = node.process("agent")
    result = node.folder / "runs/r-1/result.json"
    os.kill(killed, signal.SIGSTOP)  # the successor is to find a run that a notice has ended
    reason = {"kind": "reclaim", "by": "AWS", "say": "AWS takes node0 back", "at": time.time() + 25.0, "node": 0}
    document = {"run": "r-1", "node": 0, "outcome": "stopped", "reason": reason, "ranks": []}
    result.write_text(json.dumps(document))
    os.kill(killed, signal.SIGKILL)
    until(lambda: state(node).get("state") in ("failed", "safe"), "the time is over")
    assert re.fullmatch(r"only \d files could be sent before this machine is taken, and \d not", state(node)["why"])
    inside = members(fake.content("r-1/node0.tar"))
    assert json.loads(inside["result.json"])["reason"]["kind"] == "reclaim"
    assert inside["out/2.pt"] == (node.folder / "project/2.pt").read_bytes(), "the newest first"
    assert json.loads(inside["safe.json"])["missing"] > 0


def on_its_way(node: RealNode, fake: FakeBucket, tmp_path: Path) -> None:
    """The run has ended well, and a part of what it made does not come through."""
    fake.play("PUT", "partNumber=3&", "500", times=10_000)
    start(node, fake, tmp_path, MAKES)
    until(lambda: set(json.loads(node.file("r-1", "parts.json") or b"{}")) >= {"1", "2"}, "two parts are there")


def closed_in_time(node: RealNode, fake: FakeBucket) -> None:
    until(lambda: state(node).get("state") in ("failed", "safe"), "the time is over")
    assert re.fullmatch(r"only \d files could be sent before this machine is taken, and \d not", state(node)["why"])
    inside = members(fake.content("r-1/node0.tar"))
    assert json.loads(inside["result.json"])["outcome"] == "done"
    assert [name for name in inside if name.startswith("out/")], "and some of what it made"
    assert json.loads(inside["safe.json"])["missing"] > 0


@pytest.mark.parametrize("successor", [False, True])
def test_a_notice_while_results_are_sent_closes_what_came(
    node: RealNode, fake: FakeBucket, tmp_path: Path, successor: bool
) -> None:
    metadata = Metadata(tmp_path / "imds.json")
    change(node.folder / "node.json", notices=metadata.settings)
    try:
        on_its_way(node, fake, tmp_path)
        if successor:
            killed = node.process("agent")
            os.kill(killed, signal.SIGKILL)
            until(lambda: not alive(killed), "it is gone")
        metadata.interrupt(20.0)
        closed_in_time(node, fake)
    finally:
        metadata.service.shutdown()
        metadata.service.server_close()


@pytest.mark.parametrize("successor", [False, True])
def test_an_end_of_the_node_while_results_are_sent_closes_what_came(
    node: RealNode, fake: FakeBucket, tmp_path: Path, successor: bool
) -> None:
    on_its_way(node, fake, tmp_path)
    if successor:
        killed = node.process("agent")
        os.kill(killed, signal.SIGKILL)
        until(lambda: not alive(killed), "it is gone")
        node.process("agent")
    asked = {"kind": "lease", "say": "its lease ended", "how": "graceful", "farewell_s": 0.0, "within_s": 20.0}
    assert "ok" in node.says("leave", **asked)
    assert state(node).get("state") == "failed", "it was waited for"
    closed_in_time(node, fake)


def test_addresses_are_renewed_before_the_session_that_signed_them_ends(
    node: RealNode, fake: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with SSO, where botocore finds newer keys by itself: also an upload that is on goes on with the newer ones."""
    brief, began = tmp_path / "brief.json", float(int(time.time()))
    (tmp_path / "config").write_text(f"[profile sso]\ncredential_process = cat {brief}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)

    def session(ends: float) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends))
        brief.write_text(json.dumps({"Version": 1, "AccessKeyId": KEY, "SecretAccessKey": SECRET,
                                     "SessionToken": "t", "Expiration": at}))  # fmt: skip

    def expires(one: Asked) -> float:
        return int(one.query["X-Amz-Expires"])

    session(began + 3600)
    env = {"AWS_ENDPOINT_URL": fake.url, "AWS_PROFILE": "sso"}
    world = Context(tmp_path, "o", tmp_path, env, Output(), Signals(), SERVICES)
    sink = BucketSink(fake.name, profile="sso", dotenv=DotenvPolicy.IGNORED, region="us-east-1")
    granted = home.create_upload_grant(world, sink, "r-1", 1, None)
    assert granted.until == began + 3600
    cluster = world.ledger.intend(provider="local", name="lab", folder=tmp_path, ephemeral=False, token="t", request={},
                                  boot_deadline=began, lease=Lease(), owner_process=world.me, now=began)  # fmt: skip
    facts = {"bucket": {"place": granted.place, "until": granted.until}, "uploads": granted.uploads}
    request = RunRequest(kind="command", mode="run", nodes=1, gpus=None, sink=sink).document()
    row = world.ledger.add_run(stem="r", cluster=cluster.id, folder=tmp_path, tree="project", request=request,
                               facts=facts, owner_process=world.me, now=began)  # fmt: skip
    fake.play("PUT", "partNumber=3&", "500", times=10_000)
    spec = node.spec("r-1", [sys.executable, "-c", MAKES], sink={"bucket": granted.place, "end": False}, hold_s=600)
    client = node.client()
    client.call("start", spec=spec, secrets={}, gang_secret="", urls=granted.urls[0].document())
    until(lambda: set(json.loads(node.file("r-1", "parts.json") or b"{}")) >= {"1", "2"}, "two parts are there")
    live: Any = SimpleNamespace(row=cluster, clients=[client])
    world.clock = At(began + 60)
    early = UrlRenewal(world, live, row)
    early.poll()
    assert early._thread is None, "there is time yet"
    session(began + 7200)
    world.clock = At(began + 3000)
    renewal = UrlRenewal(world, live, row)

    def renewed() -> bool:
        renewal.poll()
        return bool(world.ledger.run(row.id).facts["bucket"]["until"] == began + 7200)

    until(renewed, "newer addresses are on the node")
    until(
        lambda: any(expires(one) > 3600 for one in fake.of_nodes("PUT", "partNumber")), "the upload goes on with them"
    )
    fake.faults.clear()
    until(lambda: state(node).get("state") == "safe", "all of it is there")
    until(lambda: "parts" not in json.loads(node.file("r-1", "urls.json")), "what is used up goes")
    client.call("urls", run="r-1", urls=granted.urls[0].document())
    assert "parts" not in json.loads(node.file("r-1", "urls.json")), "and does not come back"
    client.close()
