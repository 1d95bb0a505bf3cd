"""Data that a node fetches by itself: the client's side and the node's program, against a server that misbehaves."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.agent.node import Node, write_json
from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.data_address import WebData
from gpuops.core.errors import ConnectionLost, GpuopsError, MalformedAnswer, NodeRefused
from gpuops.core.models import Resource
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES
from gpuops.nodes import bootstrap
from gpuops.nodes.session import ClusterSession
from gpuops.sync import fetch_data, fetch_stall
from gpuops.sync.data_sources import Source, SourceFile, find_source
from gpuops.transport.connection import ProcessConnection
from gpuops.transport.program_schemas import FetchEnd
from gpuops.transport.rpc import NodePaths, Programs
from tests.certificate import certificate_in
from tests.conftest import until
from tests.fakes.data_server import DataServer, Play, tag_of
from tests.integration.agent.conftest import PYTHON, carrying

BIG = bytes(range(256)) * 20_000
"""5 MB: enough to be gone on with."""
TREE = "dataabc"


class Place:
    """A node's folder, and a client's session with its programs."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        out = Output()
        out.say = self.said.append  # type: ignore[method-assign]
        self.ctx = Context(folder, "o", folder, {}, out, Signals(), SERVICES)
        _, sha = bootstrap.build_agent(folder / "agent")
        machine = Resource("m", "x", "", "", False, data={"root": str(folder), "python": PYTHON})
        paths = NodePaths(machine, "lab", 0, sha)
        self.node = Node(paths.node)
        os.makedirs(paths.node)
        self.programs = Programs(ProcessConnection("node0"), paths)
        self.tree = Path(self.node.tree(TREE))
        self.incoming = self.tree.parent / "incoming" / TREE

    @property
    def session(self) -> ClusterSession:
        return cast("ClusterSession", SimpleNamespace(clients=[self.programs], reconnect=lambda _: None))

    def fetch(self, find: Source | Callable[[], Source], overwrite: bool = False) -> FetchEnd:
        look = find if callable(find) else lambda: find
        _, (end,) = fetch_data.fetch_to(self.ctx, self.session, [0], TREE, look, overwrite=overwrite)
        return FetchEnd(end.fetched, end.bytes)

    def refused(self, find: Source | Callable[[], Source]) -> NodeRefused:
        with pytest.raises(NodeRefused) as caught:
            self.fetch(find)
        return caught.value


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return Place(tmp_path)


@pytest.fixture
def server() -> Iterator[DataServer]:
    with DataServer({"/set/big.bin": BIG}) as one:
        yield one


def web(server: DataServer, sha256: str = "", path: str = "/set/big.bin") -> Source:
    return find_source(cast("Context", None), WebData(server.url + path, "big.bin", sha256))


def listed(server: DataServer, *names: str) -> Source:
    """As a bucket would be: with sizes and tags of a listing."""
    files = []
    for name in names:
        data = server.files[f"/{name}"]
        files.append(SourceFile(f"set/{name}", len(data), tag_of(data), key=name))
    return Source("set", "s3://b/set", files, lambda file: (f"{server.url}/{file.key}", {}))


@pytest.mark.parametrize("cuts", [[1], [100_000, 1], [1_500_000, 1_500_000], [len(BIG) - 1]])
def test_what_is_cut_goes_on_where_it_ended(place: Place, server: DataServer, cuts: list[int]) -> None:
    server.plays += [Play(cut=cut) for cut in cuts]
    assert place.fetch(web(server)) == FetchEnd(1, len(BIG))
    assert (place.tree / "big.bin").read_bytes() == BIG
    positions = [sum(cuts[:index]) for index in range(len(cuts) + 1)]
    assert server.ranges() == [f"bytes={position}-" if position else "" for position in positions]
    assert not place.incoming.exists()
    assert Path(place.node.path("activity")).exists(), "the node is in use"


def test_without_ranges_it_begins_again(place: Place, server: DataServer) -> None:
    server.has_ranges = False
    server.plays += [Play(cut=2_000_000), Play(cut=1_000_000)]
    place.fetch(web(server))
    assert (place.tree / "big.bin").read_bytes() == BIG


