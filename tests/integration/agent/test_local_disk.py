"""What tests/unit/agent/test_local_disk.py leaves to real processes or sockets."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.agent.daemon import end_command
from gpuops.agent.files import local_disk
from gpuops.core.errors import GpuopsError
from gpuops.core.models import Resource
from gpuops.core.reporting import Silent
from gpuops.sync import scan, workloads_and_data
from gpuops.sync.uplink import Uplink
from tests.fakes.inprocess import InProcessClient
from tests.unit.agent.test_local_disk import born


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local disk of a machine, with more room than the root's: it is a folder of the same one here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_disk, "is_roomier", lambda disk, _root: os.path.isdir(disk))
    folder = tmp_path / "nvme"
    folder.mkdir(mode=0o777)
    return folder


@pytest.fixture
def another(disk: Path) -> Iterator[Path]:
    """One that is another file system indeed, where there is such a one: nothing can be renamed across."""
    if not os.access("/dev/shm", os.W_OK):
        yield disk
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def sent(root: Path, here: Path) -> dict[int, str]:
    """`--data` to a machine's node and a virtual one beside it: where each finds it."""
    clients = [InProcessClient(root / f"lab/n{index}", f"node{index}") for index in range(2)]
    hellos = [SimpleNamespace(folder=client.node.dir) for client in clients]
    machines = [Resource("machine", "i-1", "there", "lab-0", bills=True, data=more) for more in ({}, {"on": 0})]
    world: Any = SimpleNamespace(progress=Silent())
    live: Any = SimpleNamespace(clients=clients, hello=hellos.__getitem__, machines=machines)
    return workloads_and_data._push_to_machines(
        world, live, 2, here, scan.scan_data(here, here.parent / "cache"), overwrite=False, line=Uplink()
    )


def test_data_lie_there_for_all_nodes_of_the_machine(tmp_path: Path, another: Path) -> None:
    first, second = born(tmp_path / "root/lab/n0", another), born(tmp_path / "root/lab/n1", None, index=1, on=0)
    here = tmp_path / "set"
    here.mkdir()
    (here / "x").write_text("1")
    name = workloads_and_data.tree_name(here)
    for text in ("1", "two"):
        (here / "x").write_text(text)
        places = sent(tmp_path / "root", here)
        for node, place in zip((first, second), (places[0], places[1]), strict=True):
            assert place == f"{node.dir}/{name}/set"
            assert Path(place, "x").read_text() == text
            assert os.path.realpath(f"{place}/x") == os.path.realpath(another / f"gpuops/lab/n0/{name}/set/x")
    assert os.listdir(another / "gpuops/lab/n0/incoming") == []
    assert first.tree("project") == first.path("project")
    end_command.remove_node(second)
    assert os.listdir(another / "gpuops/lab") == ["n0"]
    assert (another / "gpuops/lab/n0" / name / "set/x").exists()
    end_command.remove_node(first)
    assert os.listdir(another / "gpuops/lab") == []


def test_no_link_in_a_trees_place_is_written_through(tmp_path: Path, disk: Path) -> None:
    node = born(tmp_path / "root/lab/n0", disk)
    here, elsewhere = tmp_path / "set", tmp_path / "elsewhere"
    here.write_text("mine")
    elsewhere.mkdir()
    name = workloads_and_data.tree_name(here)
    os.symlink(elsewhere, node.path(name))  # in the place of the agent's own link: nothing is written there
    sent(tmp_path / "root", here)
    assert os.listdir(elsewhere) == []
    shutil.rmtree(node.tree(name))
    os.symlink(elsewhere, node.tree(name))
    with pytest.raises(GpuopsError, match="is a link on this node, not a folder"):
        sent(tmp_path / "root", here)
    assert os.listdir(elsewhere) == []
