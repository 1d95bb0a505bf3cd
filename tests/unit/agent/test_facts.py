"""What a node says about itself, where the text comes from elsewhere."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from gpuops.agent.network import interfaces
from gpuops.agent.node import Node, Refusal
from gpuops.agent.rpc import hello

HERE = Node("/nowhere")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000", None),
        ("150000 100000", 1.5),
        ("-1 100000", None),
        ("", None),
        (" ", None),
        ("400000 100000", 4.0),
    ],
)
def test_a_cgroups_cores(text: str, expected: float | None) -> None:
    assert hello.cgroup_cores(text) == expected


def test_gpus_are_read_from_nvidia_smi() -> None:
    text = (
        "0, NVIDIA A100-SXM4-80GB, 81920, 550.54.15, 8.0\n1, Tesla V100, [N/A], 550.54.15, 7.0\nNo devices were found\n"
    )
    assert hello.parse_gpus(text) == [
        {"index": 0, "name": "NVIDIA A100-SXM4-80GB", "memory_mb": 81920, "driver": "550.54.15", "compute_cap": "8.0"},
        {"index": 1, "name": "Tesla V100", "memory_mb": 0, "driver": "550.54.15", "compute_cap": "7.0"},
    ]


def test_an_old_nvidia_smi_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        "case $1 in *compute_cap*) echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2 ;; esac\n"
        "echo '0, Tesla K80, 11441, 418.67'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert hello.gpus() == [
        {"index": 0, "name": "Tesla K80", "memory_mb": 11441, "driver": "418.67", "compute_cap": ""}
    ]


def test_a_folder_that_cannot_be_asked_does_not_keep_a_node_from_answering() -> None:
    """As on a file server that is gone: what is on the machine itself is told all the same."""
    told = hello.hello(HERE, {}, None)
    assert (told["disk_free"], told["runs"], told["lease"]) == (None, [], {})
    assert told["cores"] >= 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's kernel")
def test_every_own_address_is_reached_by_loopback() -> None:
    assert interfaces.route(HERE, {"to": "127.0.0.9"}, None)["interface"] == "lo"
    assert interfaces.route(HERE, {"to": "[::1]"}, None) == {"interface": "lo", "address": "::1"}


@pytest.mark.parametrize("to", ["no such name", "host.invalid"])
def test_no_way_is_a_refusal(to: str) -> None:
    with pytest.raises(Refusal) as refused:
        interfaces.route(HERE, {"to": to}, None)
    assert refused.value.kind == "no-route"


def test_a_port_is_free_and_below_the_ephemeral_ones() -> None:
    number = interfaces.port(HERE, {"address": "::1"}, None)["port"]
    assert interfaces.LOWEST_PORT <= number < interfaces.ephemeral_start()
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", number))


def test_an_address_of_another_machine_has_no_port_here() -> None:
    with pytest.raises(Refusal) as refused:
        interfaces.port(HERE, {"address": "192.0.2.1"}, None)
    assert refused.value.kind == "no-port"
