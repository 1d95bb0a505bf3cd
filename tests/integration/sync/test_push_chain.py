"""A push to several nodes leaves home once, whatever becomes of a node on the way: by real processes and sockets."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.files import push_steps
from gpuops.core.errors import NodeRefused, UsageError
from gpuops.sync import chain_links, push_chain
from gpuops.sync.scan import scan
from gpuops.sync.uplink import Uplink
from gpuops.sync.upload import push_many
from gpuops.transport import relay
from gpuops.transport.connection import ProcessConnection
from gpuops.transport.program_schemas import RelayPlaces
from tests.fakes.inprocess import VERBS
from tests.integration.sync.chain_scene import BIG_BYTES, Fast, Scene, quick
from tests.integration.sync.node_here import Words
from tests.integration.sync.push_world import Meddling, contents


@pytest.fixture
def scene(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    quick(monkeypatch)
    return Scene(project, tmp_path)


def test_one_upload_serves_all(scene: Scene) -> None:
    reports = scene.push()
    assert scene.is_everywhere()
    assert scene.size < scene.left_home < 1.01 * scene.size
    assert [report.way for report in reports] == ["as a stream, passed on"] + ["through node0"] * 3
    assert scene.words.phases[-1].endswith("to 4 nodes, 12.4 MB, through node0")
    assert not any(node.asked.count("receive") for node in scene.nodes)
    assert not any((Path(node.node.dir) / "incoming" / "project").exists() for node in scene.nodes)


def test_names_and_links_of_every_kind(scene: Scene) -> None:
    here = os.fsencode(scene.here)
    for name in (b"two\nlines", b"raw\xff\xfe", "ünï\U0001f600".encode(), b"-rf", b"deep/" * 40 + b"file", b"empty"):
        os.makedirs(os.path.dirname(os.path.join(here, name)), exist_ok=True)
        with open(os.path.join(here, name), "wb") as file:
            file.write(name * (name != b"empty"))
    os.symlink(b"/nowhere/\xff", here + b"/dangling")
    (scene.here / "private").write_text("for me")
    (scene.here / "private").chmod(0o600)
    scene.push()
    assert scene.is_everywhere()


def test_what_can_be_deflated_leaves_home_smaller(scene: Scene) -> None:
    (scene.here / "big.bin").write_bytes(b"all alike " * (BIG_BYTES // 10))
    scene.push(Uplink())
    assert scene.is_everywhere()
    assert scene.left_home < 0.1 * scene.size


def make_many_small(scene: Scene) -> None:
    (scene.here / "big.bin").unlink()
    for number in range(400):
        (scene.here / "many" / f"f{number}").write_bytes(b"all alike " * 500)


@pytest.mark.parametrize("rate", [1e9, 1e6])
def test_one_node_gets_many_small_files_as_a_stream_too_deflated_where_the_line_is_slow(
    scene: Scene, rate: float
) -> None:
    make_many_small(scene)
    reports = scene.push(Uplink(measured_bytes_per_s=rate), nodes=scene.nodes[:1])
    assert contents(scene.nodes[0].tree) == contents(scene.here)
    assert reports[0].way == "as a stream"
    assert scene.nodes[0].asked == ["plan", "relay", "commit"]
    assert (scene.left_home < 0.5 * scene.size) is (rate == 1e6)


@pytest.mark.parametrize("prelude", ["import os; os._exit(9)", "sys.exit(refuse('usage', 'no such mode', '', 1))"])
def test_one_node_whose_program_for_that_does_not_begin_gets_them_another_way(scene: Scene, prelude: str) -> None:
    make_many_small(scene)
    scene.nodes[0].prelude = prelude
    reports = scene.push(nodes=scene.nodes[:1])
    assert contents(scene.nodes[0].tree) == contents(scene.here)
    assert reports[0].way == "as a stream"
    assert scene.nodes[0].asked == ["plan", "relay", "receive", "commit"]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_cut_of_one_nodes_stream_is_mended(scene: Scene, share: float) -> None:
    make_many_small(scene)
    scene.push(Fast(scene.size, share, lambda: scene.nodes[0].signal(signal.SIGKILL)), nodes=scene.nodes[:1])
    assert contents(scene.nodes[0].tree) == contents(scene.here)
    assert any("node0:" in line for line in scene.words.said)


def test_nodes_that_no_chain_serves_get_many_small_files_each_for_itself(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_chain, "MIN_SAVED_S", 1e9)
    make_many_small(scene)
    reports = scene.push()
    assert scene.is_everywhere()
    assert [report.way for report in reports] == ["as a stream"] * 4
    assert all(node.asked == ["plan", "relay", "commit"] for node in scene.nodes)


def test_many_small_files_that_a_chain_brings_come_no_other_way_as_well(scene: Scene) -> None:
    make_many_small(scene)
    reports = scene.push()
    assert scene.is_everywhere()
    assert [report.way for report in reports] == ["as a stream, passed on"] + ["through node0"] * 3
    assert all(node.asked == ["plan", "relay", "commit"] for node in scene.nodes)


def test_nodes_that_have_a_part_get_the_rest(scene: Scene) -> None:
    """Each stages what it lacks of one stream that has everything that any of them lacks."""
    scene.push(nodes=scene.nodes[:1])
    (scene.here / "big.bin").unlink()
    scene.push(nodes=scene.nodes[1:2])
    (scene.here / "big.bin").write_bytes(os.urandom(BIG_BYTES))
    (scene.here / "more.bin").write_bytes(os.urandom(BIG_BYTES // 2))
    before = scene.left_home
    reports = scene.push()
    assert scene.is_everywhere()
    everything = len(scan(scene.here, scene.cache).files)
    assert [report.files_sent for report in reports] == [2, 2, everything, everything]
    assert scene.left_home - before < 1.02 * scene.size


@pytest.mark.parametrize(("share", "place"), [(0.1, 0), (0.5, 0), (0.9, 0), (0.5, 1), (0.1, 3), (0.9, 3)])
def test_a_program_that_is_killed_on_the_way_is_mended(scene: Scene, share: float, place: int) -> None:
    scene.push(Fast(scene.size, share, lambda: scene.nodes[place].signal(signal.SIGKILL)))
    assert scene.is_everywhere()
    assert any(f"node{place}:" in line for line in scene.words.said)


def test_files_that_came_whole_are_not_sent_again(scene: Scene) -> None:
    for number in range(8):
        (scene.here / f"part{number}").write_bytes(os.urandom(8_000_000))
    (scene.here / "big.bin").unlink()
    scene.push(Fast(scene.size, 0.9, lambda: scene.nodes[3].signal(signal.SIGTERM)))
    assert scene.is_everywhere()
    assert scene.nodes[3].got < 1.1 * scene.size
    assert scene.left_home < 2.1 * scene.size


def test_a_node_that_hangs_holds_up_nobody(scene: Scene) -> None:
    (scene.here / "big.bin").write_bytes(os.urandom(8 * BIG_BYTES))  # more than all queues on the way hold
    scene.push(Fast(scene.size, 0.1, lambda: scene.nodes[2].signal(signal.SIGSTOP)))
    assert scene.is_everywhere()
    assert any(line.startswith("node2: ") for line in scene.words.said)


UNREACHABLE = """
import os
from gpuops.agent.peers import push_relay
places = [{"address": "203.0.113.7", "kind": "direct"}]
push_relay.addresses = lambda *_: {"machine": str(os.getpid()), "addresses": places}
push_relay.REACH_LIMIT_S = 0.5
"""


def test_nodes_that_do_not_reach_each_other_get_their_own(scene: Scene) -> None:
    for node in scene.nodes:
        node.prelude = UNREACHABLE
    reports = scene.push()
    assert scene.is_everywhere()
    assert {report.way for report in reports} == {"as a stream"}
    (line,) = scene.words.said
    assert line.startswith("node0 does not reach node1 (")
    assert scene.words.phases[-1].endswith(f"to 4 nodes, {4 * 12.4:.1f} MB, as a stream")


def test_where_one_is_not_reached_there_are_two_chains(scene: Scene) -> None:
    scene.nodes[2].prelude = UNREACHABLE.replace("0.5", "3.0")
    reports = scene.push()
    assert scene.is_everywhere()
    head = "as a stream, passed on"
    assert [report.way for report in reports] == [head, "through node0", head, "through node2"]
    assert scene.words.phases[-1].endswith(f"{2 * 12.4:.1f} MB, through node0 and through node2")
    assert scene.left_home < 2.02 * scene.size


CORRUPTING = """
from gpuops.agent.peers import push_relay
class Lies(push_relay.Onward):
    count = 0
    def put(self, data):
        self.count += len(data)
        super().put(data[:-1] + bytes([data[-1] ^ 1]) if 5e6 < self.count < 6e6 else data)
