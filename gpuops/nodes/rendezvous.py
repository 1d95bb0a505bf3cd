"""Where the nodes of a run meet: which of its addresses each node is reached at, or why there is none. Pure.

A run needs one address per node that all others reach. gloo and NCCL announce the first address of an
interface and listen on ports of their own choice: no other address of it, and no port that was forwarded or
translated on the way, is of any use to them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuops.core.errors import NodeError

if TYPE_CHECKING:
    from gpuops.transport.answers import Entry

SHOWN = 3
"""So many broken ways are told in full."""
MOST = 8
"""So many addresses of one node are tried."""
CARRIER = ipaddress.ip_network("100.64.0.0/10")
"""What carriers and overlay networks (Tailscale) give out: neither private nor public."""
VPN = "put the nodes into one network, or join them by a VPN (WireGuard, Tailscale)"


@dataclass(frozen=True)
class Candidate:
    """An address that a node may be reached at. Without an interface it is somebody else's, translated on the way."""

    address: str
    interface: str = ""


@dataclass(frozen=True)
class Party:
    """One node: its addresses, best first; the ports that it listens on; which machine it is on."""

    candidates: Sequence[Candidate]
    ports: Sequence[int]
    machine: str


@dataclass(frozen=True)
class Tried:
    """What came of one node's attempt at one place of another (`reach` in docs/protocol.md)."""

    state: str
    why: str = ""
    source: str = ""
    """The address that it came from."""


Way = tuple[int, int, str, int]
"""From a node, to a node, at an address, at a port."""
Ways = Mapping[Way, Tried]
SILENCE = Tried("timed-out")


@dataclass(frozen=True)
class Spot:
    """Where one node is reached, and the interface that this address is on."""

    address: str
    interface: str


@dataclass(frozen=True)
class Meeting:
    """Every node's spot. `ports` were proven to be reached on the first: for torchrun and for the gang link."""

    spots: Sequence[Spot]
    ports: Sequence[int] = ()


def candidates(entries: Sequence[Entry], preferred: str = "", public: str = "") -> list[Candidate]:
    """A node's addresses, best first, of `addresses` (docs/protocol.md), with `public` for the diagnosis.

    The provider's private address comes first, then private before public ones, tunnels and bridges last; of
    equals the faster interface, where it says, and IPv4 before IPv6.
    """
    announced: dict[str, Entry] = {}
    for entry in entries:
        announced.setdefault(entry.interface, entry)
    ordered = sorted(announced.values(), key=lambda entry: (entry.address != preferred, _rank(entry)))
    own = [Candidate(entry.address, entry.interface) for entry in ordered][:MOST]
    foreign = public and _is_global(public) and public not in {entry.address for entry in entries}
    return [*own, Candidate(public)] if foreign else own


def _rank(entry: Entry) -> tuple[int, int, int, int]:
    address = ipaddress.ip_address(entry.address)
    kind = {"direct": 0, "bridge": 1}.get(entry.kind, 2)
    if address.version == 4 and address in CARRIER:
        kind = 2
    return kind, int(address.is_global), -(entry.speed or 0), address.version