def test_without_a_tag_nothing_is_gone_on_with(place: Place, server: DataServer) -> None:
    server.has_tags = False
    server.plays.append(Play(cut=2_000_000))
    place.fetch(web(server))
    assert (place.tree / "big.bin").read_bytes() == BIG
    assert server.ranges() == ["", ""]


def test_what_another_command_began_is_gone_on_with(place: Place, server: DataServer) -> None:
    server.plays += [Play(cut=3_000_000), Play(status=404)]
    assert "answers 404 for 'big.bin'" in place.refused(web(server)).message
    assert not (place.tree / "big.bin").exists()
    assert place.fetch(web(server)) == FetchEnd(1, len(BIG) - 3_000_000)
    assert (place.tree / "big.bin").read_bytes() == BIG
    assert server.ranges()[-1] == "bytes=3000000-"


def test_what_another_command_began_of_another_version_is_dropped(place: Place, server: DataServer) -> None:
    server.plays += [Play(cut=3_000_000), Play(status=404)]
    place.refused(web(server))
    server.files["/set/big.bin"] = BIG[::-1]
    place.fetch(web(server))
    assert (place.tree / "big.bin").read_bytes() == BIG[::-1]
    assert not place.said


def test_a_file_that_changes_meanwhile_is_fetched_again(place: Place, server: DataServer) -> None:
    other = BIG[::-1]
    change = Play(first=lambda: server.files.update({"/set/big.bin": other}))
    server.plays += [Play(cut=3_000_000), change]
    place.fetch(web(server))
    assert (place.tree / "big.bin").read_bytes() == other
    assert place.said == ["node0: 'big.bin' changed at its source while it was fetched: fetched again"]


def test_no_file_is_made_of_two_versions(place: Place, server: DataServer) -> None:
    """Also by a server that sends the rest of another version than it was asked for."""
    server.heeds_if_range = False
    other = BIG[::-1]
    server.plays += [Play(cut=3_000_000), Play(first=lambda: server.files.update({"/set/big.bin": other}))]
    place.fetch(web(server))
    assert (place.tree / "big.bin").read_bytes() == other


def test_no_file_is_made_of_two_versions_that_differ_in_time_alone(place: Place, server: DataServer) -> None:
    server.heeds_if_range = server.has_tags = False
    server.modified = "Thu, 01 Jan 2026 00:00:00 GMT"
    other = BIG[::-1]

    def change() -> None:
        server.files["/set/big.bin"], server.modified = other, "Fri, 02 Jan 2026 00:00:00 GMT"

    server.plays += [Play(cut=3_000_000), Play(first=change)]
    place.fetch(web(server))
    assert server.ranges()[:2] == ["", "bytes=3000000-"]
    assert (place.tree / "big.bin").read_bytes() == other


def test_a_rest_that_is_longer_than_the_file_is_not_taken(place: Place, server: DataServer) -> None:
    server.plays += [Play(cut=3_000_000), Play(excess=b"and more")]
    place.fetch(web(server))
    assert (place.tree / "big.bin").read_bytes() == BIG


def test_a_size_that_is_told_with_the_rest_alone_counts(place: Place, server: DataServer) -> None:
    """As by a server that makes its answer while it sends it, in chunks."""
    server.is_chunked = True
    server.plays.append(Play(cut=len("4e2000\r\n") + 3_000_000))
    place.fetch(web(server))
    assert not place.said
    assert server.ranges() == ["", "bytes=3000000-"]
    assert (place.tree / "big.bin").read_bytes() == BIG


def test_a_file_that_changes_each_time_is_an_error(place: Place, server: DataServer) -> None:
    count = iter(range(100))
    for _ in range(20):
        change = Play(first=lambda: server.files.update({"/set/big.bin": BIG + bytes([next(count)])}), cut=3_000_000)
        server.plays.append(change)
    refusal = place.refused(web(server))
    assert refusal.kind == "changed"
    assert len(place.said) == 3
    assert not (place.tree / "big.bin").exists()


