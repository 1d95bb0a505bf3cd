"""The probe between real agents: on one machine, and on several, which are network namespaces of this one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.errors import NodeError
from gpuops.core.models import Resource
from gpuops.nodes.network import find_rendezvous
from gpuops.nodes.rendezvous import Endpoint, Rendezvous
from gpuops.nodes.session import ClusterSession
from gpuops.transport.connection import ProcessChannel, ProcessConnection
from tests.integration.agent.conftest import RealNode

OWN_NETWORK = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "nft")), reason="needs root, ip and nft"
)
MakeNode = Callable[..., RealNode]


def met(nodes: Sequence[RealNode], alone: bool = False, **machine: str) -> tuple[Rendezvous, list[str]]:
    """What the probe finds, and what it says."""
    said: list[str] = []
    world = cast(Any, SimpleNamespace(out=SimpleNamespace(say=said.append)))
    machines = [Resource("machine", f"m{index}", "", f"m{index}", False, **machine) for index in range(len(nodes))]
    live = ClusterSession(cast(Any, None), machines, [node.client() for node in nodes], skews=[0.0] * len(nodes))
    try:
        return find_rendezvous(world, live, len(nodes), alone=alone), said
    finally:
        for client in live.clients:
            client.close()


@pytest.mark.parametrize("alone", [True, False])
def test_nodes_of_one_machine_meet_on_loopback(make_node: MakeNode, alone: bool) -> None:
    meeting, said = met([make_node(0), make_node(1)], alone)
    assert meeting == Rendezvous([Endpoint("127.0.0.1", "lo")] * 2)
    assert said == []


def test_agents_prove_who_they_are(make_node: MakeNode) -> None:
    clients = [make_node(index).client() for index in range(2)]
    ports = [
        client.call("listen", node=index, token="t", ephemeral=1, for_s=30.0).ephemeral[0]
        for index, client in enumerate(clients)
    ]
    places = [["127.0.0.3", ports[1]], ["127.0.0.4", ports[0]]]
    arguments: dict[str, Any] = {"from": 0, "targets": [{"node": 1, "places": places}], "limit_s": 10.0}
    tried = clients[0].call("reach", token="t", **arguments).tried
    assert [one.state for one in tried] == ["ok", "other"]
    for client in clients:
        client.call("release", token="t")
    tried = clients[0].call("reach", token="t", **arguments).tried
    assert [one.state for one in tried] == ["refused", "refused"]


class Inside(ProcessConnection):
    """Programs are started in a network namespace."""

    def __init__(self, label: str, space: str) -> None:
        super().__init__(label)
        self._space = space

    def open(self, argv: Sequence[str], early: bytes = b"") -> ProcessChannel:
        return super().open(["ip", "netns", "exec", self._space, *argv], early)


class Lan:
    """Machines at one switch. Machine i is 10.77.0.(5+i) and fd77::(5+i) on `lan0`."""

    def __init__(self, make_node: MakeNode) -> None:
        self._make = make_node
        self._spaces: list[str] = []
        self.nodes: list[RealNode] = []
        self._switch = self._space("switch")
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")

    def _space(self, name: str) -> str:
        space = f"gpuops-{os.getpid()}-{name}"
        ip("netns", "add", space)
        self._spaces.append(space)
        ip("-n", space, "link", "set", "lo", "up")
        return space

    def machine(self, *, v4: bool = True, v6: bool = False, nodes: int = 1) -> None:
        """One more machine, and its nodes."""
        index = len(self._spaces) - 1
        space = self._space(f"m{index}")
        far = ["peer", "name", f"to{index}", "netns", self._switch]
        ip("-n", space, "link", "add", "lan0", "type", "veth", *far)
        ip("-n", self._switch, "link", "set", f"to{index}", "master", "br0", "up")
        if v4:
            ip("-n", space, "addr", "add", f"10.77.0.{5 + index}/24", "dev", "lan0")
        if v6:
            ip("-n", space, "addr", "add", f"fd77::{5 + index}/64", "dev", "lan0", "nodad")
        ip("-n", space, "link", "set", "lan0", "up")
        for _ in range(nodes):
            node = self._make(len(self.nodes), under=f"m{index}", init=False)
            node.connection = Inside(f"node{node.index}", space)
            node.init()
            self.nodes.append(node)

    def docker(self, index: int, address: str = "172.17.0.1") -> None:
        """A container bridge with a container, as docker makes one."""
        space = self._spaces[1 + index]
        ip("-n", space, "link", "add", "docker0", "type", "bridge")
        ip("-n", space, "addr", "add", f"{address}/16", "dev", "docker0")
        ip("-n", space, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
        ip("-n", space, "link", "set", "veth0", "master", "docker0", "up")
        ip("-n", space, "link", "set", "veth1", "up")
        ip("-n", space, "link", "set", "docker0", "up")

    def rule(self, index: int, rule: str) -> None:
        """A rule for what comes in to a machine."""
        rules = f"table inet t {{\nchain c {{\ntype filter hook input priority 0\n{rule}\n}}\n}}\n"
        firewall = ["ip", "netns", "exec", self._spaces[1 + index], "nft", "-f", "-"]
        subprocess.run(firewall, input=rules, text=True, check=True)

    def end(self) -> None:
        for node in self.nodes:
            assert node.end("--remove")["left"] == 0
        for space in self._spaces:
            ip("netns", "del", space)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def lan(make_node: MakeNode) -> Iterator[Lan]:
    lan = Lan(make_node)
    yield lan
    lan.end()


@OWN_NETWORK
def test_two_machines_with_docker_meet_on_their_network(lan: Lan) -> None:
    for index in range(2):
        lan.machine(v6=True)
        lan.docker(index)
    meeting, said = met(lan.nodes)
    assert meeting.endpoints == [Endpoint("10.77.0.5", "lan0"), Endpoint("10.77.0.6", "lan0")]
    assert len(said) == 1
    assert said[0].startswith("network: lan0, 10.77.0.5 (node0) and 10.77.0.6 (node1), ")
    assert "B/s" in said[0]
    # The ports that were proven are free for the launch, at once.
    for port in meeting.ports:
        gang = {"address": "10.77.0.5", "port": port}
        for node in lan.nodes:
            node.start(f"r-{port}", ["true"], secret="s", nodes=2, gang=gang)
        assert [node.result(f"r-{port}")["outcome"] for node in lan.nodes] == ["done", "done"]


@OWN_NETWORK
def test_a_bridge_that_leads_nowhere_is_passed_over(lan: Lan) -> None:
    lan.machine()
    lan.machine()
    lan.docker(0)
    meeting, _ = met(lan.nodes, private_address="172.17.0.1")
    assert meeting.endpoints[0] == Endpoint("10.77.0.5", "lan0")


@OWN_NETWORK
@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        ("drop", "no answer"),
        ("reject with tcp reset", "refused"),
        ("reject with icmpx type admin-prohibited", "No route to host"),
    ],
)
def test_one_blocked_direction_is_named(lan: Lan, verdict: str, why: str) -> None:
    lan.machine()
    lan.machine()
    lan.rule(0, f"ip saddr 10.77.0.6 tcp dport != 22 ct state new {verdict}")
    with pytest.raises(NodeError) as raised:
        met(lan.nodes)
    assert raised.value.message.startswith("node1 cannot reach node0 at 10.77.0.5 port ")
    assert why in raised.value.message
    assert "node0 cannot" not in raised.value.message
    assert raised.value.hint.startswith("allow TCP to 10.77.0.5 (node0) from 10.77.0.6 (node1), all ports")


@OWN_NETWORK
def test_the_ports_that_gloo_chooses_must_be_open_too(lan: Lan) -> None:
    lan.machine()
    lan.machine()
    lan.rule(0, "tcp dport >= 32768 ct state new drop")
    with pytest.raises(NodeError, match=r"10\.77\.0\.5 port \d+ \(no answer.*\), though port [23]\d+ is open"):
        met(lan.nodes)


@OWN_NETWORK
def test_nodes_beside_each_other_and_one_elsewhere_on_ipv6_alone(lan: Lan) -> None:
    lan.machine(v4=False, v6=True, nodes=2)
    lan.machine(v4=False, v6=True)
    meeting, said = met(lan.nodes)
    assert meeting.endpoints == [Endpoint("fd77::5", "lan0"), Endpoint("fd77::5", "lan0"), Endpoint("fd77::6", "lan0")]
    assert said[0].startswith("network: lan0, fd77::5 (node0), fd77::5 (node1) and fd77::6 (node2), ")
    gang = {"address": "fd77::5", "port": meeting.ports[1]}
    for node in lan.nodes:
        node.start("r-1", ["true"], secret="s", nodes=3, gang=gang)
    assert [node.result("r-1")["outcome"] for node in lan.nodes] == ["done"] * 3


@OWN_NETWORK
def test_a_machine_without_a_network_of_its_own(lan: Lan) -> None:
    lan.machine()
    lan.machine(v4=False)
    with pytest.raises(NodeError, match="node1 has no network address of its own"):
        met(lan.nodes)
