"""What holds of all ways by which a push brings files to a node: rsync, a stream, a message, a chain of one node.

By real processes."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.progress import PlainProgress
from gpuops.core.errors import ConnectionLost, NodeRefused, UsageError
from gpuops.core.reporting import Silent
from gpuops.sync import push_transports
from gpuops.sync.uplink import Uplink
from gpuops.sync.upload import PushReport, push_many
from gpuops.transport import rsync
from gpuops.transport.connection import ProcessChannel
from tests.fakes import inprocess
from tests.fakes.inprocess import InProcessClient
from tests.integration.sync.push_world import Meddling, World, contents

PROGRAM = {"message": "receive", "stream": "receive", "rsync": "rsync-receive", "relay": "relay"}
WORDS = {"message": "as a stream", "stream": "as a stream", "rsync": "by rsync", "relay": "as a stream"}


@pytest.fixture(params=["message", "stream", "rsync", "relay"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The only way that there is, for pushes of any size."""
    monkeypatch.setattr(push_transports, "MAX_SMALL_FILE_BYTES", 1 << 40 if request.param == "relay" else -1)
    if request.param in ("rsync", "relay"):
        monkeypatch.setattr(push_transports, "MIN_RSYNC_BYTES", 0)
    else:
        monkeypatch.setattr(rsync, "local_rsync", lambda: None)
        monkeypatch.setattr(push_transports, "MAX_MESSAGE_BYTES", -1 if request.param == "stream" else 1 << 40)
    return str(request.param)


@pytest.fixture
def world(project: Path, node: InProcessClient, tmp_path: Path, way: str) -> World:  # noqa: ARG001
    return World(project, node, tmp_path / "cache")


def test_everything_arrives_byte_for_byte(world: World) -> None:
    here = os.fsencode(world.here)
    names = [b"a b", b"q'\"`$(touch pwned)", b"two\nlines", "ünï\U0001f600".encode(), b"raw\xff\xfe", b"-rf",
             b"\\n", b"x" * 255, b"deep/" * 40 + b"file"]  # fmt: skip
    for number, name in enumerate(names):
        os.makedirs(os.path.dirname(os.path.join(here, name)), exist_ok=True)
        with open(os.path.join(here, name), "wb") as file:
            file.write(bytes(range(256)) * number)
    os.symlink("train.py", here + b"/link")
    os.symlink(b"/nowhere/\xff", here + b"/dangling")
    os.symlink("lib", here + b"/folder-link")
    (world.here / "private").write_text("for me")
    (world.here / "private").chmod(0o600)

    report = world.push()

    assert contents(world.there) == contents(world.here)
    assert report.files_sent == len(names) + 4
    assert report.bytes_sent == world.scan().size


def test_a_program_does_not_run_as_its_owner_there(world: World, way: str) -> None:
    (world.here / "run.sh").chmod(0o6755)
    assert WORDS[way] in world.push().way
    assert stat.S_IMODE((world.there / "run.sh").stat().st_mode) == 0o755
    assert world.push().files_sent == 0


def test_a_second_push_sends_nothing(world: World, way: str) -> None:
    world.push()
    assert world.push() == PushReport("node0", 0, 0, 0, [], "")
    assert world.node.asked.count(PROGRAM[way]) == 1


def test_only_what_changed_is_sent(world: World) -> None:
    world.push()
    (world.here / "train.py").write_text("print('two')\n")
    (world.here / "run.sh").chmod(0o644)
    (world.here / "lib" / "new.py").write_text("y")
    report = world.push()
    assert (report.files_sent, report.bytes_sent, report.removed) == (2, 14, 0)
    assert contents(world.there) == contents(world.here)


def test_files_turn_into_folders_and_links_and_back(world: World) -> None:
    world.push()
    shutil.rmtree(world.here / "lib")
    (world.here / "lib").write_text("now a file")
    (world.here / "run.sh").unlink()
    (world.here / "run.sh").mkdir()
    (world.here / "run.sh" / "inner").write_text("now a folder")
    (world.here / "train.py").unlink()
    (world.here / "train.py").symlink_to("lib")
    world.push()
    assert contents(world.there) == contents(world.here)
    (world.here / "train.py").unlink()
    (world.here / "train.py").mkdir()
    (world.here / "train.py" / "__main__.py").write_text("a link no more")
    world.push()
    assert contents(world.there) == contents(world.here)