push_relay.Onward = Lies
"""


def test_a_node_that_alters_the_stream_is_found_out(scene: Scene) -> None:
    scene.nodes[1].prelude = CORRUPTING
    scene.push()
    assert scene.is_everywhere()
    assert any("node2:" in line for line in scene.words.said)
    assert not any("node0:" in line or "node1:" in line for line in scene.words.said)


FLOODING = """
from gpuops.agent.peers import push_relay
class Floods(push_relay.Onward):
    def put(self, data):
        super().put(bytes(1 << 20))
push_relay.Onward = Floods
"""


@pytest.mark.parametrize("text", ["bytes(1 << 20)", "b'[[[[' * 50_000", "b'[\"0\", 24000000]\\n' * 9"])
def test_a_node_that_sends_nonsense_harms_nobody(scene: Scene, text: str) -> None:
    scene.nodes[0].prelude = FLOODING.replace("bytes(1 << 20)", text)
    scene.push()
    assert scene.is_everywhere()


FIRST_WORDS = """
import sys
def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()
say('{"machine": "m", "places": [["127.0.0.1", 22], ["::1", 22], ["169.254.169.254", 80]], "port": 22}\\n')
say('{"reached": true, "why": ""}\\n')
"""


@pytest.mark.parametrize(
    "program",
    [
        "print('hello')",
        "import sys\nsys.stdout.write('x' * 10_000_000)",
        "print('[' * 50_000)",
        'print(\'{"machine": "m", "places": [["localhost", 22]], "port": 22}\')',
        'print(\'{"machine": "m", "places": [["127.0.0.1", 99999]], "port": -1}\')',
        FIRST_WORDS + "say('{\"at\": -1}\\n')",
        FIRST_WORDS + "while True: say('{\"at\": 9000000000000000000}\\n' * 1000)",
        FIRST_WORDS + 'say(\'{"whole": false, "last": 9000000000000000000}\\n\')',
        FIRST_WORDS + 'say(\'{"lost": "\\\\u001b[2J"}\\n\')\nimport time\ntime.sleep(600)',
    ],
)
def test_a_node_that_lies_to_the_client_harms_itself_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(push_chain, "END_LIMIT_S", 3.0)
    monkeypatch.setattr(push_chain, "SILENCE_S", 6.0)
    monkeypatch.setattr(relay, "SILENCE_S", 6.0)
    scene.nodes[1].instead = program
    refused = ""
    try:
        scene.push()
    except NodeRefused as error:
        refused = f"{error.kind} {error.message.partition(':')[0]}"
    assert refused in ("", "incomplete node1")
    assert refused or contents(scene.nodes[1].tree) == contents(scene.here)
    for node in (scene.nodes[0], *scene.nodes[2:]):
        assert contents(node.tree) == contents(scene.here)
    assert not any("\x1b" in line for line in scene.words.said)


FULL = """
import errno
from gpuops.agent.files.incoming import Incoming
def full(self, part, path, entry, blocks):
    next(iter(blocks), None)
    raise OSError(errno.ENOSPC, "No space left on device")
