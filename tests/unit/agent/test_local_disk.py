"""A machine's local disk: when it is used, what goes there, and what never does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpuops.agent.daemon import init_command
from gpuops.agent.files import local_disk
from gpuops.agent.node import Node
from gpuops.agent.rpc import hello
from gpuops.agent.wire_format import PROTOCOL
from gpuops.clusters.readiness import describe_local_disks
from gpuops.transport.schemas import LocalDisk, NodeHello

Room = dict[str, int]
TREE = "dataabcdefgh"
"""The name of a tree for `--data`."""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local disk of a machine, with more room than the root's: it is a folder of the same one here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_disk, "is_roomier", lambda disk, _root: os.path.isdir(disk))
    folder = tmp_path / "nvme"
    folder.mkdir(mode=0o777)
    return folder


def born(folder: Path, disk: Path | None, **settings: object) -> Node:
    node = Node(str(folder))
    said = {"owner": "o", "cluster": "lab", "index": 0, "scratch": str(disk) if disk else None, **settings}
    init_command.prepare_node(node, said, {"boot_in": 60.0})
    return node


def test_environments_and_downloads_go_to_the_local_disk(tmp_path: Path, disk: Path) -> None:
    node = born(tmp_path / "root/lab/n0", disk)
    for name in ("env", "data"):
        assert (tmp_path / "root" / name).readlink() == disk / "gpuops" / name
        assert (disk / "gpuops" / name).stat().st_mode & 0o777 == 0o700
    assert (disk / "gpuops").stat().st_mode & 0o777 == 0o700
    assert node.settings().scratch == str(disk / "gpuops")
    told = local_disk.describe(node)
    assert told
    assert told["path"] == str(disk)
    assert 0 < told["free"] <= shutil.disk_usage(disk).total  # others write there meanwhile
    assert sorted(os.listdir(disk / "gpuops")) == ["data", "env"], "what must survive stays on the root's disk"
    assert born(tmp_path / "root/lab/n0", disk).settings() == node.settings()


def test_what_is_there_already_is_kept(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "root/env/made").mkdir(parents=True)
    born(tmp_path / "root/lab/n0", disk)
    assert not (tmp_path / "root/env").is_symlink()
    assert (tmp_path / "root/env/made").is_dir()
    assert (tmp_path / "root/data").is_symlink()


@pytest.mark.parametrize("why", ["none is told", "absent", "a link", "a file", "another's"])
def test_a_disk_that_cannot_be_used_changes_nothing(
    tmp_path: Path, disk: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = {"none is told": None, "absent": tmp_path / "absent"}.get(why, disk)
    if why == "a link":
        (disk / "gpuops").symlink_to(tmp_path)
    if why == "a file":
        (disk / "gpuops").write_text("")
    if why == "another's":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    node = born(tmp_path / "root/lab/n0", offered)
    assert sorted(os.listdir(tmp_path / "root")) == ["lab"]
    assert (node.scratch(), local_disk.describe(node)) == (None, None)
    assert node.tree(TREE) == node.path(TREE)


def test_a_disk_that_may_not_be_written_changes_nothing(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.makedirs

    def denied(path: str, *args: int, **more: int) -> None:
        if path.startswith(str(disk)):
            raise PermissionError(13, "Permission denied", path)
        made(path, *args, **more)

    monkeypatch.setattr(os, "makedirs", denied)
    assert born(tmp_path / "root/lab/n0", disk).scratch() is None
    assert sorted(os.listdir(tmp_path / "root")) == ["lab"]


@pytest.mark.parametrize(("free", "wanted"), [({"disk": 2, "root": 1}, True), ({"disk": 1, "root": 2}, False)])
def test_only_another_disk_with_more_room_is_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: Room, wanted: bool
) -> None:
    disk, root = tmp_path / "disk", tmp_path / "root"
    disk.mkdir()
    root.mkdir()
    monkeypatch.setattr(local_disk, "space", lambda path: (1, free[Path(path).name]))
    assert local_disk.is_roomier(str(disk), str(root)) is False, "one disk, whatever it has"
    monkeypatch.setattr(local_disk, "space", lambda path: (Path(path).stat().st_ino, free[Path(path).name]))
    assert local_disk.is_roomier(str(disk), str(root)) is wanted


def a_hello(scratch: LocalDisk | None) -> NodeHello:
    return NodeHello(PROTOCOL, 1, [], "/n", scratch=scratch)


def test_it_is_said(tmp_path: Path, disk: Path) -> None:
    node = born(tmp_path / "root/lab/n0", disk)
    assert hello.hello(node, {}, None)["scratch"]["path"] == str(disk)
    large, larger = (a_hello(LocalDisk("/opt/dlami/nvme", size)) for size in (3_400_000_000_000, 4 * 10**12))
    told = "(/opt/dlami/nvme, 3.4 TB free)"
    assert describe_local_disks([larger, large]) == f"data and environments are on each machine's local disk {told}"
    assert describe_local_disks([None, large]) == f"data and environments are on the local disk of node1 alone {told}"
    assert describe_local_disks([a_hello(None), None]) == ""