def _is_global(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False  # a name: what it leads to is not known here


def distinct(parties: Sequence[Party]) -> list[Party]:
    """Without addresses that two machines have: a container bridge's leads each of them to itself."""
    owners: dict[str, set[str]] = {}
    for party in parties:
        for one in party.candidates:
            owners.setdefault(one.address, set()).add(party.machine)
    return [
        Party([one for one in party.candidates if len(owners[one.address]) == 1], party.ports, party.machine)
        for party in parties
    ]


def decide(parties: Sequence[Party], ways: Ways) -> list[Spot]:
    """Each node's spot: its first address that all others reach. Raises NodeError, which names the ways that are cut.

    Nodes on one machine have one address in common.
    """
    spots = [_spot(parties, ways, party) for party in parties]
    missing = [node for node, spot in enumerate(spots) if spot is None]
    if missing:
        raise _broken(parties, ways, missing)
    return [spot for spot in spots if spot is not None]


def _spot(parties: Sequence[Party], ways: Ways, party: Party) -> Spot | None:
    beside = [other for other, one in enumerate(parties) if one.machine == party.machine]
    for one in party.candidates:
        if one.interface and not any(_cut(parties, ways, other, one.address) for other in beside):
            return Spot(one.address, one.interface)
    return None


def _cut(parties: Sequence[Party], ways: Ways, node: int, address: str) -> list[int]:
    """The nodes that do not reach `node` at this address, on all of its ports."""
    return [
        other
        for other in range(len(parties))
        if other != node and _failures(ways, other, node, address, parties[node].ports)
    ]


def _failures(ways: Ways, start: int, end: int, address: str, ports: Sequence[int]) -> dict[int, Tried]:
    tried = {port: ways.get((start, end, address, port), SILENCE) for port in ports}
    return {port: one for port, one in tried.items() if one.state != "ok"}


def _broken(parties: Sequence[Party], ways: Ways, missing: Sequence[int]) -> NodeError:
    """Every way that is cut, at the address of each node that comes nearest to being reached by all."""
    told, hints = [], []
    for node in missing:
        own = [one.address for one in parties[node].candidates if one.interface]
        if not own:
            told.append(f"node{node} has no network address of its own that the other nodes could use")
            hints.append(VPN)
            continue
        address = min(own, key=lambda one: _distance(parties, ways, node, one))
        for other in _cut(parties, ways, node, address):
            say, hint = _explain(parties, ways, other, node, address)
            told.append(say)
            hints.append(hint)
    more = f", and {len(told) - SHOWN} more such ways are cut" if len(told) > SHOWN else ""
    return NodeError("; ".join(told[:SHOWN]) + more, _joined(hints[:SHOWN]))


def _distance(parties: Sequence[Party], ways: Ways, node: int, address: str) -> tuple[int, int]:
    """How far an address is from being reached by all: by nodes first, then by what looks least like a stranger's."""
    cut = _cut(parties, ways, node, address)
    ports = parties[node].ports
    strange = sum(
        failure.state in ("other", "no-route")
        for other in cut
        for failure in _failures(ways, other, node, address, ports).values()
    )
    return len(cut), strange


def _explain(parties: Sequence[Party], ways: Ways, start: int, end: int, address: str) -> tuple[str, str]:
    """One cut way as part of a sentence, and what to do about it."""
    failures = _failures(ways, start, end, address, parties[end].ports)
    port, first = min(failures.items())
    source = first.source or "its address"
    what = f"node{start} cannot reach node{end} at {address} port {port}"
    known = {
        "timed-out": "no answer, as where a firewall drops it",
        "refused": f"refused, though node{end} listens: a firewall rejects it, or another machine has this address",
        "no-route": f"{first.why or 'no route'}: a firewall rejects it, or no network leads there",
        "other": "something else answers there: another machine has this address, or something stands in between",
    }
    say = f"{what} ({known.get(first.state, first.why or 'it fails')})"
    if through := sorted(set(parties[end].ports) - set(failures)):
        say = f"{say}, though port {through[0]} is open"
    for other in parties[end].candidates:
        if other.address != address and not _failures(ways, start, end, other.address, parties[end].ports):
            if not other.interface:
                return f"{say}, only at {other.address}, which gloo and NCCL cannot use", VPN
            say = f"{say}, only at {other.address}"
            break
    if first.state == "other":
        return say, f"give node{end} an address of its own, or {VPN}"
    return say, f"allow TCP to {address} (node{end}) from {source} (node{start}), all ports"


def _joined(hints: Sequence[str]) -> str:
    """Each thing to do once."""
    text = "; ".join(dict.fromkeys(hints))
    return f"{text}: torchrun, gloo and NCCL choose their own" if text.endswith("all ports") else text
