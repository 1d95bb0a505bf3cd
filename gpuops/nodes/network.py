"""Before a launch on several machines: does every node reach every other, where, and how well?

Each node listens on the ports that the run will use and, since gloo and NCCL choose their own, on one more of
the kernel's choice; each tries every address of every other. `gpuops.nodes.rendezvous` chooses the endpoints.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuops.agent.network.probe import ReachState
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, MalformedAnswer
from gpuops.core.parallel import on_each
from gpuops.nodes.rendezvous import (
    Endpoint,
    NetworkPath,
    Peer,
    ProbeResult,
    Rendezvous,
    choose_endpoints,
    list_candidates,
    without_shared_addresses,
)
from gpuops.nodes.session import ClusterSession
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.schemas import ConnectionAttempt, ListeningPorts, MachineAddresses, ReachReport, Route

PROBE_TIMEOUT_S = 10.0
"""Time limit for an address to answer: its node may be busy."""
SETTLE_S = 1.5
"""Once a node was reached, how long its other addresses are waited for: TCP retransmits a lost packet after 1 s."""
LISTEN_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 15.0
"""Time limit for an agent's answer to each request."""
LAUNCH_PORTS = 2
"""On the head: torchrun's and the gang link's."""
SLOW_MB_S = 50.0
GRADIENTS_MB = 100
MAX_CLOCK_SKEW_S = 5.0
MAX_SHOWN_NODES = 4
"""How many nodes are shown with their addresses."""


@dataclass(frozen=True)
class LinkSpeed:
    """How fast one node reaches another: milliseconds to connect, MB/s; None where that was not measured."""

    start: int
    end: int
    ms: float | None
    mb_s: float | None


def find_rendezvous(ctx: Context, session: ClusterSession, nodes: int, *, alone: bool) -> Rendezvous:
    """Probe the network between the first `nodes` nodes, print what was found, and choose endpoints. Raises NodeError.

    `alone`: no traffic of the run leaves a node, or all nodes are on this computer. Then, and where all nodes turn out
    to be on one machine, they use its loopback interface, which is not probed.
    """
    clients = session.clients[:nodes]
    if alone or nodes == 1:
        return _loopback_rendezvous(clients)
    networks: list[MachineAddresses] = on_each(
        lambda client: client.call("addresses", timeout=ANSWER_TIMEOUT_S), clients
    )
    if len({_machine_identity(network) for network in networks}) == 1:
        return _loopback_rendezvous(clients)
    if note := describe_clock_skew(session.skews[:nodes]):
        ctx.out.say(f"note: {note}")
    return _probe_network(ctx, session, clients, networks)


def _loopback_rendezvous(clients: Sequence[AgentClient]) -> Rendezvous:
    routes: list[Route] = on_each(lambda client: client.call("route", to="127.0.0.1"), clients)
    return Rendezvous([Endpoint(route.address, route.interface) for route in routes])


def _machine_identity(network: MachineAddresses) -> str:
    """Which machine a node is on. Copies of one virtual machine may agree in all but their addresses."""
    return " ".join([network.machine, *sorted(entry.address for entry in network.addresses)])


def _probe_network(
    ctx: Context, session: ClusterSession, clients: Sequence[AgentClient], networks: Sequence[MachineAddresses]
) -> Rendezvous:
    token = secrets.token_hex(32)
    with _listening(clients, token) as ports:
        peers = without_shared_addresses(
            [
                Peer(
                    list_candidates(network.addresses, machine.private_address, machine.address),
                    ports[index],
                    _machine_identity(network),
                )
                for index, (machine, network) in enumerate(zip(session.machines, networks, strict=False))
            ]
        )
        results = _probe_paths(clients, token, peers)
        endpoints = choose_endpoints(peers, results)
        ring = _measure_ring(clients, token, endpoints, ports)
    for line in format_report(endpoints, ring):
        ctx.out.say(line)
    return Rendezvous(endpoints, ports[0][:LAUNCH_PORTS])


@contextmanager
def _listening(clients: Sequence[AgentClient], token: str) -> Iterator[list[list[int]]]:
    """Each node listens on its ports (node0's two launch ports come first) until the context ends."""

    def listen(index: int) -> list[int]:
        fresh = LAUNCH_PORTS if index == 0 else 0
        answer: ListeningPorts = clients[index].call(
            "listen",
            timeout=ANSWER_TIMEOUT_S,
            node=index,
            token=token,
            fresh=fresh,
            ephemeral=1,
            for_s=LISTEN_TIMEOUT_S,
        )
        if (len(answer.fresh), len(answer.ephemeral)) != (fresh, 1):
            raise MalformedAnswer(clients[index].label, "to 'listen': more ports than were asked for, or fewer")
        return [*answer.fresh, *answer.ephemeral]

    try:
        yield on_each(listen, range(len(clients)))
    finally:
        on_each(lambda client: _release(client, token), clients)


def _release(client: AgentClient, token: str) -> None:
    try:
        client.call("release", timeout=ANSWER_TIMEOUT_S, token=token)
    except GpuopsError:
        pass  # its listeners time out by themselves, and the next request reports that it is unreachable


