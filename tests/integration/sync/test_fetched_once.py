"""Data at an address come into a cluster once: three nodes, by real processes and sockets, and a server that counts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.data_address import WebData
from gpuops.core.errors import MalformedAnswer, NodeRefused
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES
from gpuops.sync import fetch_data, fetched_once
from gpuops.sync.data_sources import Source, SourceFile, find_source
from gpuops.transport.program_schemas import FetchEnd
from tests.fakes.data_server import DataServer, Play, tag_of
from tests.integration.sync.chain_scene import Member, quick

BIG = bytes(range(256)) * 40_000
"""10 MB."""
TREE = "dataabc"


class Cluster:
    """Three nodes on machines of their own."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        out = Output()
        out.say = self.said.append  # type: ignore[method-assign]
        self.ctx = Context(folder, "o", folder, {}, out, Signals(), SERVICES)
        self.nodes = [Member(folder / f"host{number}" / "c" / f"n{number}", f"node{number}") for number in range(3)]

    def fetch(self, source: Source, *, overwrite: bool = False, region: str = "") -> list[FetchEnd]:
        session: Any = SimpleNamespace(clients=self.nodes, reconnect=lambda _: None)
        _, ends = fetch_data.fetch_to(
            self.ctx, session, [0, 1, 2], TREE, lambda: source, overwrite=overwrite, region=region
        )
        for node in self.nodes:
            assert not list((Path(node.node.tree(TREE)).parent / "incoming").iterdir()), "nothing is left beside"
        return list(ends)

    def file(self, number: int, path: str) -> Path:
        return Path(self.nodes[number].node.tree(TREE)) / path

    def has(self, path: str, data: bytes) -> bool:
        return all(self.file(number, path).read_bytes() == data for number in range(3))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch_data, "RECONNECT_PAUSE_S", 0.1)
    quick(monkeypatch)
    return Cluster(tmp_path)


@pytest.fixture
def server() -> Iterator[DataServer]:
    with DataServer({"/set/big.bin": BIG, "/a": b"a" * 70_000, "/deep/b": b"", "/deep/c": b"ccc"}) as one:
        yield one


def web(server: DataServer, sha256: str = "") -> Source:
    return find_source(cast("Context", None), WebData(server.url + "/set/big.bin", "big.bin", sha256))


def listed(server: DataServer, *, has_md5_tags: bool = True) -> Source:
    """As a bucket would be: with sizes and tags of a listing."""
    names = ["a", "deep/b", "deep/c", "set/big.bin"]
    files = [SourceFile(f"set/{name}", len(server.files[f"/{name}"]), tag_of(server.files[f"/{name}"]), key=name)
             for name in names]  # fmt: skip
    return Source("set", "s3://b/set", files, lambda file: (f"{server.url}/{file.key}", {}), region="eu-central-1",
                  has_md5_tags=lambda: has_md5_tags)  # fmt: skip


def got(server: DataServer) -> list[str]:
    """The paths of which data were sent."""
    return sorted(one.path for one in server.heard if one.status in (200, 206))


def test_a_bucket_is_read_once(cluster: Cluster, server: DataServer) -> None:
    source = listed(server)
    assert [end.fetched for end in cluster.fetch(source)] == [4, 0, 0]
    assert got(server) == ["/a", "/deep/b", "/deep/c", "/set/big.bin"]
    assert all(cluster.has(f"set{path}", data) for path, data in server.files.items())
    assert not cluster.said
    assert [end.fetched for end in cluster.fetch(source)] == [0, 0, 0]
    assert len(server.heard) == 4, "nobody asks the source again"
    assert [node.asked.count("relay") for node in cluster.nodes] == [0, 1, 1], "and nothing moves"


def test_a_web_server_is_asked_by_one_node(cluster: Cluster, server: DataServer) -> None:
    assert [end.fetched for end in cluster.fetch(web(server))] == [1, 0, 0]
    assert cluster.has("big.bin", BIG)
    cluster.fetch(web(server))
    assert [(one.path, one.status) for one in server.heard] == [("/set/big.bin", 200), ("/set/big.bin", 304)]
    server.files["/set/big.bin"] = BIG[::-1]
    cluster.fetch(web(server))
    assert cluster.has("big.bin", BIG[::-1])
    assert [one.status for one in server.heard[2:]] == [200]
    assert not cluster.said


@pytest.mark.parametrize("modified", ["", "Thu, 01 Jan 2026 00:00:00 GMT"])
def test_a_server_that_tells_no_tag_is_read_once_as_well(cluster: Cluster, server: DataServer, modified: str) -> None:
    server.has_tags, server.modified = False, modified
    cluster.fetch(web(server))
    assert cluster.has("big.bin", BIG)
    assert got(server) == ["/set/big.bin"]


def test_a_checksum_is_compared_on_every_node(cluster: Cluster, server: DataServer) -> None:
    source = web(server, hashlib.sha256(BIG).hexdigest())
    cluster.fetch(source)
    cluster.fetch(source)
    assert cluster.has("big.bin", BIG)
    assert len(server.heard) == 1


