"""What is known of a machine under its newest description, and the machine whose host key is not replaced."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import NodeError
from gpuops.core.models import MachineStatus, Resource
from gpuops.nodes import host_key_handover
from gpuops.nodes.host_key_handover import identify_ssh_folder, merge_description

SAID = {"phase": "p", "hopeless": "h", "stopped": True, "reclaimed": True, "by": "b", "why_ended": "w"}
KNOWN = Resource("machine", "i", "", "m-0", True, state="starting", data={"home": "/root", "keys": ["own"], **SAID})


def test_what_is_of_the_present_is_taken_from_the_newest_description() -> None:
    described = dataclasses.replace(KNOWN, state="running", data={"target": {"host_keys": ["first"]}})
    now = merge_description(KNOWN, described)
    assert now.data == {"home": "/root", "keys": ["own"], "target": {"host_keys": ["own"]}}
    assert now.status is MachineStatus.RUNNING
    again = merge_description(now, dataclasses.replace(described, data=SAID))
    assert {name: again.data[name] for name in SAID} == SAID


@pytest.mark.parametrize(
    ("state", "data", "status"),
    [
        ("running", {}, MachineStatus.TERMINATED),
        ("running", {"artefact": "a"}, MachineStatus.RUNNING),
        ("unknown", {"artefact": "a"}, MachineStatus.TERMINATED),  # its provider has stopped it, and its disk costs
        ("running", {"artefact": "a", "stopped": True}, MachineStatus.STOPPED),
    ],
)
def test_no_node_that_runs_is_hopeless(state: str, data: dict[str, Any], status: MachineStatus) -> None:
    machine = Resource("machine", "i", "", "m-0", True, state=state, data={"hopeless": "no image", **data})
    assert machine.status is status


def test_a_machine_that_is_this_computer_keeps_its_host_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(_: object, argv: list[str], *__: object) -> str:
        asked.append(argv)
        return "this computer"

    monkeypatch.setattr(host_key_handover, "_read_last_line", answer)
    node: Any = type("Connection", (), {"label": "node0"})()
    with pytest.raises(NodeError, match="node0 is this computer itself: its host key is not replaced"):
        host_key_handover._make_host_key(node, [])
    assert asked[0][-1] == identify_ssh_folder(), "the machine compares, before anything is made there"


def test_containers_of_one_computer_are_told_apart(tmp_path: Path) -> None:
    """They share the boot."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = identify_ssh_folder(tmp_path / "one"), identify_ssh_folder(tmp_path / "two")
    assert one != two
    assert one.split()[0] == two.split()[0]
    assert identify_ssh_folder(tmp_path / "none") == ""
