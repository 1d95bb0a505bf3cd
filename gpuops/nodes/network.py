"""Before a launch on several machines: does every node reach every other, where, and how well?

Each node listens on the ports that the run will use and, since gloo and NCCL choose their own, on one more of
the kernel's choice; each tries every address of every other. `gpuops.nodes.rendezvous` decides what that means.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, MalformedAnswer
from gpuops.core.parallel import on_each
from gpuops.nodes.rendezvous import Meeting, Party, Spot, Tried, Way, candidates, decide, distinct
from gpuops.nodes.session import ClusterSession
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.answers import Addresses, Attempt, Listening, Reached, Route

LIMIT_S = 10.0
"""How long an address may take to answer: its node may be busy."""
SETTLE_S = 1.5
"""How long other addresses of a node that was reached are still waited for: a lost packet is sent again after 1 s."""
LISTEN_S = 60.0
ANSWER_S = 15.0
"""How long an agent may take over each of its parts, in seconds."""
LAUNCH_PORTS = 2
"""On the head: torchrun's and the gang link's."""
SLOW_MB_S = 50.0
GRADIENTS_MB = 100
SKEW_S = 5.0
NAMED = 4
"""So many nodes are shown with their addresses."""


@dataclass(frozen=True)
class Speed:
    """How fast one node reaches another: milliseconds to connect, MB/s; None where that was not measured."""

    start: int
    end: int
    ms: float | None
    mb_s: float | None


def meet(ctx: Context, live: ClusterSession, nodes: int, *, alone: bool) -> Meeting:
    """Where the first `nodes` nodes meet; what was found is said. Raises NodeError.

    `alone`: nothing of the run leaves a node, or all of them are this computer. So do nodes that turn out to be on
    one machine meet on its loopback, which needs no proof.
    """
    clients = live.clients[:nodes]
    if alone or nodes == 1:
        return _loopback(clients)
    homes: list[Addresses] = on_each(lambda client: client.call("addresses", timeout=ANSWER_S), clients)
    if len({_machine(home) for home in homes}) == 1:
        return _loopback(clients)
    for note in notes(live, nodes):
        ctx.out.say(f"note: {note}")
    return _probed(ctx, live, clients, homes)


def _loopback(clients: Sequence[AgentClient]) -> Meeting:
    routes: list[Route] = on_each(lambda client: client.call("route", to="127.0.0.1"), clients)
    return Meeting([Spot(route.address, route.interface) for route in routes])


def _machine(home: Addresses) -> str:
    """Which machine a node is on. Copies of one virtual machine may agree in all but their addresses."""
    return " ".join([home.machine, *sorted(entry.address for entry in home.addresses)])


def _probed(ctx: Context, live: ClusterSession, clients: Sequence[AgentClient], homes: Sequence[Addresses]) -> Meeting:
    token = secrets.token_hex(32)
    with _listening(clients, token) as ports:
        parties = distinct(
            [
                Party(
                    candidates(home.addresses, machine.private_address, machine.address),
                    ports[index],
                    _machine(home),
                )
                for index, (machine, home) in enumerate(zip(live.machines, homes, strict=False))
            ]
        )
        ways = _reached(clients, token, parties)
        spots = decide(parties, ways)
        ring = _ring(clients, token, spots, ports)
    for line in report(spots, ring):
        ctx.out.say(line)
    return Meeting(spots, ports[0][:LAUNCH_PORTS])


@contextmanager
def _listening(clients: Sequence[AgentClient], token: str) -> Iterator[list[list[int]]]:
    """Each node's ports, the head's own two first; free again at the end."""

    def one(index: int) -> list[int]:
        fresh = LAUNCH_PORTS if index == 0 else 0
        answer: Listening = clients[index].call(
            "listen", timeout=ANSWER_S, node=index, token=token, fresh=fresh, ephemeral=1, for_s=LISTEN_S
        )
        if (len(answer.fresh), len(answer.ephemeral)) != (fresh, 1):
            raise MalformedAnswer(clients[index].label, "to 'listen': more ports than were asked for, or fewer")
        return [*answer.fresh, *answer.ephemeral]

    try:
        yield on_each(one, range(len(clients)))
    finally:
        on_each(lambda client: _release(client, token), clients)


def _release(client: AgentClient, token: str) -> None:
    try:
        client.call("release", timeout=ANSWER_S, token=token)
    except GpuopsError:
        pass  # its listeners end by themselves; that it is away is noticed by what comes next


def _reached(clients: Sequence[AgentClient], token: str, parties: Sequence[Party]) -> dict[Way, Tried]:
    """Every node's attempts at every other, all at once."""

    def one(start: int) -> dict[Way, Tried]:
        targets = [
            {"node": end, "places": [[one.address, port] for one in party.candidates for port in party.ports]}
            for end, party in enumerate(parties)
            if end != start
        ]
        return {
            (start, tried.node, tried.address, tried.port): Tried(tried.state, tried.why, tried.source)
            for tried in _reach(clients[start], start, token, targets, burst=False)
        }

    return {way: tried for tries in on_each(one, range(len(clients))) for way, tried in tries.items()}


