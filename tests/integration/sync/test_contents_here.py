"""What a node has under another name, or in another tree, is not sent to it again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gpuops.agent.files import contents_here
from gpuops.core.reporting import Silent
from gpuops.sync.scan import Tree, scan, scan_data
from gpuops.sync.uplink import Uplink
from gpuops.sync.upload import PushReport, push_many
from tests.fakes.inprocess import InProcessClient
from tests.integration.sync.push_world import World, contents

SIZE = 2_000_000


@pytest.fixture
def world(project: Path, node: InProcessClient, tmp_path: Path) -> World:
    (project / "set").mkdir()
    for number in range(3):
        (project / "set" / f"shard{number}").write_bytes(os.urandom(SIZE))
    world = World(project, node, tmp_path / "cache")
    world.push()
    return world


def push(node: InProcessClient, name: str, tree: Tree) -> tuple[PushReport, int]:
    """What was done, and how many bytes left here."""
    line = Uplink()
    nodes: list[InProcessClient] = [node]
    return push_many(nodes, name, tree, progress=Silent(), uplink=line)[0], line.sent_bytes  # type: ignore[arg-type]


def test_a_renamed_folder_is_not_sent(world: World) -> None:
    (world.here / "set").rename(world.here / "renamed")
    report, sent = push(world.node, "project", world.scan())
    assert (report.files_sent, report.removed, sent) == (0, 3, 0)
    assert contents(world.there) == contents(world.here)


def test_files_that_change_names_with_each_other_are_not_sent(world: World) -> None:
    one, two, free = (world.here / "set" / name for name in ("shard0", "shard1", "free"))
    one.rename(free)
    two.rename(one)
    free.rename(two)
    (world.here / "set" / "copy").write_bytes(one.read_bytes())
    report, sent = push(world.node, "project", world.scan())
    assert (report.files_sent, sent) == (0, 0)
    assert contents(world.there) == contents(world.here)


def test_another_tree_of_the_root_has_it(world: World, tmp_path: Path) -> None:
    other = InProcessClient(tmp_path / "root" / "later" / "n0")
    data = tmp_path / "elsewhere" / "set"
    data.parent.mkdir()
    (world.here / "set").rename(data)
    report, sent = push(other, "dataabcdefgh", scan_data(data, tmp_path / "cache2"))
    assert (report.files_sent, sent) == (0, 0)
    assert contents(Path(other.node.dir).parent / "n0" / "dataabcdefgh" / "set") == contents(data)


def test_another_content_of_the_same_size_is_sent(world: World) -> None:
    (world.here / "set" / "shard3").write_bytes(os.urandom(SIZE))
    report, sent = push(world.node, "project", world.scan())
    assert report.files_sent == 1
    assert sent >= SIZE
    assert contents(world.there) == contents(world.here)


def test_what_was_altered_on_the_node_is_no_source(world: World) -> None:
    (world.there / "set" / "shard0").write_bytes(os.urandom(SIZE))
    (world.here / "copy").write_bytes((world.here / "set" / "shard0").read_bytes())
    report, _ = push(world.node, "project", world.scan())
    assert report.files_sent == 1
    assert (world.there / "copy").read_bytes() == (world.here / "copy").read_bytes()


def test_what_changes_while_it_is_copied_is_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_here, "sha256", lambda _place: digest)
    (world.here / "copy").write_bytes((world.here / "set" / "shard0").read_bytes())
    (world.there / "set" / "shard0").write_bytes(os.urandom(SIZE))
    digest = hashlib.sha256((world.here / "copy").read_bytes()).hexdigest()
    report, _ = push(world.node, "project", world.scan())
    assert report.files_sent == 1
    assert (world.there / "copy").read_bytes() == (world.here / "copy").read_bytes()


def test_a_link_on_the_node_leads_nowhere(world: World, tmp_path: Path) -> None:
    content = (world.here / "set" / "shard0").read_bytes()
    (tmp_path / "private").write_bytes(content)
    (world.there / "set" / "shard0").unlink()
    (world.there / "set" / "shard0").symlink_to(tmp_path / "private")
    (world.here / "copy").write_bytes(content)
    report, _ = push(world.node, "project", scan(world.here, world.cache))
    assert report.files_sent == 1


def test_reading_has_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_here, "MAX_READ_BYTES", SIZE + 1)
    (world.here / "set").rename(world.here / "renamed")
    report, _ = push(world.node, "project", world.scan())
    assert report.files_sent == 2
    assert contents(world.there) == contents(world.here)