def test_an_edit_during_the_transfer_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.push()
    (world.here / "train.py").write_text("new here")
    start, receive = world.node.start, inprocess.VERBS["receive"]

    def edit_then(go_on: Callable[..., Any]) -> Callable[..., Any]:
        def edit(*arguments: Any) -> Any:
            (world.there / "train.py").write_text("edited meanwhile")
            return go_on(*arguments)

        return edit

    monkeypatch.setattr(world.node, "start", edit_then(start))
    monkeypatch.setitem(inprocess.VERBS, "receive", edit_then(receive))
    with pytest.raises(NodeRefused) as refused:
        world.push()
    assert refused.value.kind == "edited"
    assert (world.there / "train.py").read_text() == "edited meanwhile"


def test_a_file_that_changes_while_it_is_sent_is_sent_again(world: World) -> None:
    big = world.here / "big.bin"
    big.write_bytes(b"1" * 1_000_000)
    world.push(uplink=Meddling(big, 3))
    assert contents(world.there) == contents(world.here)


def test_a_file_that_becomes_shorter_while_it_is_sent_is_sent_again(world: World) -> None:
    big = world.here / "big.bin"
    big.write_bytes(os.urandom(3_000_000))

    class Shortening(Uplink):
        def passed(self, count: int) -> None:
            super().passed(count)
            if self.sent_bytes > 100_000 and big.stat().st_size > 1000:
                os.truncate(big, 1000)

    world.push(uplink=Shortening(measured_bytes_per_s=1e9))
    assert contents(world.there) == contents(world.here)


def test_a_file_that_never_rests_is_named(world: World) -> None:
    big = world.here / "big.bin"
    big.write_bytes(b"1" * 1_000_000)
    with pytest.raises(UsageError, match=r"big\.bin keeps changing while it is sent"):
        world.push(uplink=Meddling(big, float("inf")))
    assert not (world.there / "big.bin").exists()


def test_a_file_that_goes_before_it_is_sent_is_left_out(world: World) -> None:
    tree = world.scan()
    (world.here / "train.py").unlink()
    push_many([world.node], "project", tree, progress=Silent())  # type: ignore[list-item]
    assert contents(world.there) == contents(world.here)


def test_a_receiver_that_dies_is_a_lost_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.here / "big.bin").write_bytes(os.urandom(4_000_000))

    def dies(argv: Sequence[str]) -> ProcessChannel:  # noqa: ARG001
        return ProcessChannel(["sh", "-c", "echo out of luck >&2; exit 255"])

    def ends(*_: Any) -> dict[str, Any]:
        raise ConnectionLost("out of luck")

    with monkeypatch.context() as broken:
        broken.setattr(world.node, "start", dies)
        broken.setitem(inprocess.VERBS, "receive", ends)
        with pytest.raises(ConnectionLost, match="out of luck"):
            world.push()
    world.push()
    assert contents(world.there) == contents(world.here)


def test_many_nodes_at_once(world: World, tmp_path: Path) -> None:
    nodes = [InProcessClient(tmp_path / f"m{index}", f"node{index}") for index in range(3)]
    (world.here / "big.bin").write_bytes(os.urandom(1_000_000))
    lines: list[str] = []
    later = itertools.count(0.0, 10.0).__next__  # every look at the clock 10 s later
    progress = PlainProgress(lines.append, later, ticking=False)
    reports = push_many(nodes, "project", world.scan(), progress=progress)  # type: ignore[arg-type]
    assert [report.node for report in reports] == ["node0", "node1", "node2"]
    assert all(contents(Path(node.node.dir) / "project") == contents(world.here) for node in nodes)
    assert lines[0] == f"sending 4 files to 3 nodes, 3.0 MB, {reports[0].way}"
    assert lines[-1].startswith("3 nodes: 3.0 MB of 3.0 MB")

    (Path(nodes[2].node.dir) / "project" / "train.py").write_text("edited")
    (world.here / "train.py").write_text("here too")
    with pytest.raises(UsageError, match=r"train\.py was edited on node2"):
        push_many(nodes, "project", world.scan(), progress=Silent())  # type: ignore[arg-type]
