"""Choose the address at which each node of a run is reached by all others, or explain why there is none. Pure.

A run needs one address per node that all others reach. gloo and NCCL announce the first address of an
interface and listen on ports of their own choice: no other address of it, and no port that was forwarded or
translated on the way, is of any use to them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuops.agent.network.probe import ReachState
from gpuops.core.errors import NodeError

if TYPE_CHECKING:
    from gpuops.transport.schemas import InterfaceAddress

MAX_SHOWN_FAILURES = 3
"""How many failed paths an error explains in full."""
MAX_CANDIDATES = 8
"""How many addresses of one node are probed."""
CARRIER_GRADE_NAT = ipaddress.ip_network("100.64.0.0/10")
"""The shared address space (RFC 6598) of carriers and overlay networks (Tailscale): neither private nor public."""
VPN_HINT = "put the nodes into one network, or join them by a VPN (WireGuard, Tailscale)"


@dataclass(frozen=True)
class Candidate:
    """An address that a node may be reached at. Without an interface it belongs to a NAT in front of the node."""

    address: str
    interface: str = ""


@dataclass(frozen=True)
class Peer:
    """One node: its addresses, best first; the ports that it listens on; which machine it is on."""

    candidates: Sequence[Candidate]
    ports: Sequence[int]
    machine: str


@dataclass(frozen=True)
class ProbeResult:
    """The result of one node's attempt to reach an address and port of another (`reach` in docs/protocol.md)."""

    state: ReachState
    why: str = ""
    source: str = ""
    """The address that the attempt came from."""


NetworkPath = tuple[int, int, str, int]
"""(from node, to node, address, port)."""
PathResults = Mapping[NetworkPath, ProbeResult]
OTHER_MACHINE = "another machine has this address"
NO_RESPONSE = ProbeResult(ReachState.TIMED_OUT)


@dataclass(frozen=True)
class Endpoint:
    """The address at which the other nodes reach a node, and the interface that has this address."""

    address: str
    interface: str


@dataclass(frozen=True)
class Rendezvous:
    """Every node's endpoint. `ports`: ports of node0 that all nodes reached, for torchrun and for the gang link."""

    endpoints: Sequence[Endpoint]
    ports: Sequence[int] = ()


def list_candidates(entries: Sequence[InterfaceAddress], preferred: str, public: str) -> list[Candidate]:
    """A node's addresses, best first, of `addresses` (docs/protocol.md), with `public` for the diagnosis.

    The provider's private address comes first, then private before public ones, tunnels and bridges last; of
    equals the faster interface, where it says, and IPv4 before IPv6.
    """
    announced: dict[str, InterfaceAddress] = {}
    for entry in entries:
        announced.setdefault(entry.interface, entry)
    ordered = sorted(announced.values(), key=lambda entry: (entry.address != preferred, _address_rank(entry)))
    own = [Candidate(entry.address, entry.interface) for entry in ordered][:MAX_CANDIDATES]
    foreign = public and _is_global(public) and public not in {entry.address for entry in entries}
    return [*own, Candidate(public)] if foreign else own


def _address_rank(entry: InterfaceAddress) -> tuple[int, int, int, int]:
    address = ipaddress.ip_address(entry.address)
    kind = {"direct": 0, "bridge": 1}.get(entry.kind, 2)
    if address.version == 4 and address in CARRIER_GRADE_NAT:
        kind = 2
    return kind, int(address.is_global), -(entry.speed or 0), address.version


