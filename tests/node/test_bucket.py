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
from typing import Any

import pytest

from gpuops import bucket as home
from gpuops.output import Output
from gpuops.signals import Signals
from gpuops.world import World
from tests.fakes.bucket import FakeBucket
from tests.files import change
from tests.node.conftest import RealNode, alive, until
from tests.node.test_notices import Metadata

MAKES = "import os; [open(f'{n}.pt', 'wb').write(os.urandom(9 << 20)) for n in range(3)]"


@pytest.fixture
def fake() -> Iterator[FakeBucket]:
    with FakeBucket() as one:
        yield one


def start(node: RealNode, fake: FakeBucket, tmp_path: Path, source: str, end: bool = False) -> None:
    world = World(tmp_path, "o", tmp_path, fake.env, Output(), Signals())
    granted = home.grant(world, {"bucket": fake.name, "prefix": "", "region": "us-east-1"}, "r-1", 1, None)
    spec = node.spec("r-1", [sys.executable, "-c", source], sink={"bucket": granted.place, "end": end}, hold_s=600)
    client = node.client()
    client.call("start", spec=spec, secrets={}, gang_secret="", urls=granted.urls[0])
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