def test_a_node_gets_what_it_lacks_and_keeps_the_rest(cluster: Cluster, server: DataServer) -> None:
    cluster.fetch(listed(server))
    inode = cluster.file(2, "set/set/big.bin").stat().st_ino
    cluster.file(2, "set/a").unlink()
    server.heard.clear()
    cluster.fetch(listed(server))
    assert cluster.file(2, "set/a").read_bytes() == server.files["/a"]
    assert cluster.file(2, "set/set/big.bin").stat().st_ino == inode
    assert not server.heard


def test_what_was_changed_on_a_node_stays(cluster: Cluster, server: DataServer) -> None:
    cluster.fetch(listed(server))
    theirs = cluster.file(1, "set/a")
    theirs.write_text("by hand")
    with pytest.raises(NodeRefused, match="node1: 'set/a' was changed on this node"):
        cluster.fetch(listed(server))
    assert theirs.read_text() == "by hand"
    cluster.fetch(listed(server), overwrite=True)
    assert theirs.read_bytes() == server.files["/a"]
    assert len(got(server)) == 4


def test_in_the_region_of_the_bucket_each_fetches_for_itself(cluster: Cluster, server: DataServer) -> None:
    ends = cluster.fetch(listed(server), region="eu-central-1")
    assert [end.fetched for end in ends] == [4, 4, 4]
    assert len(got(server)) == 12


UNREACHED = """
from gpuops.agent.peers import push_relay
places = [{"address": "203.0.113.7", "kind": "direct"}]
push_relay.addresses = lambda *_: {"machine": "elsewhere", "addresses": places}
"""


def test_a_node_that_no_other_reaches_fetches_by_itself(cluster: Cluster, server: DataServer) -> None:
    cluster.nodes[1].prelude = UNREACHED
    assert [end.fetched for end in cluster.fetch(web(server))] == [1, 1, 0]
    assert cluster.has("big.bin", BIG)
    [line] = cluster.said
    assert line.startswith("data: node1 fetches by itself: node0 does not reach node1 (")


def test_a_download_that_is_cut_and_a_node_that_dies_once_cost_no_second_one(
    cluster: Cluster, server: DataServer, tmp_path: Path
) -> None:
    server.plays.append(Play(cut=6_000_000))
    cluster.nodes[1].prelude = f"""
import os
from gpuops.agent.files import incoming
write = incoming.Shelf.keep
def dies_once(self, *rest):
    try:
        os.close(os.open({str(tmp_path / "died")!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return write(self, *rest)
    os._exit(9)
incoming.Shelf.keep = dies_once
"""
    assert [end.fetched for end in cluster.fetch(web(server))] == [1, 0, 0]
    assert cluster.has("big.bin", BIG)
    assert server.ranges() == ["", "bytes=6000000-"]
    assert (tmp_path / "died").exists()
    assert not cluster.said


def test_what_has_come_before_a_command_died_is_not_sent_again(
    cluster: Cluster, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = fetched_once.deliver_copies

    def dies(*args: Any) -> dict[str, str]:
        deliver(*args)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(fetched_once, "deliver_copies", dies)
        with pytest.raises(RuntimeError, match="killed"):
            cluster.fetch(listed(server))
    assert not any(cluster.file(number, "set").exists() for number in (1, 2)), "nothing counts before it is taken in"
    relays = [node.asked.count("relay") for node in cluster.nodes]
    cluster.fetch(listed(server))
    assert all(cluster.has(f"set{path}", data) for path, data in server.files.items())
    assert len(server.heard) == 4
    assert [node.asked.count("relay") for node in cluster.nodes] == relays


def test_a_node_that_lacks_without_end_is_given_up(
    cluster: Cluster, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"lacks": [0] * 1000})
    endless = f"read line; echo '{{\"asks\": true}}'; while echo '{line}'; do :; done"
    connection = cluster.nodes[1].connection
    monkeypatch.setattr(cluster.nodes[1], "bulk", lambda _: connection.open(["sh", "-c", endless]))
    with pytest.raises(MalformedAnswer, match="it lacks more files than there are"):
        cluster.fetch(listed(server))


@pytest.mark.parametrize("kind", ["sha256", "md5", "none"])
def test_what_another_node_has_altered_counts_where_the_source_tells_nothing_of_it(
    cluster: Cluster, server: DataServer, kind: str
) -> None:
    """Node0 is hostile: it says that what it has is what it fetched."""
    source = web(server, hashlib.sha256(BIG).hexdigest()) if kind == "sha256" else listed(
        server, has_md5_tags=kind == "md5")  # fmt: skip
    path = source.files[-1].path
    cluster.nodes[0].prelude = """
from gpuops.agent.files import copies
from gpuops.agent.peers import push_relay
def altered(folder, files):
    for data in copies.read_stream(folder, files):
        yield bytes([data[0] ^ 1]) + data[1:] if len(data) > 100_000 else data
push_relay.read_stream = altered
"""
    cluster.fetch(source)
    is_altered = [cluster.file(number, path).read_bytes() != BIG for number in range(3)]
    assert is_altered == [False, *[kind == "none"] * 2]
    assert got(server).count("/set/big.bin") == (1 if kind == "none" else 3)
    assert len(cluster.said) == (0 if kind == "none" else 2)
