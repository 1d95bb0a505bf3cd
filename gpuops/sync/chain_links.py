"""Which nodes a push may pass through: a program on each, and whether it reaches the next.

Where one node does not reach the next, the nodes are two chains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuops.agent.network.interfaces import is_reachable
from gpuops.core.errors import MalformedAnswer, NodeError
from gpuops.core.parallel import on_each
from gpuops.sync.push_chain import Chain, Link, Origin, Receiver
from gpuops.sync.push_transports import Delivery
from gpuops.sync.uplink import Uplink
from gpuops.transport.program_schemas import RelayPlaces, RelayReached
from gpuops.transport.relay import Relay

START_LIMIT_S = 20.0
REACH_LIMIT_S = 10.0
"""The agent tries for 3 s."""
LOOPBACK = "127.0.0.1"


class Chains:
    """The chains of one push, open until they are closed."""

    def __init__(self, deliveries: Sequence[Delivery], uplink: Uplink, origin: Origin | None = None) -> None:
        """Let each node reach the next, and the `origin` the first. Raises nothing of a node: one that fails is in no
        chain."""
        self.chains: list[Chain] = []
        starts: list[Callable[[], Link]] = [partial(_start_origin, origin)] if origin else []
        starts += [partial(_start, delivery) for delivery in deliveries]
        self._links = on_each(lambda start: start(), starts)
        self.note = ""
        """Why not all are in one chain, as a sentence."""
        try:
            if self._links:
                _introduce(self._links)
            parts = self._parts()[: 1 if origin else None]
            alone = len(self._links) == 1 and self._links[0].reached is not None
            self.chains = [_make_chain(part, uplink) for part in parts if len(part) > 1 or alone]
        except BaseException:
            self.close()
            raise
        chained = {relay for chain in self.chains for relay in chain.all_relays}
        for link in self._links:
            if link.relay and link.relay not in chained:
                link.relay.close()

    def _parts(self) -> list[list[Link]]:
        """Runs of nodes of which each reaches the next."""
        parts: list[list[Link]] = []
        before: Link | None = None
        for link in self._links:
            is_reached = before is not None and before.reached is not None and before.reached.reached
            if is_reached:
                parts[-1].append(link)
            else:
                parts.append([link])
                self.note = self.note or (_explain_gap(before, link) if before else "")
            before = link
        return parts

    def close(self) -> None:
        for link in self._links:
            if link.relay:
                link.relay.close()


def _start(delivery: Delivery) -> Receiver:
    client = delivery.client
    try:
        channel = client.bulk("relay", "--tree", delivery.tree_name, "--push", delivery.push)
    except NodeError:
        return Receiver(client.label, None, delivery=delivery)  # its own delivery tells why
    return Receiver(client.label, Relay(channel, client.label), delivery=delivery)


def _start_origin(origin: Origin) -> Link:
    client = origin.client
    return Link(client.label, Relay(client.bulk("relay-source", "--tree", origin.tree_name), client.label))


def _make_chain(part: Sequence[Link], uplink: Uplink) -> Chain:
    receivers = [link for link in part if isinstance(link, Receiver)]
    return Chain(receivers, uplink, None if isinstance(part[0], Receiver) else part[0].relay)


def _introduce(links: Sequence[Link]) -> None:
    """Each node listens for the one before it, and then tries to reach the next."""
    from gpuops.transport.link_certificate import make_credentials

    credentials = [None, *(make_credentials() for _ in links[1:]), None]

    def listen(number: int) -> None:
        relay = links[number].relay
        if relay:
            relay.tell(behind=credentials[number], ahead=credentials[number + 1])
            links[number].places = _hear(relay, RelayPlaces, START_LIMIT_S)

    def reach(number: int) -> None:
        link, target = links[number], links[number + 1] if number + 1 < len(links) else None
        if link.relay and link.places:
            link.relay.tell(places=_candidates(link.places, target.places if target else None))
            link.reached = _hear(link.relay, RelayReached, REACH_LIMIT_S)

    on_each(listen, range(len(links)))
    on_each(reach, range(len(links)))


def _hear(relay: Relay, shape: Any, limit_s: float) -> Any:
    """A node's answer; None where it gives none."""
    try:
        return relay.next(shape, limit_s)
    except MalformedAnswer:
        return None


def _candidates(here: RelayPlaces, there: RelayPlaces | None) -> list[tuple[str, int]]:
    """Where a node tries to reach the next one: no address of its own machine, unless both are on it."""
    if there is None or not there.port:
        return []
    places = [(str(address), port) for address, port in there.places if is_reachable(str(address))]
    return [*places, (LOOPBACK, there.port)] if here.machine == there.machine else places


def _explain_gap(before: Link, link: Link) -> str:
    if before.reached is None or link.places is None:
        silent = before if before.reached is None else link
        return f"{silent.label} cannot pass a push on"
    return f"{before.label} does not reach {link.label} ({before.reached.why or 'no answer'})"