def _reach(
    client: AgentClient, start: int, token: str, targets: Sequence[Mapping[str, Any]], *, burst: bool
) -> list[Attempt]:
    timing = {"limit_s": LIMIT_S, "settle_s": SETTLE_S}
    arguments: dict[str, Any] = {"from": start, "token": token, "targets": targets, "burst": burst, **timing}
    reached: Reached = client.call("reach", timeout=LIMIT_S + ANSWER_S, **arguments)
    return reached.tried


def _ring(
    clients: Sequence[AgentClient], token: str, spots: Sequence[Spot], ports: Sequence[Sequence[int]]
) -> list[Speed]:
    """How well each node reaches the next one: what gradients are added up along is a ring, too."""

    def one(start: int) -> list[Speed]:
        end = (start + 1) % len(clients)
        target = {"node": end, "places": [[spots[end].address, ports[end][-1]]]}
        attempts = _reach(clients[start], start, token, [target], burst=True)
        return [Speed(start, attempt.node, attempt.ms, attempt.mb_s) for attempt in attempts]

    return [speed for speeds in on_each(one, range(len(clients))) for speed in speeds]


def report(spots: Sequence[Spot], ring: Sequence[Speed]) -> list[str]:
    """`network: eth0, 10.0.0.5 (node0) and 10.0.0.6 (node1), 0.2 ms, 1.1 GB/s`, and a note where that is slow.

    What counts is the slowest way of the ring.
    """
    interfaces = {spot.interface for spot in spots}
    shared = f"{spots[0].interface}, " if len(interfaces) == 1 else ""
    names = [f"{'' if shared else spot.interface + ' '}{spot.address} (node{node})" for node, spot in enumerate(spots)]
    if len(names) > NAMED:
        names = [*names[: NAMED - 2], "…", names[-1]]
    delays = [speed.ms for speed in ring if speed.ms is not None]
    slowest = min((speed for speed in ring if speed.mb_s), key=lambda speed: speed.mb_s or 0.0, default=None)
    parts = [f"{', '.join(names[:-1])} and {names[-1]}"]
    parts += [f"{_short(max(delays))} ms"] if delays else []
    parts += [_rate(slowest.mb_s)] if slowest and slowest.mb_s else []
    lines = [f"network: {shared}{', '.join(parts)}"]
    if slowest and slowest.mb_s and slowest.mb_s < SLOW_MB_S:
        lines.append(_slow(slowest, slowest.mb_s, len(spots)))
    return lines


def _slow(slowest: Speed, mb_s: float, nodes: int) -> str:
    seconds = 2 * (nodes - 1) / nodes * GRADIENTS_MB / mb_s
    return (
        f"note: the network is slow: DistributedDataParallel takes about {_short(seconds)} s a step to add up "
        f"{GRADIENTS_MB} MB of gradients ({GRADIENTS_MB // 4} million parameters), since node{slowest.start} sends "
        f"{_rate(mb_s)} to node{slowest.end}"
    )


def _short(number: float) -> str:
    """Two digits that count."""
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 0.1 else f"{number:.2f}"


def _rate(mb_s: float) -> str:
    return f"{_short(mb_s / 1000)} GB/s" if mb_s >= 1000 else f"{_short(mb_s)} MB/s"


def notes(live: ClusterSession, nodes: int) -> list[str]:
    """What differs between machines and a user should know, though it stops nothing."""
    found = []
    skews = live.skews[:nodes]
    if skews and max(skews) - min(skews) > SKEW_S:
        slow, fast = skews.index(max(skews)), skews.index(min(skews))
        found.append(
            f"the clock of node{slow} is {max(skews) - min(skews):.0f} s behind that of node{fast}; times that a "
            "program writes do not compare (is NTP on?)"
        )
    return found
