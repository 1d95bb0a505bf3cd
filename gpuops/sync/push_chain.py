"""A push that leaves home once: the first node gets it and passes it on while it receives, node after node.

`connect` starts a program on every node and lets each reach the next; where one does not, the nodes are two chains.
`Chain.send` feeds the first node, and tells each over its own login which sums the stream has to have: no node is
trusted with what another gets. What a node lacks at the end is its own delivery, to be made from here.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

from gpuops.agent.network.interfaces import is_reachable
from gpuops.agent.wire_format import RunningSum
from gpuops.core.errors import MalformedAnswer, NodeError, NodeRefused
from gpuops.core.parallel import on_each
from gpuops.sync.project_files import FileEntry
from gpuops.sync.push_transports import Delivery
from gpuops.sync.uplink import Uplink
from gpuops.transport import validation
from gpuops.transport.bulk_transfer import ChannelFailed, write_files
from gpuops.transport.connection import ProcessConnection
from gpuops.transport.program_schemas import RelayNews, RelayPlaces, RelayReached
from gpuops.transport.relay import Relay

MIN_SAVED_S = 3.0
"""A chain that saves less of this computer's line is not tried: where a firewall drops it, that takes as long."""
START_LIMIT_S = 20.0
REACH_LIMIT_S = 10.0
"""The agent tries for 3 s."""
KEEP_ALIVE_S = 10.0
SILENCE_S = 60.0
"""How long a node may say nothing, or receive nothing of what there is to receive."""
END_LIMIT_S = 600.0
"""How long a node may take for the rest once everything has left here."""
LAST_WORDS_S = 10.0
"""How long a node that was left behind may take to say what it has."""
MIN_STALL_S, MAX_STALL_S = 12.0, 36.0
"""How long a node that does not take the stream is waited for: the shortest time on the last link, so that the one that
is at fault is judged first, and less than SILENCE_S on all."""
MAX_DEFLATED_BYTES_PER_S = 20e6
"""A line that is known to carry more is faster than deflating."""
MAX_DEFLATED_SHARE = 0.9
PLAIN_PIECES = 15
"""After a piece that hardly became smaller: most often it is of a file that is compressed already."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Outcome:
    """What a chain brought to one node."""

    delivery: Delivery
    left: Delivery | None
    """What it still lacks; in no further chain where the node itself did not do what it was to do."""
    why: str = ""
    """Why it lacks that."""
    refusal: NodeRefused | None = None
    """What the node says it cannot take."""


@dataclass
class _Link:
    """One node of a chain."""

    delivery: Delivery
    relay: Relay | None
    places: RelayPlaces | None = None
    reached: RelayReached | None = None
    """The next node."""

    @property
    def label(self) -> str:
        return self.delivery.client.label


def choose(deliveries: Sequence[Delivery], uplink: Uplink) -> list[Delivery]:
    """Which of them a chain serves: those that need about the same, where that spares this computer's line enough."""
    remote = [one for one in deliveries if one.may_chain and not isinstance(one.client.connection, ProcessConnection)]
    most = max((one.size for one in remote), default=0)
    chosen = [one for one in remote if 2 * one.size >= most]
    is_worth = len(chosen) > 1 and (len(chosen) - 1) * most / uplink.expected_bytes_per_s >= MIN_SAVED_S
    return chosen if is_worth else []


class Chains:
    """The chains of one push, open until they are closed."""

    def __init__(self, deliveries: Sequence[Delivery], uplink: Uplink) -> None:
        """Let each node reach the next. Raises nothing of a node: one that fails is in no chain."""
        self.chains: list[Chain] = []
        self._links = on_each(_start, deliveries)
        self.note = ""
        """Why not all are in one chain, as a sentence."""
        try:
            if self._links:
                _introduce(self._links)
            self.chains = [Chain(part, uplink) for part in self._parts() if len(part) > 1]
        except BaseException:
            self.close()
            raise
        chained = {id(link) for chain in self.chains for link in chain.links}
        for link in self._links:
            if id(link) not in chained and link.relay:
                link.relay.close()

    def _parts(self) -> list[list[_Link]]:
        """Runs of nodes of which each reaches the next."""
        parts: list[list[_Link]] = []
        before: _Link | None = None
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