def test_an_address_that_has_ended_is_renewed(place: Place, server: DataServer) -> None:
    given: list[int] = []

    def url(_: SourceFile) -> tuple[str, dict[str, str]]:
        given.append(len(given))
        return f"{server.url}/set/big.bin?signature={given[-1]}", {"x-amz-checksum-mode": "ENABLED"}

    source = Source("big.bin", "s3://b/big.bin", [SourceFile("big.bin", len(BIG), tag_of(BIG))], url)
    server.plays += [Play(cut=3_000_000), Play(status=403)]
    place.fetch(source)
    assert (place.tree / "big.bin").read_bytes() == BIG
    asked = [(one.path.partition("=")[2], one.headers.get("range", ""), one.status) for one in server.heard]
    assert asked == [("0", "", 200), ("0", "bytes=3000000-", 403), ("1", "bytes=3000000-", 206)]
    assert {one.headers["x-amz-checksum-mode"] for one in server.heard} == {"ENABLED"}


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "denied"), (403, "denied"), (404, "absent"), (410, "absent"), (418, "denied")]
)
def test_a_refusal_is_one_sentence(place: Place, server: DataServer, status: int, kind: str) -> None:
    server.plays.append(Play(status=status))
    refusal = place.refused(web(server, path="/set/big.bin?token=hush"))
    assert (refusal.kind, refusal.message) == (kind, f"node0: 127.0.0.1 answers {status} for 'big.bin'")
    assert refusal.hint
    assert len(server.heard) == 1


def test_keys_that_have_ended_are_told_from_a_wrong_address(place: Place, server: DataServer) -> None:
    server.plays.append(Play(status=400, code="ExpiredToken"))
    refusal = place.refused(web(server))
    assert refusal.message == "node0: 127.0.0.1 answers 400 (ExpiredToken) for 'big.bin'"
    assert refusal.hint.startswith("sign in again")


def test_wrong_bytes_are_never_in_place(place: Place, server: DataServer) -> None:
    refusal = place.refused(web(server, sha256="0" * 64))
    assert refusal.kind == "wrong-bytes"
    assert not (place.tree / "big.bin").exists()
    assert not list(place.incoming.glob("*.part"))


def test_a_checksum_is_not_spared_since_the_server_says_nothing_is_new(place: Place, server: DataServer) -> None:
    place.fetch(web(server))
    assert place.refused(web(server, sha256="0" * 64)).kind == "wrong-bytes"
    assert place.fetch(web(server, sha256=hashlib.sha256(BIG).hexdigest())).fetched == 1


def test_what_a_listing_names_anew_is_never_what_was_there(place: Place, server: DataServer) -> None:
    """A server that still sends the old version has not what the listing names."""
    server.files = {"/a": b"old"}
    place.fetch(listed(server, "a"))
    server.files = {"/a": b"new"}
    source = listed(server, "a")
    server.files = {"/a": b"old"}
    assert place.refused(source).kind == "changed"


def test_the_checksum_that_a_bucket_tells_counts(place: Place, server: DataServer) -> None:
    server.more = {"x-amz-checksum-sha256": base64.b64encode(bytes(32)).decode()}
    assert place.refused(web(server)).kind == "wrong-bytes"
    server.more = {"x-amz-checksum-sha256": base64.b64encode(hashlib.sha256(BIG).digest()).decode()}
    server.plays.append(Play(cut=3_000_000))
    assert place.fetch(web(server)).fetched == 1


def test_a_checksum_of_parts_says_nothing_of_the_whole(place: Place, server: DataServer) -> None:
    server.more = {"x-amz-checksum-sha256": base64.b64encode(bytes(32)).decode() + "-3"}
    assert place.fetch(web(server)).fetched == 1


def test_a_checksum_counts_over_all_attempts_and_spares_the_next_question(place: Place, server: DataServer) -> None:
    source = web(server, sha256=hashlib.sha256(BIG).hexdigest())
    server.plays += [Play(cut=2_000_000), Play(status=404)]
    place.refused(source)
    server.plays.append(Play(cut=1_000_000))
    place.fetch(source)
    server.heard.clear()
    assert place.fetch(source) == FetchEnd(0, 0)
    assert not server.heard


