"""What runs inside a machine is started by a command of that machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuops.core.models import MACHINE, Resource
from gpuops.transport import connect
from gpuops.transport.connection import ProcessConnection
from gpuops.transport.nested import NestedConnection


class Outer:
    label = "node3"

    def __init__(self) -> None:
        self.started: list[Sequence[str]] = []
        self.closed = False

    def open(self, argv: Sequence[str], early: bytes = b"") -> Any:
        self.started.append(argv)
        self.early = early
        return "the program"

    def close(self) -> None:
        self.closed = True


def test_the_command_goes_before_the_program() -> None:
    outer = Outer()
    nested = NestedConnection(outer, ["docker", "exec", "-i", "box"])
    assert nested.open(["python3", "-c", "1"]) == "the program"
    assert (outer.started, outer.early) == ([["docker", "exec", "-i", "box", "python3", "-c", "1"]], b"")
    nested.open(["cat"], b"first bytes")
    assert outer.early == b"first bytes"
    assert nested.label == "node3"
    nested.close()
    assert outer.closed


def test_a_machine_says_that_its_node_is_inside() -> None:
    def machine(**data: Any) -> Resource:
        return Resource(MACHINE, "1", "", "gpuops-0a1b2c3d-lab-0", False, data={"connection": "process", **data})

    assert isinstance(connect.connect(machine(), 0), ProcessConnection)
    assert isinstance(connect.connect(machine(inside=["podman", "exec"]), 0), NestedConnection)


def test_only_some_of_the_agents_modes_may_go_inside() -> None:
    outer = Outer()
    nested = NestedConnection(outer, ["srun"], ["connect"])
    connecting = ["python3", "-I", "/root/.gpuops-0a1b2c3d/agent/a.pyz", "connect", "--node", "n0"]
    beside: list[list[str]] = [
        [*connecting[:3], "send"],
        ["python3", "-I", "connect.py", "connect"],
        ["sh", "-c", "connect"],
    ]
    for argv in (connecting, *beside):
        nested.open(argv)
    assert outer.started == [["srun", *connecting], *beside]