def _start(delivery: Delivery) -> _Link:
    client = delivery.client
    try:
        channel = client.bulk("relay", "--tree", delivery.tree_name, "--push", delivery.push)
    except NodeError:
        return _Link(delivery, None)  # its own delivery tells why
    return _Link(delivery, Relay(channel, client.label))


def _introduce(links: Sequence[_Link]) -> None:
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


def _explain_gap(before: _Link, link: _Link) -> str:
    if before.reached is None or link.places is None:
        silent = before if before.reached is None else link
        return f"{silent.label} cannot pass a push on"
    return f"{before.label} does not reach {link.label} ({before.reached.why or 'no answer'})"


class _Lost(Exception):
    """The first node takes no more."""


class Chain:
    """Nodes of which each has reached the next."""

    def __init__(self, links: Sequence[_Link], uplink: Uplink) -> None:
        self.links = links
        self.relays = [cast(Relay, link.relay) for link in links]
        wanted = {number: file for link in links for number, file in link.delivery.files}
        self._files: list[tuple[int, FileEntry]] = sorted(wanted.items(), key=lambda item: item[0])
        self._uplink = uplink
        self._offset = 0
        """Bytes that have left here."""
        self._ended_at: float | None = None
        self._lost: dict[int, str] = {}
        """Nodes that the one before them has lost, by their place in the chain: why."""
        self._over = threading.Event()

    @property
    def size(self) -> int:
        return sum(file.size for _, file in self._files)

    def describe(self) -> str:
        """`through node0`, for the line that announces it."""
        return f"through {self.links[0].label}"

    def way_of(self, label: str) -> str:
        """How the files come to one of the nodes."""
        return "as a stream, passed on" if label == self.links[0].label else self.describe()

    def send(self, on_bytes: Callable[[int], None]) -> list[Outcome]:
        """Send the files to all. Raises UsageError for a file that cannot be read."""
        threading.Thread(target=self._keep_alive, daemon=True, name="chain").start()
        try:
            self._give_orders()
            follow = [partial(self._follow, place) for place in range(len(self.links))]
            works: list[Callable[[], Outcome | None]] = [partial(self._feed, on_bytes), *follow]
            _, *outcomes = on_each(lambda work: work(), works)
        finally:
            self._over.set()
            for relay in self.relays:
                relay.close()
        return cast(list[Outcome], outcomes)

    def _give_orders(self) -> None:
        gaps = max(1, len(self.links) - 2)
        for place, link in enumerate(self.links):
            needed = {number for number, _ in link.delivery.files}
            skipped = [number for number, _ in self._files if number not in needed]
            behind = max(0, len(self.links) - 2 - place)
            stall_s = MIN_STALL_S + (MAX_STALL_S - MIN_STALL_S) * behind / gaps
            self.relays[place].tell(**{"from": "peer" if place else "home", "skip": skipped, "stall_s": stall_s})

    def _feed(self, on_bytes: Callable[[int], None]) -> None:
        target = _Target(self, self._uplink)
        try:
            write_files(target, self.links[0].delivery.folder, self._files, on_bytes)
            target.end()
        except _Lost:
            self._leave_behind(0, "the transfer was cut")
        except BaseException:
            self._leave_behind(0, "")
            raise
        finally:
            self._ended_at = time.monotonic()

    def _keep_alive(self) -> None:
        while not self._over.wait(KEEP_ALIVE_S):
            for relay in self.relays:
                relay.keep_alive()

    def _leave_behind(self, first: int, why: str) -> None:
        """No more comes to the nodes from the `first`: let them tell what they have."""
        self._lost.setdefault(first, why)
        for relay in self.relays[first:]:
            relay.end_input()

    def count_sent(self, count: int) -> None:
        self._offset += count

    def _follow(self, place: int) -> Outcome:
        """Listen to one node until it has told what it has, or is given up."""
        relay, delivery = self.relays[place], self.links[place].delivery
        at, moved, asked = 0, time.monotonic(), None
        while True:
            try:
                news = relay.next(RelayNews, 1.0)
            except MalformedAnswer as error:
                return self._give_up(place, error.message)
            now = time.monotonic()
            if news is None and relay.is_over:
                return self._give_up(place, "the program that receives there ended")
            if news and news.whole is not None:
                return self._judge(place, delivery, news)
            if news and news.lost is not None and place + 1 < len(self.links):
                self._leave_behind(place + 1, news.lost)
            if (news and (news.at or 0) > at) or at >= self._offset:
                at, moved = max(at, news.at or 0) if news else at, now
            asked = asked or (now if relay.takes_no_more else None)
            if asked and now - asked > LAST_WORDS_S:
                return self._give_up(place, self._lost.get(place, "it does not end"))
            if now - min(moved, relay.heard) > SILENCE_S:
                return self._give_up(place, "nothing has moved for a minute")
            if self._ended_at and now - self._ended_at > END_LIMIT_S:
                return self._give_up(place, "it does not end")

    def _give_up(self, place: int, why: str) -> Outcome:
        self._lost.setdefault(place, why)
        self.relays[place].close()
        delivery = self.links[place].delivery
        return Outcome(delivery, dataclasses.replace(delivery, may_chain=False), why)

    def _judge(self, place: int, delivery: Delivery, news: RelayNews) -> Outcome:
        refusal = validation.to_error(delivery.client.label, news.refusal) if news.refusal else None
        if news.whole and not refusal:
            return Outcome(delivery, None)
        last = -1 if news.last is None else news.last
        left = [(number, file) for number, file in delivery.files if number > last]
        why = self._lost.get(place) or self._explain_cut(place)
        rest = dataclasses.replace(delivery, files=left, may_chain=place not in self._lost)
        return Outcome(delivery, rest if left else None, why, refusal)

    def _explain_cut(self, place: int) -> str:
        lost = [first for first in self._lost if first < place]
        if lost:
            return f"it comes behind {self.links[max(lost)].label}"
        return f"what came through {self.links[max(0, place - 1)].label} was cut short or altered"