def _is_global(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False  # a host name, which is not resolved here


def without_shared_addresses(peers: Sequence[Peer]) -> list[Peer]:
    """Drop addresses that two machines have: a container bridge's address leads each machine to itself."""
    owners: dict[str, set[str]] = {}
    for peer in peers:
        for candidate in peer.candidates:
            owners.setdefault(candidate.address, set()).add(peer.machine)
    return [
        Peer(
            [candidate for candidate in peer.candidates if len(owners[candidate.address]) == 1],
            peer.ports,
            peer.machine,
        )
        for peer in peers
    ]


def choose_endpoints(peers: Sequence[Peer], results: PathResults) -> list[Endpoint]:
    """Each node's endpoint: its first address that all others reach. Raises NodeError, which names the paths that fail.

    Nodes on one machine have one address in common.
    """
    endpoints = [_choose_endpoint(peers, results, peer) for peer in peers]
    missing = [node for node, endpoint in enumerate(endpoints) if endpoint is None]
    if missing:
        raise _unreachable_error(peers, results, missing)
    return [endpoint for endpoint in endpoints if endpoint is not None]


def _choose_endpoint(peers: Sequence[Peer], results: PathResults, peer: Peer) -> Endpoint | None:
    same_machine = [index for index, other in enumerate(peers) if other.machine == peer.machine]
    for candidate in peer.candidates:
        if candidate.interface and not any(
            _nodes_cut_off(peers, results, node, candidate.address) for node in same_machine
        ):
            return Endpoint(candidate.address, candidate.interface)
    return None


def _nodes_cut_off(peers: Sequence[Peer], results: PathResults, node: int, address: str) -> list[int]:
    """The nodes that do not reach `node` at this address, on all of its ports."""
    return [
        other
        for other in range(len(peers))
        if other != node and _failed_ports(results, other, node, address, peers[node].ports)
    ]


def _failed_ports(
    results: PathResults, start: int, end: int, address: str, ports: Sequence[int]
) -> dict[int, ProbeResult]:
    tried = {port: results.get((start, end, address, port), NO_RESPONSE) for port in ports}
    return {port: result for port, result in tried.items() if result.state is not ReachState.OK}


def _unreachable_error(peers: Sequence[Peer], results: PathResults, missing: Sequence[int]) -> NodeError:
    """Explain every failed path to the `missing` nodes, at the address of each that most nodes reach."""
    failures, hints = [], []
    for node in missing:
        own = [candidate.address for candidate in peers[node].candidates if candidate.interface]
        if not own:
            failures.append(f"node{node} has no network address of its own that the other nodes could use")
            hints.append(VPN_HINT)
            continue
        address = min(own, key=lambda own_address: _failure_rank(peers, results, node, own_address))
        for other in _nodes_cut_off(peers, results, node, address):
            say, hint = _explain_failure(peers, results, other, node, address)
            failures.append(say)
            hints.append(hint)
    more = (
        f", and {len(failures) - MAX_SHOWN_FAILURES} more such ways are cut"
        if len(failures) > MAX_SHOWN_FAILURES
        else ""
    )
    return NodeError("; ".join(failures[:MAX_SHOWN_FAILURES]) + more, _join_hints(hints[:MAX_SHOWN_FAILURES]))


def _failure_rank(peers: Sequence[Peer], results: PathResults, node: int, address: str) -> tuple[int, int]:
    """How bad an address is: (nodes that do not reach it, failures that look like another machine's address)."""
    cut = _nodes_cut_off(peers, results, node, address)
    ports = peers[node].ports
    foreign = sum(
        failure.state in (ReachState.OTHER, ReachState.NO_ROUTE)
        for other in cut
        for failure in _failed_ports(results, other, node, address, ports).values()
    )
    return len(cut), foreign


def _explain_failure(
    peers: Sequence[Peer], results: PathResults, start: int, end: int, address: str
) -> tuple[str, str]:
    """One failed path as part of a sentence, and a hint."""
    failures = _failed_ports(results, start, end, address, peers[end].ports)
    port, first = min(failures.items())
    source = first.source or "its address"
    what = f"node{start} cannot reach node{end} at {address} port {port}"
    known = {
        ReachState.TIMED_OUT: "no answer, as where a firewall drops it",
        ReachState.REFUSED: f"refused, though node{end} listens: a firewall rejects it, or {OTHER_MACHINE}",
        ReachState.NO_ROUTE: f"{first.why or 'no route'}: a firewall rejects it, or no network leads there",
        ReachState.OTHER: f"something else answers there: {OTHER_MACHINE}, or something stands in between",
    }
    say = f"{what} ({known.get(first.state, first.why or 'it fails')})"
    if through := sorted(set(peers[end].ports) - set(failures)):
        say = f"{say}, though port {through[0]} is open"
    for other in peers[end].candidates:
        if other.address != address and not _failed_ports(results, start, end, other.address, peers[end].ports):
            if not other.interface:
                return f"{say}, only at {other.address}, which gloo and NCCL cannot use", VPN_HINT
            say = f"{say}, only at {other.address}"
            break
    if first.state is ReachState.OTHER:
        return say, f"give node{end} an address of its own, or {VPN_HINT}"
    return say, f"allow TCP to {address} (node{end}) from {source} (node{start}), all ports"


def _join_hints(hints: Sequence[str]) -> str:
    """The hints without repetitions."""
    text = "; ".join(dict.fromkeys(hints))
    return f"{text}: torchrun, gloo and NCCL choose their own" if text.endswith("all ports") else text
