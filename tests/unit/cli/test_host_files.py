"""`--hosts FILE`: host files as people have them, from gpuops' own to those of PBS, MPI and DeepSpeed."""

from __future__ import annotations

import pytest

from gpuops.cli.request import count_named_machines, parse_provider_options
from tests.desk import Desk


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("me@10.0.0.5\nme@10.0.0.6:2222 # the second\n\n[fd00::1]:22\nfd00::2\n",
         ["me@10.0.0.5", "me@10.0.0.6:2222", "[fd00::1]:22", "fd00::2"]),
        ("node1\nnode1\nnode1\nnode1\nnode2\nnode2\n", ["node1", "node2"]),
        ("node1.cluster slots=4\nnode2.cluster slots=4 max_slots=8\n", ["node1.cluster", "node2.cluster"]),
        ("node1 slots = 2\nnode1 slots = 2\n", ["node1"]),
        ("node1:4\nnode2:16\nnode1:8\n", ["node1", "node2"]),
        ("node1 node2\n", ["node1 node2"]),
        ("node1:22\nnode2:2222\nme@node3:4\n10.0.0.5:8\n", ["node1:22", "node2:2222", "me@node3:4", "10.0.0.5"]),
    ],
)  # fmt: skip
def test_which_hosts_a_file_names(desk: Desk, text: str, hosts: list[str]) -> None:
    from gpuops.cli.context import make_context

    ctx, _ = make_context()
    options = parse_provider_options(ctx, "ssh", ["--hosts", str(desk.write("hosts", text))])
    assert options["hosts"] == hosts
    assert count_named_machines(ctx, "ssh", options) == len(hosts)