def _reach_state(word: str) -> ReachState:
    """FAILED for a word that this gpuops does not know, which an agent of another version may say."""
    return ReachState(word) if word in [*ReachState] else ReachState.FAILED


def _probe_paths(clients: Sequence[AgentClient], token: str, peers: Sequence[Peer]) -> dict[NetworkPath, ProbeResult]:
    """All nodes try to reach all others, at the same time."""

    def probe_from(start: int) -> dict[NetworkPath, ProbeResult]:
        targets = [
            {"node": end, "places": [[candidate.address, port] for candidate in peer.candidates for port in peer.ports]}
            for end, peer in enumerate(peers)
            if end != start
        ]
        return {
            (start, tried.node, tried.address, tried.port): ProbeResult(
                _reach_state(tried.state), tried.why, tried.source
            )
            for tried in _call_reach(clients[start], start, token, targets, burst=False)
        }

    return {path: tried for tries in on_each(probe_from, range(len(clients))) for path, tried in tries.items()}


def _call_reach(
    client: AgentClient, start: int, token: str, targets: Sequence[Mapping[str, Any]], *, burst: bool
) -> list[ConnectionAttempt]:
    timing = {"limit_s": PROBE_TIMEOUT_S, "settle_s": SETTLE_S}
    arguments: dict[str, Any] = {"from": start, "token": token, "targets": targets, "burst": burst, **timing}
    reached: ReachReport = client.call("reach", timeout=PROBE_TIMEOUT_S + ANSWER_TIMEOUT_S, **arguments)
    return reached.tried


def _measure_ring(
    clients: Sequence[AgentClient], token: str, endpoints: Sequence[Endpoint], ports: Sequence[Sequence[int]]
) -> list[LinkSpeed]:
    """Measure how fast each node reaches the next one: NCCL and gloo add up gradients along such a ring, too."""

    def measure_from(start: int) -> list[LinkSpeed]:
        end = (start + 1) % len(clients)
        target = {"node": end, "places": [[endpoints[end].address, ports[end][-1]]]}
        attempts = _call_reach(clients[start], start, token, [target], burst=True)
        return [LinkSpeed(start, attempt.node, attempt.ms, attempt.mb_s) for attempt in attempts]

    return [speed for speeds in on_each(measure_from, range(len(clients))) for speed in speeds]


def format_report(endpoints: Sequence[Endpoint], ring: Sequence[LinkSpeed]) -> list[str]:
    """`network: eth0, 10.0.0.5 (node0) and 10.0.0.6 (node1), 0.2 ms, 1.1 GB/s`, and a note where that is slow.

    The slowest link of the ring counts.
    """
    interfaces = {endpoint.interface for endpoint in endpoints}
    shared = f"{endpoints[0].interface}, " if len(interfaces) == 1 else ""
    names = [
        f"{'' if shared else endpoint.interface + ' '}{endpoint.address} (node{node})"
        for node, endpoint in enumerate(endpoints)
    ]
    if len(names) > MAX_SHOWN_NODES:
        names = [*names[: MAX_SHOWN_NODES - 2], "…", names[-1]]
    delays = [speed.ms for speed in ring if speed.ms is not None]
    slowest = min((speed for speed in ring if speed.mb_s), key=lambda speed: speed.mb_s or 0.0, default=None)
    parts = [f"{', '.join(names[:-1])} and {names[-1]}"]
    parts += [f"{_two_digits(max(delays))} ms"] if delays else []
    parts += [_format_rate(slowest.mb_s)] if slowest and slowest.mb_s else []
    lines = [f"network: {shared}{', '.join(parts)}"]
    if slowest and slowest.mb_s and slowest.mb_s < SLOW_MB_S:
        lines.append(_slow_network_note(slowest, slowest.mb_s, len(endpoints)))
    return lines


def _slow_network_note(slowest: LinkSpeed, mb_s: float, nodes: int) -> str:
    seconds = 2 * (nodes - 1) / nodes * GRADIENTS_MB / mb_s
    return (
        f"note: the network is slow: DistributedDataParallel takes about {_two_digits(seconds)} s a step to add up "
        f"{GRADIENTS_MB} MB of gradients ({GRADIENTS_MB // 4} million parameters), since node{slowest.start} sends "
        f"{_format_rate(mb_s)} to node{slowest.end}"
    )


def _two_digits(number: float) -> str:
    """A number with two significant digits."""
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 0.1 else f"{number:.2f}"


def _format_rate(mb_s: float) -> str:
    return f"{_two_digits(mb_s / 1000)} GB/s" if mb_s >= 1000 else f"{_two_digits(mb_s)} MB/s"


def describe_clock_skew(skews: Sequence[float]) -> str:
    """A note on clocks that differ between nodes, which stops no run; empty where they agree."""
    difference_s = max(skews, default=0.0) - min(skews, default=0.0)
    if difference_s <= MAX_CLOCK_SKEW_S:
        return ""
    slow, fast = skews.index(max(skews)), skews.index(min(skews))
    return (
        f"the clock of node{slow} is {difference_s:.0f} s behind that of node{fast}; times that a program writes do "
        "not compare (is NTP on?)"
    )