def test_what_is_unchanged_is_not_fetched_again(place: Place, server: DataServer) -> None:
    place.fetch(web(server))
    assert place.fetch(web(server)) == FetchEnd(0, 0)
    assert [one.status for one in server.heard] == [200, 304]
    server.files["/set/big.bin"] = b"short"
    assert place.fetch(web(server)) == FetchEnd(1, 5)
    assert (place.tree / "big.bin").read_bytes() == b"short"


def test_a_listing_says_what_is_new_and_what_is_gone(place: Place, server: DataServer) -> None:
    server.files = {f"/{name}": name.encode() * 3 for name in ("a", "deep/b", "deep/er/c")}
    assert place.fetch(listed(server, "a", "deep/b", "deep/er/c")).fetched == 3
    assert (place.tree / "set/deep/er/c").read_bytes() == server.files["/deep/er/c"]
    server.heard.clear()
    server.files["/a"] = b"new"
    assert place.fetch(listed(server, "a", "deep/b")).fetched == 1
    assert [one.path for one in server.heard] == ["/a"]
    assert sorted(path.name for path in place.tree.rglob("*") if path.is_file()) == ["a", "b"]


def test_a_listing_that_is_outdated_is_made_again(place: Place, server: DataServer) -> None:
    server.files = {"/a": b"one", "/b": b"two"}
    old = listed(server, "a", "b")
    server.files = {"/a": b"three"}
    sources = iter([old, listed(server, "a")])
    place.fetch(lambda: next(sources))
    assert (place.tree / "set/a").read_bytes() == b"three"
    assert not (place.tree / "set/b").exists()


def test_what_was_changed_on_the_node_is_not_overwritten_unasked(place: Place, server: DataServer) -> None:
    place.fetch(web(server))
    (place.tree / "big.bin").write_bytes(b"edited")
    assert place.refused(web(server)).kind == "edited"
    assert (place.tree / "big.bin").read_bytes() == b"edited"
    place.fetch(web(server), overwrite=True)
    assert (place.tree / "big.bin").read_bytes() == BIG


def test_more_than_the_disk_has_is_refused_before_the_first_byte(place: Place, server: DataServer) -> None:
    source = Source("x", "s3://b/x", [SourceFile("x", 1 << 60, '"t"')], lambda _: (server.url + "/x", {}))
    refusal = place.refused(source)
    assert refusal.kind == "disk"
    assert "what is to be fetched needs" in refusal.message
    assert not server.heard


@pytest.mark.parametrize("path", ["../x", "/x", "a//x", "a/../../x", "", "a\0b"])
def test_no_path_leaves_the_folder(place: Place, server: DataServer, path: str) -> None:
    source = Source("x", "s3://b/x", [SourceFile(path, 1, '"t"')], lambda _: (server.url + "/x", {}))
    assert place.refused(source).kind == "bad-path"
    assert not server.heard


def test_a_local_disk_takes_the_data(place: Place, server: DataServer, tmp_path: Path) -> None:
    write_json(place.node.path("node.json"), {"scratch": str(tmp_path / "nvme")})
    place.fetch(web(server))
    assert (tmp_path / "nvme/lab/n0" / TREE / "big.bin").read_bytes() == BIG
    assert Path(place.node.path(TREE), "big.bin").read_bytes() == BIG, "clients expect it here"


def test_no_link_is_written_through(place: Place, server: DataServer, tmp_path: Path) -> None:
    server.files = {"/deep/a": b"one"}
    (tmp_path / "elsewhere").mkdir()
    (place.tree / "set").mkdir(parents=True)
    (place.tree / "set/deep").symlink_to(tmp_path / "elsewhere")
    assert place.refused(listed(server, "deep/a")).kind in ("outside", "edited")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_size_that_nobody_tells_needs_a_checksum(place: Place, server: DataServer) -> None:
    server.has_length = False
    assert place.refused(web(server)).kind == "no-size"
    place.fetch(web(server, sha256=hashlib.sha256(BIG).hexdigest()))
    assert (place.tree / "big.bin").read_bytes() == BIG


