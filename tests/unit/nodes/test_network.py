"""What is said of the network that was found, and of nodes that differ."""

from __future__ import annotations

import pytest

from gpuops.core.run_models import NodeFacts
from gpuops.nodes.network import LinkSpeed, describe_clock_skew, format_report
from gpuops.nodes.python import PreparedNode, describe_differences
from gpuops.nodes.rendezvous import Endpoint


def ring(*numbers: tuple[float | None, float | None]) -> list[LinkSpeed]:
    return [LinkSpeed(start, (start + 1) % len(numbers), ms, mb_s) for start, (ms, mb_s) in enumerate(numbers)]


def spots(*interfaces: str) -> list[Endpoint]:
    return [Endpoint(f"10.0.0.{5 + node}", name) for node, name in enumerate(interfaces)]


def test_one_line_where_all_is_well() -> None:
    assert format_report(spots("eth0", "eth0"), ring((0.21, 1100.0), (0.15, 1240.0))) == [
        "network: eth0, 10.0.0.5 (node0) and 10.0.0.6 (node1), 0.2 ms, 1.1 GB/s"
    ]


def test_interfaces_that_differ_and_nothing_measured() -> None:
    assert format_report(spots("eth0", "ib0"), ring((0.04, None), (None, None))) == [
        "network: eth0 10.0.0.5 (node0) and ib0 10.0.0.6 (node1), 0.04 ms"
    ]


def test_many_nodes_are_not_all_shown() -> None:
    (line,) = format_report(spots(*["eth0"] * 6), ring(*[(12.0, 99.0)] * 6))
    assert line == "network: eth0, 10.0.0.5 (node0), 10.0.0.6 (node1), … and 10.0.0.10 (node5), 12 ms, 99 MB/s"


def test_a_slow_network_says_what_that_means() -> None:
    line, note = format_report(spots("eth0", "eth0"), ring((0.2, 900.0), (0.2, 11.2)))
    assert line.endswith(", 11 MB/s")
    assert note == (
        "note: the network is slow: DistributedDataParallel takes about 8.9 s a step to add up 100 MB of gradients "
        "(25 million parameters), since node1 sends 11 MB/s to node0"
    )


@pytest.mark.parametrize(
    ("skews", "found"),
    [
        ([], ""),
        ([0.0, 4.0], ""),
        ([-3.0, 4.0], "the clock of node1 is 7 s behind that of node0"),
        ([100.0, 0.0, 50.0], "the clock of node0 is 100 s behind that of node1"),
        ([0.0, 1.0, 50.0], "the clock of node2 is 50 s behind that of node0"),
    ],
)
def test_clocks(skews: list[float], found: str) -> None:
    assert describe_clock_skew(skews).partition(";")[0] == found


def node(index: int, version: str = "3.11.4", gpus: int = 0, ranks: int = 2) -> PreparedNode:
    return PreparedNode(NodeFacts(index, "python", ranks=ranks, cores=4), "2.8.0", "why", version, gpus)


def test_nodes_that_are_alike_are_no_news() -> None:
    assert describe_differences([node(0), node(1, "3.11.9")]) == []


def test_nodes_that_differ() -> None:
    found = describe_differences([node(0, gpus=8, ranks=8), node(1, "3.8.10", gpus=1, ranks=1)])
    assert found == [
        "node1 has Python 3.8, node0 3.11; what one pickles the other may not read",
        "node0 has 8 GPUs, node1 has 1 GPU: they run 8 and 1 ranks; a script that takes all nodes for alike may fail",
    ]
