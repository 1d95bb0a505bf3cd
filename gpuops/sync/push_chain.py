"""A push that leaves home once: the first node gets it and passes it on while it receives, node after node.

`Chain.send` feeds the first node, and tells each over its own login which sums the stream has to have: no node is
trusted with what another gets. What a node lacks at the end is its own delivery, to be made from here. The first node
may also be one that has the files of itself (`Origin`): then nothing of them leaves home. One node alone gets many
small files so.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, cast

from gpuops.agent.wire_format import END, SUM_INTERVAL_BYTES, RunningSum, head
from gpuops.core.errors import MalformedAnswer, NodeRefused
from gpuops.core.parallel import on_each
from gpuops.sync.project_files import FileEntry
from gpuops.sync.push_transports import Delivery
from gpuops.sync.uplink import Uplink
from gpuops.transport import validation
from gpuops.transport.bulk_transfer import ChannelFailed, write_files
from gpuops.transport.connection import ProcessConnection
from gpuops.transport.program_schemas import RelayNews, RelayPlaces, RelayReached
from gpuops.transport.relay import Relay
from gpuops.transport.rpc import AgentClient

MIN_SAVED_S = 3.0
"""A chain that saves less of this computer's line is not tried: where a firewall drops it, that takes as long."""
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
class Link:
    """One node of a chain."""

    label: str
    relay: Relay | None
    places: RelayPlaces | None = None
    reached: RelayReached | None = None
    """The next node."""


@dataclass
class Receiver(Link):
    """One that is to have the files."""

    delivery: Delivery = field(kw_only=True)


@dataclass(frozen=True)
class Origin:
    """A node that has the files, in one of its trees."""

    client: AgentClient
    tree_name: str


def choose(deliveries: Sequence[Delivery], uplink: Uplink) -> list[list[Delivery]]:
    """Which of them chains serve: one those that need about the same, where that spares this computer's line enough;
    and each of the others that needs many small files one of its own, which deflates them where the line is slow."""
    remote = [one for one in deliveries if one.may_chain and not isinstance(one.client.connection, ProcessConnection)]
    most = max((one.size for one in remote), default=0)
    chosen = [one for one in remote if 2 * one.size >= most]
    is_worth = len(chosen) > 1 and (len(chosen) - 1) * most / uplink.expected_bytes_per_s >= MIN_SAVED_S
    chained = chosen if is_worth else []
    alone = [[one] for one in remote if one.is_of_small_files and one not in chained]
    return [chained, *alone] if chained else alone


class _Lost(Exception):
    """The first node takes no more."""


