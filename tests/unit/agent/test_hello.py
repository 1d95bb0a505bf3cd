"""What a node says about itself, where the text comes from elsewhere."""

from __future__ import annotations

import pytest

from gpuops.agent import machine_resources
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
    assert machine_resources.cgroup_cores(text) == expected


def test_gpus_are_read_from_nvidia_smi() -> None:
    text = (
        "0, NVIDIA A100-SXM4-80GB, 81920, 550.54.15, 8.0\n1, Tesla V100, [N/A], 550.54.15, 7.0\nNo devices were found\n"
    )
    assert hello.parse_gpus(text) == [
        {"index": 0, "name": "NVIDIA A100-SXM4-80GB", "memory_mb": 81920, "driver": "550.54.15", "compute_cap": "8.0"},
        {"index": 1, "name": "Tesla V100", "memory_mb": 0, "driver": "550.54.15", "compute_cap": "7.0"},
    ]


def test_a_folder_that_cannot_be_asked_does_not_keep_a_node_from_answering() -> None:
    """As on a file server that is gone: what is on the machine itself is told all the same."""
    told = hello.hello(HERE, {}, None)
    assert (told["disk_free"], told["runs"], told["lease"]) == (None, [], {})
    assert told["cores"] >= 1


@pytest.mark.parametrize("to", ["no such name", "host.invalid"])
def test_no_way_is_a_refusal(to: str) -> None:
    with pytest.raises(Refusal) as refused:
        interfaces.route(HERE, {"to": to}, None)
    assert refused.value.kind == "no-route"