def test_what_is_packed_for_the_way_is_not_taken_for_the_file(place: Place, server: DataServer) -> None:
    """The server was asked not to. What its listing or the user knows it to be is right, and a packed file's name."""
    server.more = {"Content-Encoding": "gzip"}
    assert place.refused(web(server)).kind == "compressed"
    assert not (place.tree / "big.bin").exists()
    place.fetch(web(server, sha256=hashlib.sha256(BIG).hexdigest()))
    server.files = {"/a": BIG}
    place.fetch(listed(server, "a"))
    packed = WebData(f"{server.url}/a", "big.tar.gz")
    place.fetch(find_source(cast("Context", None), packed))
    assert (place.tree / "big.tar.gz").read_bytes() == BIG


def test_a_server_that_cannot_be_reached_is_given_up_soon(place: Place) -> None:
    with DataServer() as gone:
        source = web(gone)
    refusal = place.refused(source)
    assert refusal.kind == "unreachable"
    assert "the connection to 127.0.0.1 failed: Connection refused" in refusal.message


def test_only_a_trusted_certificate_serves(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: DataServer
) -> None:
    pem = certificate_in(tmp_path)
    with DataServer({"/set/big.bin": BIG}, certificate=pem) as closed:
        refusal = place.refused(web(closed))
        assert refusal.message.startswith("node0: the certificate of 127.0.0.1 is not trusted here (self")
        assert not closed.heard
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        closed.plays.append(Play(status=302, location=f"{server.url}/set/big.bin"))
        assert place.refused(web(closed)).kind == "redirect"
        assert not server.heard, "from https to http nobody is sent on"
        closed.plays.append(Play(status=302, location="/set/big.bin?here"))
        place.fetch(web(closed))
    assert (place.tree / "big.bin").read_bytes() == BIG


def test_the_end_of_the_client_ends_the_program(place: Place, server: DataServer) -> None:
    """Also where Ctrl-C meets a download that waits for its server."""
    server.plays.append(Play(cut=3_000_000, holds=threading.Event()))
    fetch = fetch_data.Fetch(place.ctx, place.session, [0], TREE, web(server), overwrite=False)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            fetch.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: [one for one in place.incoming.glob("*.part") if one.stat().st_size == 3_000_000], "it has begun")
    fetch.end(KeyboardInterrupt())
    thread.join()
    assert [type(error) for error in failures] == [KeyboardInterrupt]
    assert not (place.tree / "big.bin").exists()
    place.fetch(web(server))
    assert server.ranges() == ["", "bytes=3000000-"]


def test_a_conversation_that_is_cut_is_begun_anew(
    place: Place, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_data, "RECONNECT_PAUSE_S", 0.0)
    opened: list[Any] = []
    begin = place.programs.bulk

    def bulk(mode: str, *arguments: str) -> Any:
        opened.append(begin(mode, *arguments))
        return opened[-1]

    monkeypatch.setattr(place.programs, "bulk", bulk)
    server.plays.append(Play(cut=3_000_000, first=lambda: opened[-1].close()))
    place.fetch(web(server))
    assert len(opened) == 2
    assert (place.tree / "big.bin").read_bytes() == BIG


BUSY = """read line; echo '{"error": {"kind": "busy", "say": "these data are being fetched already"}}' >&2; exit 1"""


