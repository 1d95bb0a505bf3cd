"""What tests/unit/agent/test_hello.py leaves to real processes or sockets."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from gpuops.agent.network import interfaces
from gpuops.agent.node import Refusal
from gpuops.agent.rpc import hello
from tests.unit.agent.test_hello import HERE


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's kernel")
def test_every_own_address_is_reached_by_loopback() -> None:
    assert interfaces.route(HERE, {"to": "127.0.0.9"}, None)["interface"] == "lo"
    assert interfaces.route(HERE, {"to": "[::1]"}, None) == {"interface": "lo", "address": "::1"}


def test_a_port_is_free_and_below_the_ephemeral_ones() -> None:
    number = interfaces.port(HERE, {"address": "::1"}, None)["port"]
    assert interfaces.LOWEST_PORT <= number < interfaces.ephemeral_start()
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", number))


def test_an_address_of_another_machine_has_no_port_here() -> None:
    with pytest.raises(Refusal) as refused:
        interfaces.port(HERE, {"address": "192.0.2.1"}, None)
    assert refused.value.kind == "no-port"
