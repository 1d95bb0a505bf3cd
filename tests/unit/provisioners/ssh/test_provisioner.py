"""What the SSH provisioner decides without a host: who is where, what is refused, what is remembered."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gpuops.core.errors import Rejected, Unknown, UsageError
from gpuops.core.models import Request
from gpuops.core.provider import Context
from gpuops.nodes.bootstrap import MachineProbe
from gpuops.transport.ssh import Target
from provisioners.ssh.hosts import HostBook, KnownHost
from provisioners.ssh.placement import Host, place_nodes
from provisioners.ssh.provisioner import SshProvisioner


def host(name: str, gpus: int = 0) -> Host:
    return Host(
        name,
        Target(name, user="root", host_keys=("ssh-ed25519 AAAA",)),
        MachineProbe("/root", "/usr/bin/python3", gpus),
    )


def placed(hosts: list[Host], nodes: int, gpus: int | None = None) -> list[tuple[object, ...]]:
    return [(one.host, one.gpus, one.cores_share) for one in place_nodes(hosts, nodes, gpus)[0]]


def test_a_node_for_each_host() -> None:
    assert placed([host("a", 4), host("b", 2)], 2) == [("a", None, 1.0), ("b", None, 1.0)]
    assert placed([host("a", 4), host("b", 2)], 2, 2) == [("a", ["0", "1"], 1.0), ("b", ["0", "1"], 1.0)]
    assert place_nodes([host("a")], 1, None)[1] == []


def test_virtual_nodes_are_neighbours_and_divide_their_host() -> None:
    assert placed([host("a", 4), host("b", 2)], 3) == [
        ("a", ["0", "1"], 0.5),
        ("a", ["2", "3"], 0.5),
        ("b", None, 1.0),
    ]
    notes = place_nodes([host("a", 4)], 2, None)[1]
    assert notes == ["2 nodes on 1 host: virtual nodes, which share cores, memory and disk"]
    assert placed([host("a", 1)], 2) == [("a", [], 0.5), ("a", [], 0.5)]
    assert "a has 1 GPU for 2 nodes, so the ranks run on the CPU" in place_nodes([host("a", 1)], 2, None)[1]


def test_more_gpus_than_a_host_has() -> None:
    with pytest.raises(Rejected, match="2 nodes with 4 GPUs each need 8, a has 4"):
        place_nodes([host("a", 4)], 2, 4)


def provisioner(tmp_path: Path) -> SshProvisioner:
    return SshProvisioner(Context("0badcafe", tmp_path, {}))


def test_what_makes_no_sense_for_hosts_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        provisioner(tmp_path).preflight(Request("ssh", gpu_type="h100", region="moon"))
    assert (caught.value.message, caught.value.hint) == (
        "--gpu-type and --region say which machine to rent, and these hosts are yours",
        "leave out --gpu-type and --region",
    )
    with pytest.raises(UsageError, match="no host was named"):
        provisioner(tmp_path).preflight(Request("ssh"))
    assert provisioner(tmp_path).list_owned("0badcafe", []) == []
    assert provisioner(tmp_path).list_owned("0badcafe", ["root@gone"]) == []


def test_the_book_of_hosts_is_for_our_eyes_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "hosts.json"
    book, met = HostBook(path), KnownHost(host("a").target, "/root/.gpuops-0badcafe", "/usr/bin/python3")
    assert book.names() == []
    book.record("root@a", met)
    book.record("root@b", met)
    assert HostBook(path).names() == ["root@a", "root@b"]
    assert HostBook(path).get("root@a") == met
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = book.require("root@a")
    book.record("root@a", met)
    book.remove_unchanged("root@a", first)
    assert book.get("root@a") == met, "somebody wrote it down anew"
    for _ in range(2):
        book.remove_unchanged("root@a", book.get("root@a") or first)
    assert book.get("root@a") is None
    with pytest.raises(Rejected, match="root@a was forgotten"):
        book.require("root@a")
    path.write_text("{torn")
    with pytest.raises(Unknown, match=r"hosts\.json cannot be read"):
        book.names()