def test_a_program_that_has_not_noticed_its_cut_is_waited_for(
    place: Place, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cut, somebody else fetches, and that is said at once."""
    monkeypatch.setattr(fetch_data, "RECONNECT_PAUSE_S", 0.0)
    connection, begin = place.programs.connection, place.programs.bulk
    opened = iter(["exit 1", BUSY, BUSY])

    def bulk(mode: str, *arguments: str) -> Any:
        line = next(opened, "")
        return connection.open(["sh", "-c", line]) if line else begin(mode, *arguments)

    monkeypatch.setattr(place.programs, "bulk", bulk)
    assert place.fetch(web(server)).fetched == 1
    opened = iter([BUSY])
    assert place.refused(web(server)).kind == "busy"


def nonsense(text: str) -> list[str]:
    return ["sh", "-c", f"read line; printf '%s\\n' '{text}'; read line"]


@pytest.mark.parametrize(
    "text",
    [
        '{"need": [1]}',
        '{"need": [-1]}',
        '{"at": -1}',
        "{",
        "[]",
        '{"done": {"fetched": 1}}',
        '{"need": ["x"]}',
        '{"done": {"fetched": 1, "bytes": 1, "version": ["\\u2603", "", 1]}}',
    ],
)
def test_a_node_that_talks_nonsense_gets_nothing(
    place: Place, server: DataServer, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    connection = place.programs.connection
    monkeypatch.setattr(place.programs, "bulk", lambda _: connection.open(nonsense(text)))
    with pytest.raises(MalformedAnswer):
        place.fetch(web(server))


def test_a_node_that_never_ends_its_line_gets_nothing(
    place: Place, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = place.programs.connection
    endless = ["sh", "-c", "while :; do printf 123456789012345678901234567890; done"]
    monkeypatch.setattr(place.programs, "bulk", lambda _: connection.open(endless))
    with pytest.raises(MalformedAnswer):
        place.fetch(web(server))


def test_an_older_agent_is_named(place: Place, server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, argv = place.programs.connection, place.programs.paths.argv
    monkeypatch.setattr(place.programs, "bulk", lambda _: connection.open(argv("of-another-time")))
    with pytest.raises(NodeRefused, match="node0 was made by an older gpuops"):
        place.fetch(web(server))


def test_the_first_failure_ends_all_and_is_the_one_that_is_told(place: Place, server: DataServer) -> None:
    """Node0 waits for its server; node1's disk is full."""
    server.plays.append(Play(cut=3_000_000, holds=threading.Event()))
    full = 'read line; echo \'{"error": {"kind": "disk", "say": "the disk is full"}}\' >&2; exit 1'
    other = ProcessConnection("node1")
    bad = SimpleNamespace(label="node1", bulk=lambda _: other.open(["sh", "-c", full]))
    session: Any = SimpleNamespace(clients=[place.programs, bad])
    with pytest.raises(GpuopsError, match="node1: the disk is full") as caught:
        fetch_data.fetch_to(place.ctx, session, [0, 1], TREE, lambda: web(server), overwrite=False)
    assert not isinstance(caught.value, ConnectionLost)


def test_a_node_that_is_done_is_in_use_until_all_are(place: Place, server: DataServer, tmp_path: Path) -> None:
    """Its idle end must not strike while others fetch."""
    other = Place(tmp_path / "other")
    held = threading.Event()
    session: Any = SimpleNamespace(clients=[place.programs, other.programs])
    server.plays += [Play(), Play(cut=3_000_000, holds=held)]
    fetch = fetch_data.Fetch(place.ctx, session, [0, 1], TREE, web(server), overwrite=False)
    thread = threading.Thread(target=fetch.run)
    thread.start()
    done = until(lambda: next((one for one in (place, other) if (one.tree / "big.bin").exists()), None), "one is done")
    until(lambda: len(fetch._ends) == 1, "it has said so")
    assert [pid for pid in carrying(done.node.dir) if b"fetch" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    held.set()
    thread.join()
    assert {(one.tree / "big.bin").read_bytes() for one in (place, other)} == {BIG}


def test_a_node_that_only_says_that_it_lives_is_begun_again_and_then_given_up(
    place: Place, server: DataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_data, "RECONNECT_PAUSE_S", 0.0)
    monkeypatch.setattr(fetch_stall, "STALL_S", 0.2)
    connection, opened = place.programs.connection, list[str]()
    beats = 'read line; while echo \'{"at": 7, "total": 9}\'; do sleep 0.05; done'

    def bulk(mode: str) -> Any:
        opened.append(mode)
        return connection.open(["sh", "-c", beats])

    monkeypatch.setattr(place.programs, "bulk", bulk)
    with pytest.raises(ConnectionLost, match="node0 fetches, and nothing has come for"):
        place.fetch(web(server))
    assert len(opened) == 1 + fetch_stall.MAX_STALLS