Incoming.write_part = full
Incoming.write_at_once = lambda self, path, entry, content: full(self, "", path, entry, iter([content]))
"""


def test_a_full_disk_is_told_and_the_others_have_all(scene: Scene) -> None:
    scene.nodes[1].prelude = FULL
    with pytest.raises(NodeRefused, match="node1: the disk is full") as refused:
        scene.push()
    assert refused.value.kind == "disk"
    before = scene.left_home
    scene.push(nodes=[scene.nodes[0], *scene.nodes[2:]])
    assert scene.left_home == before
    assert contents(scene.nodes[3].tree) == contents(scene.here)


def test_a_stranger_at_the_port_disturbs_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = chain_links._candidates
    ended: list[str] = []

    def knock(port: int) -> None:
        idle = socket.create_connection(("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", port)) as loud:
            loud.sendall(b"GET / HTTP/1.0\r\n\r\n" * 10)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as nameless:
            try:
                nameless.sendall(b"hello")
                ended.append(nameless.recv(100).decode())
            except OSError:
                ended.append("")
        idle.close()

    def knock_first(here: RelayPlaces, there: RelayPlaces | None) -> list[tuple[str, int]]:
        if there:
            knock(there.port)
        return candidates(here, there)

    monkeypatch.setattr(chain_links, "_candidates", knock_first)
    reports = scene.push()
    assert scene.is_everywhere()
    assert ended == [""] * 3, "who shows no certificate hears nothing"
    assert [report.way for report in reports] == ["as a stream, passed on"] + ["through node0"] * 3


def test_a_file_that_changes_while_it_is_sent_is_sent_again(scene: Scene) -> None:
    scene.push(Meddling(scene.here / "big.bin", 3))
    assert scene.is_everywhere()


def test_a_file_that_cannot_be_read_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(target: Any, *_: Any) -> None:
        target.stdin.write(b'["0", 5]\n')
        raise UsageError("big.bin cannot be read", "")

    monkeypatch.setattr(push_chain, "write_files", unreadable)
    with pytest.raises(UsageError, match=r"big\.bin cannot be read"):
        scene.push()
    assert not any((node.tree / "train.py").exists() for node in scene.nodes)


def test_two_pushes_at_once_leave_no_mixture_of_bytes(scene: Scene, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "big.bin").write_bytes(os.urandom(BIG_BYTES))
    failures: list[BaseException] = []

    def push_other() -> None:
        nodes: Any = scene.nodes
        try:
            push_many(nodes, "project", scan(other, tmp_path / "cache2"), progress=Words(), uplink=Fast())
        except NodeRefused as error:
            failures.append(error)

    thread = threading.Thread(target=push_other)
    thread.start()
    try:
        scene.push()
    except (NodeRefused, UsageError) as error:
        failures.append(error)
    thread.join()
    whole = {(scene.here / "big.bin").read_bytes(), (other / "big.bin").read_bytes()}
    for node in scene.nodes:
        assert not (node.tree / "big.bin").exists() or (node.tree / "big.bin").read_bytes() in whole
    found: Any = scene.nodes
    push_many(found, "project", scan(scene.here, scene.cache), progress=Words(), uplink=Fast(), overwrite=True)
    assert scene.is_everywhere()
    assert all(getattr(error, "kind", "usage") in ("superseded", "edited", "usage") for error in failures)


class Pausing(Fast):
    """A line that stands for longer than a node may be silent, as one that is held to a rate does."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 2

    def passed(self, count: int) -> None:
        super().passed(count)
        if self.pauses and self.sent_bytes > BIG_BYTES / 2:
            self.pauses -= 1
            threading.Event().wait(6.0)


def test_a_line_that_is_held_back_is_no_silence(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_chain, "SILENCE_S", 5.0)
    scene.push(Pausing())
    assert scene.is_everywhere()
    assert not scene.words.said
    assert scene.left_home < 1.01 * scene.size


def test_what_is_sent_in_no_time_goes_without_a_chain(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_chain, "MIN_SAVED_S", 3.0)
    scene.push()
    assert scene.is_everywhere()
    assert not any("relay" in node.asked for node in scene.nodes)


def test_nodes_on_this_computer_go_without_a_chain(scene: Scene) -> None:
    for node in scene.nodes:
        node.connection = ProcessConnection(node.label)  # type: ignore[assignment]
    scene.push()
    assert scene.is_everywhere()
    assert not any("relay" in node.asked for node in scene.nodes)


def test_an_agent_that_knows_no_chain_is_sent_to_from_here(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = push_steps.plan

    def older(*arguments: Any) -> dict[str, Any]:
        answer = plan(*arguments)
        del answer["replaces"]
        return answer

    monkeypatch.setitem(VERBS, "plan", older)
    scene.push()
    assert scene.is_everywhere()
    assert not any("relay" in node.asked for node in scene.nodes)
