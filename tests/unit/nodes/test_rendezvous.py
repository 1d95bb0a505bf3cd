"""Which address of a node is chosen, and which sentence names what is cut: tables, no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuops.agent.network.probe import ReachState
from gpuops.core.errors import NodeError
from gpuops.nodes.rendezvous import (
    Candidate,
    Endpoint,
    NetworkPath,
    Peer,
    ProbeResult,
    choose_endpoints,
    list_candidates,
    without_shared_addresses,
)
from gpuops.transport.schema_types import Address
from gpuops.transport.schemas import InterfaceAddress

PORTS = {0: [23456, 23457, 40000], 1: [40001], 2: [40002]}


def entry(address: str, interface: str = "eth0", **more: Any) -> InterfaceAddress:
    return InterfaceAddress(interface, Address(address), **more)


@pytest.mark.parametrize(
    ("entries", "preferred", "public", "expected"),
    [
        ([entry("1.2.3.4"), entry("10.0.0.5", "eth1")], "", "", ["10.0.0.5", "1.2.3.4"]),
        ([entry("10.0.0.5"), entry("10.1.0.5", "eth1")], "10.1.0.5", "", ["10.1.0.5", "10.0.0.5"]),
        ([entry("172.17.0.1", "docker0", kind="bridge"), entry("8.8.4.4")], "", "", ["8.8.4.4", "172.17.0.1"]),
        ([entry("fd7a::1", "tailscale0", kind="tunnel"), entry("8.8.4.4")], "", "", ["8.8.4.4", "fd7a::1"]),
        ([entry("100.64.0.9", "ts0"), entry("8.8.4.4")], "", "", ["8.8.4.4", "100.64.0.9"]),
        ([entry("fd00::5", "eth0"), entry("10.0.0.5", "eth1")], "", "", ["10.0.0.5", "fd00::5"]),
        ([entry("10.0.0.5", speed=1000), entry("10.1.0.5", "ib0", speed=100000)], "", "", ["10.1.0.5", "10.0.0.5"]),
        # gloo announces the first address of an interface, so the others are none.
        ([entry("10.0.0.5"), entry("10.0.0.99"), entry("fd00::5")], "10.0.0.99", "", ["10.0.0.5"]),
        ([entry("fd00::5"), entry("fd00::6")], "", "", ["fd00::5"]),
        # Translated on the way: only for the diagnosis, and never a name or a private one.
        ([entry("10.0.0.5")], "", "8.8.4.4", ["10.0.0.5", "8.8.4.4"]),
        ([entry("8.8.4.4")], "", "8.8.4.4", ["8.8.4.4"]),
        ([entry("10.0.0.5")], "", "gpu1.example.org", ["10.0.0.5"]),
        ([entry("10.0.0.5")], "", "127.0.0.1", ["10.0.0.5"]),
        ([], "", "", []),
    ],
)
def test_addresses_in_order(entries: list[InterfaceAddress], preferred: str, public: str, expected: list[str]) -> None:
    found = list_candidates(entries, preferred, public)
    assert [one.address for one in found] == expected
    assert [bool(one.interface) for one in found] == [one.address in {e.address for e in entries} for one in found]


class World:
    """Nodes, and which ways between them are open."""

    def __init__(self, *nodes: Sequence[str], machines: Sequence[str] = ()) -> None:
        self.parties = [
            Peer(
                [
                    Candidate(name.lstrip("~"), "" if name.startswith("~") else f"eth{at}")
                    for at, name in enumerate(names)
                ],
                PORTS[index],
                machines[index] if machines else f"m{index}",
            )
            for index, names in enumerate(nodes)
        ]
        self.ways: dict[NetworkPath, ProbeResult] = {
            (start, end, one.address, port): ProbeResult(ReachState.OK)
            for end, party in enumerate(self.parties)
            for start in range(len(nodes))
            if start != end
            for one in party.candidates
            for port in party.ports
        }

    def cut(
        self, start: int, end: int, address: str, state: str = "timed-out", port: int | None = None, why: str = ""
    ) -> World:
        for way in self.ways:
            if way[:3] == (start, end, address) and port in (None, way[3]):
                self.ways[way] = ProbeResult(ReachState(state), why, f"10.0.0.{start}")
        return self

    def spots(self) -> list[Endpoint]:
        return choose_endpoints(without_shared_addresses(self.parties), self.ways)

    def error(self) -> NodeError:
        with pytest.raises(NodeError) as raised:
            self.spots()
        return raised.value


def test_the_first_that_all_reach() -> None:
    world = World(["10.0.0.0", "8.8.4.4"], ["10.0.0.1", "8.8.8.8"])
    assert world.spots() == [Endpoint("10.0.0.0", "eth0"), Endpoint("10.0.0.1", "eth0")]
    world.cut(1, 0, "10.0.0.0")
    assert world.spots() == [Endpoint("8.8.4.4", "eth1"), Endpoint("10.0.0.1", "eth0")]


def test_one_blocked_port_is_enough() -> None:
    world = World(["10.0.0.0", "8.8.4.4"], ["10.0.0.1"]).cut(1, 0, "10.0.0.0", port=40000)
    assert world.spots()[0] == Endpoint("8.8.4.4", "eth1")


def test_a_bridge_that_every_machine_has_is_nobodys() -> None:
    world = World(["172.17.0.1", "10.0.0.0"], ["172.17.0.1", "10.0.0.1"])
    assert [spot.address for spot in world.spots()] == ["10.0.0.0", "10.0.0.1"]


def test_a_bridge_that_leads_to_oneself_does_not_count() -> None:
    world = World(["172.17.0.1", "10.0.0.0"], ["10.0.0.1"]).cut(1, 0, "172.17.0.1", "other")
    assert [spot.address for spot in world.spots()] == ["10.0.0.0", "10.0.0.1"]


def test_ipv6_alone() -> None:
    assert [spot.address for spot in World(["fd00::5"], ["fd00::6"]).spots()] == ["fd00::5", "fd00::6"]


def test_nodes_on_one_machine_have_one_address() -> None:
    shared = ["10.0.0.0", "8.8.4.4"]
    world = World(shared, shared, ["10.0.0.2"], machines=["a", "a", "b"])
    assert [spot.address for spot in world.spots()] == ["10.0.0.0", "10.0.0.0", "10.0.0.2"]
    world.cut(2, 1, "10.0.0.0", "refused")
    assert [spot.address for spot in world.spots()] == ["8.8.4.4", "8.8.4.4", "10.0.0.2"]


def test_one_direction_of_one_pair_is_named() -> None:
    error = World(["10.0.0.0"], ["10.0.0.1"]).cut(1, 0, "10.0.0.0").error()
    assert error.message == (
        "node1 cannot reach node0 at 10.0.0.0 port 23456 (no answer, as where a firewall drops it)"
    )
    assert error.hint == (
        "allow TCP to 10.0.0.0 (node0) from 10.0.0.1 (node1), all ports: torchrun, gloo and NCCL choose their own"
    )


def test_one_cut_pair_of_three_is_named() -> None:
    error = World(["10.0.0.0"], ["10.0.0.1"], ["10.0.0.2"]).cut(2, 1, "10.0.0.1", "refused").error()
    assert error.message == (
        "node2 cannot reach node1 at 10.0.0.1 port 40001 "
        "(refused, though node1 listens: a firewall rejects it, or another machine has this address)"
    )
    assert "allow TCP to 10.0.0.1 (node1) from 10.0.0.2 (node2)" in error.hint


def test_what_is_open_is_said_too() -> None:
    error = World(["10.0.0.0"], ["10.0.0.1"]).cut(1, 0, "10.0.0.0", port=40000).error()
    assert "port 40000 (no answer, as where a firewall drops it), though port 23456 is open" in error.message


def test_many_cut_ways_are_counted() -> None:
    world = World(["10.0.0.0"], ["10.0.0.1"], ["10.0.0.2"])
    for start, end in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)):
        world.cut(start, end, f"10.0.0.{end}")
    error = world.error()
    assert [part[:30] for part in error.message.split("; ")] == [
        "node1 cannot reach node0 at 10", "node2 cannot reach node0 at 10", "node0 cannot reach node1 at 10",
    ]  # fmt: skip
    assert error.message.endswith(", and 3 more such ways are cut")


def test_two_halves_that_need_different_addresses() -> None:
    world = World(["10.0.0.0", "10.9.0.0"], ["10.0.0.1"], ["10.0.0.2"])
    error = world.cut(2, 0, "10.0.0.0", "no-route", why="No route to host").cut(1, 0, "10.9.0.0").error()
    assert error.message == (
        "node1 cannot reach node0 at 10.9.0.0 port 23456 (no answer, as where a firewall drops it), only at 10.0.0.0"
    )


def test_a_translated_address_is_no_place_to_meet() -> None:
    error = World(["10.0.0.0", "~8.8.4.4"], ["10.0.0.1"]).cut(1, 0, "10.0.0.0").error()
    assert error.message.endswith("only at 8.8.4.4, which gloo and NCCL cannot use")
    assert error.hint == "put the nodes into one network, or join them by a VPN (WireGuard, Tailscale)"


def test_a_stranger_at_the_address() -> None:
    error = World(["10.0.0.0"], ["10.0.0.1"]).cut(0, 1, "10.0.0.1", "other").error()
    assert "node0 cannot reach node1 at 10.0.0.1 port 40001 (something else answers there" in error.message
    assert error.hint.startswith("give node1 an address of its own")


@pytest.mark.parametrize("names", [[], ["~8.8.4.4"], ["10.0.0.1"]])
def test_a_node_without_an_address_of_its_own(names: list[str]) -> None:
    error = World(names, ["10.0.0.1"]).error()
    assert error.message.startswith("node0 has no network address of its own")


def test_what_was_never_answered_counts_as_silence() -> None:
    world = World(["10.0.0.0"], ["10.0.0.1"])
    world.ways.clear()
    assert "no answer" in world.error().message
