"""The environment that an image brings: whose it is, what of it is taken, and what logins read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuops.agent.daemon import image_variables
from gpuops.agent.node import Node

ENV = {
    "PATH": "/usr/local/cuda/bin:/usr/bin",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "HF_HOME": "/workspace/it's",
    "TOKENIZERS_PARALLELISM": "false",
}
OTHERS = {
    "RUNPOD_API_KEY": "k", "RUNPOD_POD_ID": "p", "GPUOPS_HOST_KEY": "k", "PUBLIC_KEY": "k", "JUPYTER_PASSWORD": "k",
    "HF_TOKEN": "k", "HOME": "/root", "HOSTNAME": "pod", "TERM": "xterm", "MASTER_ADDR": "10.0.0.1", "NODE_RANK": "1",
    "CONTAINER_ID": "7", "VAST_TCP_PORT_22": "4",
    "WORLD_SIZE": "16", "NUM_TRAINERS": "8", "HOST_NODE_ADDR": "a:1", "NODE_ADDR": "a", "a b": "no name",
}  # fmt: skip


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine whose first process has the image's environment, and the provider's."""
    first(tmp_path / "proc", "bash", {**ENV, **OTHERS})
    return tmp_path / "proc"


def first(proc: Path, comm: str, environ: dict[str, str], pid: int = 1) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "environ").write_bytes(b"\0".join(f"{name}={value}".encode() for name, value in environ.items()))


def node(folder: Path, **settings: object) -> Node:
    one = Node(str(folder))
    folder.mkdir(parents=True)
    (folder / "node.json").write_text(json.dumps(settings))
    return one


def adopted(one: Node, proc: Path) -> dict[str, str]:
    environ = {"PATH": "/usr/bin:/home/bin", "HOME": "/home"}
    image_variables.adopt(one, environ, str(proc))
    return environ


def test_the_images_own_environment_is_joined_with_the_logins(tmp_path: Path, proc: Path) -> None:
    one = node(tmp_path / "lab" / "n0", rented=True)
    path = "/usr/local/cuda/bin:/usr/bin:/home/bin"
    assert adopted(one, proc) == {**image_variables.RENTED, **ENV, "PATH": path, "HOME": "/home"}


def test_a_machine_that_nobody_rented_is_left_as_it_is(tmp_path: Path, proc: Path) -> None:
    one = node(tmp_path / "lab" / "n0")
    assert adopted(one, proc) == {"PATH": "/usr/bin:/home/bin", "HOME": "/home"}
    assert not Path(one.path(image_variables.SCRIPT)).exists()


@pytest.mark.parametrize("comm", ["systemd", "init", ""])
def test_a_machine_that_is_no_container_has_nothing_to_take(tmp_path: Path, proc: Path, comm: str) -> None:
    first(proc, comm, ENV)
    assert adopted(node(tmp_path / "n0", rented=True), proc) == {
        **image_variables.RENTED, "PATH": "/usr/bin:/home/bin", "HOME": "/home",
    }  # fmt: skip


def test_an_sshd_that_is_first_has_written_over_its_own(tmp_path: Path, proc: Path) -> None:
    """The watchdog that came with the pod has the same environment."""
    first(proc, "sshd", {})
    first(proc, "sh", ENV, pid=12)
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "pid").write_text("12\n")
    one = node(tmp_path / "n0", rented=True, boot_watch=str(tmp_path / "watch"))
    assert adopted(one, proc)["HF_HOME"] == ENV["HF_HOME"]
    (tmp_path / "watch" / "pid").write_text("../1")
    assert "HF_HOME" not in adopted(one, proc)


def test_a_virtual_node_has_what_its_machine_brings(tmp_path: Path, proc: Path) -> None:
    node(tmp_path / "lab" / "n0", rented=True, index=0)
    second = node(tmp_path / "lab" / "n1", on=0, index=1)
    assert adopted(second, proc)["LD_LIBRARY_PATH"] == ENV["LD_LIBRARY_PATH"]


def test_what_is_no_text_is_left_out(tmp_path: Path, proc: Path) -> None:
    (proc / "1" / "environ").write_bytes(b"PATH=/bin\0ODD=\xff\0LINES=a\nb\0")
    environ = adopted(node(tmp_path / "n0", rented=True), proc)
    assert (environ.get("ODD"), environ["LINES"]) == (None, "a\nb")


def test_a_full_disk_ends_no_agent(tmp_path: Path, proc: Path) -> None:
    one = node(tmp_path / "n0", rented=True)
    (tmp_path / "n0" / "image.sh.tmp").mkdir()
    assert adopted(one, proc)["HF_HOME"] == ENV["HF_HOME"]