class Chain:
    """Nodes of which each has reached the next. `origin`: the program on the node that has the files, where they are
    not sent from here."""

    def __init__(self, links: Sequence[Receiver], uplink: Uplink, origin: Relay | None = None) -> None:
        self.links = links
        self.relays = [cast(Relay, link.relay) for link in links]
        wanted = {number: file for link in links for number, file in link.delivery.files}
        self._files: list[tuple[int, FileEntry]] = sorted(wanted.items(), key=lambda item: item[0])
        self.refusal: NodeRefused | None = None
        """Why the origin could not send all."""
        self._uplink = uplink
        self._origin = origin
        self._offset = 0
        """Bytes that have been sent to the first node."""
        self._ended_at: float | None = None
        self._lost: dict[int, str] = {}
        """Nodes that the one before them has lost, by their place in the chain: why."""
        self._over = threading.Event()

    @property
    def size(self) -> int:
        return sum(file.size for _, file in self._files)

    @property
    def all_relays(self) -> list[Relay]:
        return [*([self._origin] if self._origin else []), *self.relays]

    def describe(self) -> str:
        """`through node0`, for the line that announces it."""
        return f"through {self.links[0].label}" if len(self.links) > 1 else "as a stream"

    def way_of(self, label: str) -> str:
        """How the files come to one of the nodes."""
        is_first = label == self.links[0].label and len(self.links) > 1
        return "as a stream, passed on" if is_first else self.describe()

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
            for relay in self.all_relays:
                relay.close()
        return cast(list[Outcome], outcomes)

    def _give_orders(self) -> None:
        gaps = max(1, len(self.links) - 2)
        for place, link in enumerate(self.links):
            needed = {number for number, _ in link.delivery.files}
            skipped = [number for number, _ in self._files if number not in needed]
            behind = max(0, len(self.links) - 2 - place)
            stall_s = MIN_STALL_S + (MAX_STALL_S - MIN_STALL_S) * behind / gaps
            is_first = place == 0 and self._origin is None
            self.relays[place].tell(**{"from": "home" if is_first else "peer", "skip": skipped, "stall_s": stall_s})

    def _feed(self, on_bytes: Callable[[int], None]) -> None:
        try:
            if self._origin:
                self._follow_origin(self._origin, on_bytes)
            else:
                target = _Target(self, self._uplink)
                write_files(target, self.links[0].delivery.folder, self._files, on_bytes)
                target.end()
        except _Lost as error:
            self._leave_behind(0, str(error) or "the transfer was cut")
        except BaseException:
            self._leave_behind(0, "")
            raise
        finally:
            self._ended_at = time.monotonic()

    def _follow_origin(self, origin: Relay, on_bytes: Callable[[int], None]) -> None:
        """Let the node that has the files send them, and tell all others the sums of its stream. Raises _Lost."""
        rows = [[number, file.path, file.size, file.mtime_ns] for number, file in self._files]
        origin.tell(**{"from": "disk", "files": rows, "stall_s": MAX_STALL_S})
        size, summed, moved = self._stream_size(), -1, time.monotonic()
        while True:
            try:
                news = origin.next(RelayNews, 1.0)
            except MalformedAnswer as error:
                raise _Lost(error.message) from error
            if time.monotonic() - moved > SILENCE_S:  # it may also go on to say that it is where it was
                raise _Lost(f"{origin.label} has sent nothing for a minute")
            if news is None:
                if origin.is_over:
                    raise _Lost(f"the program that sends on {origin.label} ended")
                continue
            if news.sum:
                offset = news.sum[0]
                if offset < summed or (offset % SUM_INTERVAL_BYTES and offset != size):  # the others would keep each
                    raise _Lost(f"{origin.label} sends sums of no stream")
                for relay in self.relays if offset > summed else ():
                    relay.tell(sum=news.sum)
                summed = offset
            at = max(self._offset, news.at or 0, summed)
            if at > size:
                raise _Lost(f"{origin.label} sends more than it has told of")
            if at > self._offset:
                on_bytes(at - self._offset)
                self._offset, moved = at, time.monotonic()
            if news.lost is not None:
                raise _Lost(news.lost)
            if news.whole is not None:
                self.refusal = validation.to_error(origin.label, news.refusal) if news.refusal else None
                if not news.whole:
                    raise _Lost
                return

    def _stream_size(self) -> int:
        """Bytes of all files, as they are sent."""
        heads = sum(len(head(str(number), file.size)) for number, file in self._files)
        return heads + self.size + len(END)

    def _keep_alive(self) -> None:
        while not self._over.wait(KEEP_ALIVE_S):
            for relay in self.all_relays:
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
        why = self._explain_altered(place) if news.altered else self._lost.get(place) or self._explain_cut(place)
        rest = dataclasses.replace(delivery, files=left, may_chain=place not in self._lost)
        return Outcome(delivery, rest if left else None, why, refusal)

    def _explain_cut(self, place: int) -> str:
        lost = [first for first in self._lost if first < place]
        if lost:
            return f"it comes behind {self.links[max(lost)].label}"
        return f"what came through {self._before(place)} was cut short"

    def _explain_altered(self, place: int) -> str:
        return f"what came through {self._before(place)} was altered on the way"

    def _before(self, place: int) -> str:
        return (self._origin if place == 0 and self._origin else self.links[max(0, place - 1)]).label


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