class _Target:
    """Where the stream is written to: the first node, deflated where that is worth it; the sums go to all."""

    def __init__(self, chain: Chain, uplink: Uplink) -> None:
        self._chain = chain
        self._uplink = uplink
        self._sum = RunningSum()
        self._plain = 0
        """How many pieces go as they are before one is deflated again."""

    @property
    def stdin(self) -> BinaryIO:
        return cast(BinaryIO, self)

    def write(self, data: bytes) -> int:
        """Raises _Lost."""
        for offset, digest in self._sum.add(data):
            self._tell(offset, digest)
        piece, is_deflated = self._deflate(data)
        self._uplink.passed(len(piece))
        self._chain.count_sent(len(data))
        try:
            self._chain.relays[0].send(piece, is_deflated=is_deflated)
        except ChannelFailed as error:
            raise _Lost from error
        return len(data)

    def end(self) -> None:
        self._tell(*self._sum.here())

    def _deflate(self, data: bytes) -> tuple[bytes, bool]:
        """The piece to send, and whether it is deflated."""
        self._plain -= 1
        if self._plain >= 0 or self._uplink.expected_bytes_per_s > MAX_DEFLATED_BYTES_PER_S:
            return data, False
        smaller = zlib.compress(data, 1)
        if len(smaller) <= MAX_DEFLATED_SHARE * len(data):
            return smaller, True
        self._plain = PLAIN_PIECES
        return data, False

    def _tell(self, offset: int, digest: str) -> None:
        for relay in self._chain.relays:
            relay.tell(sum=[offset, digest])
