"""Data go from their source straight to the nodes (mode `fetch` of the agent), and never through this computer.

A program on one node of each machine fetches; this side hands out the addresses, shows all nodes' progress as one, and
ends every program with the first failure or with Ctrl-C. What has arrived is never fetched again. Of several machines
the first fetches, and the others get it from there (`fetched_once`): their programs wait for that, and fetch what they
still lack.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from gpuops.agent.wire_format import Whole
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, MalformedAnswer, NodeRefused
from gpuops.core.format import amount, plural
from gpuops.core.parallel import on_each
from gpuops.core.reporting import Progress
from gpuops.core.timings import Whose
from gpuops.nodes.session import ClusterSession
from gpuops.sync.data_sources import Source
from gpuops.sync.fetch_stall import MAX_STALLS, Stalled, StallWatch
from gpuops.sync.fetched_once import Fetched, is_fetched_once, send_copies
from gpuops.sync.project_files import printable_path
from gpuops.transport import validation
from gpuops.transport.bulk_transfer import ChannelFailed, TimedChannel, transfer
from gpuops.transport.connection import Channel
from gpuops.transport.program_schemas import MAX_NUMBERS, FetchEnd, FetchLine
from gpuops.transport.rpc import AgentClient

MAX_STARTS = 4
"""A fetch begins again when its source changes meanwhile; one that changes each time is an error."""
MAX_RECONNECTS = 5
"""How often in a row a node whose connection was cut is connected anew, with nothing fetched in between."""
RECONNECT_PAUSE_S = 5.0
UNNOTICED_S = 1800.0
"""How long a node's program may hold the data after a cut: its system learns of one by sending in vain."""
MAX_LINE_BYTES = 1 << 16
LIFE_S = 120.0
"""A node tells every second how far it is; after so long without a word its connection is given up."""


def fetch_to(
    ctx: Context,
    session: ClusterSession,
    nodes: Sequence[int],
    tree: str,
    find: Callable[[], Source],
    *,
    overwrite: bool,
    region: str = "",
) -> tuple[Source, Sequence[FetchEnd]]:
    """Fetch a source into a tree of each of these nodes. `find`: asks the source what it has, anew where it changes.

    `region`: the one of Amazon's in which all of these nodes are. Returns the source, and what each node fetched.
    Raises NodeRefused, ConnectionLost, UsageError, ProviderError.
    """
    for start in range(MAX_STARTS):
        source = find()
        is_once = is_fetched_once(source, len(nodes), region)
        fetch = Fetch(ctx, session, nodes, tree, source, overwrite=overwrite, once=is_once)
        try:
            return source, fetch.run()
        except NodeRefused as refusal:
            if refusal.kind != "changed" or start == MAX_STARTS - 1:
                raise
            ctx.out.say(f"{refusal.message}: fetched again")
    raise AssertionError("the last start returns or raises")


class Fetch:
    """One fetch to several nodes. Its programs end together."""

    def __init__(
        self,
        ctx: Context,
        session: ClusterSession,
        nodes: Sequence[int],
        tree: str,
        source: Source,
        *,
        overwrite: bool,
        once: bool = False,
    ) -> None:
        """`once`: the first node fetches for all."""
        self._ctx = ctx
        self._session = session
        self._nodes = nodes
        self._others = nodes[1:] if once else []
        """Nodes that get from the first one what that has."""
        self._tree = tree
        self._source = source
        files = [[file.path, file.size, file.etag, file.sha256] for file in source.files]
        self._document: dict[str, object] = {"tree": tree, "overwrite": overwrite, "files": files}
        self._terms: dict[str, object] = {"asks": True, "md5_tags": source.has_md5_tags()} if self._others else {}
        """What the document of the others says besides."""
        label = session.clients[nodes[0]].label if len(nodes) == 1 else f"{len(nodes)} nodes"
        self._progress = SharedProgress(ctx.progress, label)
        self._changed = threading.Condition()
        self._channels: list[Channel] = []
        self._inputs: dict[int, BinaryIO] = {}
        """Where nodes are told something while their lines are read."""
        self._words: dict[int, list[bytes]] = {index: [] for index in self._others}
        """What each of the others has been told; after a cut it is told so again."""
        self._lacking: dict[int, Sequence[int]] = {}
        """Files that each of the others lacks, once it has said so."""
        self._ends: dict[int, FetchEnd] = {}
        """Of the nodes on which everything is in its place."""
        self._failure: BaseException | None = None

    def run(self) -> Sequence[FetchEnd]:
        """What each node fetched. Raises the first failure of any node; the others are ended by it."""
        self._ctx.progress.phase(f"fetching {printable_path(self._source.address)}", Whose.NETWORK)
        works: list[Callable[[], None]] = [partial(self._fetch_to_node, index) for index in self._nodes]
        try:
            on_each(self._do, [*works, self._pass_on] if self._others else works)
            return [self._ends[index] for index in self._nodes]
        except BaseException as error:
            self.end(error)
            raise (self._failure or error) if isinstance(error, Exception) else error from None

    def end(self, failure: BaseException) -> None:
        """End every program; the first failure is kept."""
        with self._changed:
            self._failure = self._failure or failure
            channels, self._channels = self._channels, []
            self._changed.notify_all()
        for channel in channels:
            channel.close()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.end(error)
            raise

    def _pass_on(self) -> None:
        """Bring what the first node has fetched to the others. Where that fails, they fetch it themselves."""
        first, clients = self._nodes[0], self._session.clients
        if not self._wait_until(lambda: first in self._ends):
            return
        version = self._ends[first].version
        for index in self._others:
            self._tell(index, {"version": version})
        if not self._wait_until(lambda: len(self._lacking) == len(self._others)):
            return
        fetched = Fetched(self._source, version, clients[first], self._tree)
        sent = send_copies(self._ctx, fetched, [(clients[index], self._lacking[index]) for index in self._others])
        for index, one in zip(self._others, sent, strict=True):
            self._tell(index, {"copied": one.push})
        if self._wait_until(lambda: len(self._ends) == len(self._nodes)):
            for index, one in zip(self._others, sent, strict=True):
                if one.is_all and (count := self._ends[index].fetched):
                    self._ctx.out.say(
                        f"data: {clients[index].label} got {plural(count, 'file')} from {clients[first].label} that "
                        f"{'is' if count == 1 else 'are'} not what the source has, and fetched anew"
                    )

    def _wait_until(self, is_met: Callable[[], bool]) -> bool:
        """Whether `is_met`, before any node failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or is_met())
            return not self._failure

    def _tell(self, index: int, word: dict[str, object]) -> None:
        """Tell one of the others something, also where its connection has been cut just now."""
        line = json.dumps(word).encode() + b"\n"
        with self._changed:
            self._words[index].append(line)
            if target := self._inputs.get(index):
                with suppress(OSError, ValueError):  # whoever reads its lines notices that it is gone
                    Whole(target).write(line)

    def _fetch_to_node(self, index: int) -> None:
        """Go on where the conversation with the node was cut. Raises as `_converse` does."""
        cuts, stalls, furthest, unnoticed_until = 0, 0, 0, 0.0
        while True:
            client = self._session.clients[index]
            try:
                self._converse(index, client)
                return
            except NodeRefused as refusal:
                if refusal.kind != "busy" or self._failure or self._ctx.clock.monotonic() > unnoticed_until:
                    raise (_older_agent(client.label) if refusal.kind == "usage" else refusal) from None
                self._progress.waits("it has not noticed yet that its connection was cut", client.label)
                self._ctx.clock.sleep(RECONNECT_PAUSE_S)
                continue
            except ConnectionLost as error:
                done = self._progress.done(client.label)
                cuts = 1 if done > furthest else cuts + 1
                stalls = isinstance(error, Stalled) + (stalls if done <= furthest else 0)
                furthest = max(furthest, done)
                if self._failure or cuts > MAX_RECONNECTS or stalls > MAX_STALLS:
                    raise
                why = error.message if isinstance(error, Stalled) else "its connection was cut"
            unnoticed_until = self._ctx.clock.monotonic() + UNNOTICED_S
            self._progress.waits(f"{why}; trying again", client.label)
            self._ctx.clock.sleep(RECONNECT_PAUSE_S)
            with suppress(ConnectionLost):
                self._session.reconnect(index)

    def _converse(self, index: int, client: AgentClient) -> None:
        """One program on one node, to its end. Raises NodeRefused, ConnectionLost, MalformedAnswer, ProviderError."""
        channel = client.bulk("fetch")
        with self._changed:
            if self._failure:
                channel.close()
                raise ConnectionLost("another node failed")
            self._channels.append(channel)
            self._inputs.pop(index, None)
        lacking: list[int] = []
        watch = StallWatch(self._ctx.clock, client.label)
        with transfer(channel, client.label, LIFE_S, least_bytes_per_s=0) as timed:
            terms = self._terms if index in self._others else {}
            Whole(timed.stdin).write(json.dumps({**self._document, **terms}).encode() + b"\n")
            for line in _lines(timed, client.label):
                if line.done:
                    self._progress.advance(client.label, line.done.bytes, line.done.bytes)
                    self._progress.waits("", client.label)
                    self._wait_for_others(index, line.done)
                    return
                if self._holds_up(index):
                    watch.restart()
                if line.need is not None:
                    Whole(timed.stdin).write(self._addresses(client.label, line.need))
                elif line.asks:
                    self._begin_to_tell(index, channel)
                elif line.lacks is not None:
                    lacking += line.lacks
                    if len(lacking) > len(self._source.files):
                        raise MalformedAnswer(client.label, "to 'fetch': it lacks more files than there are")
                    if len(line.lacks) < MAX_NUMBERS:
                        self._note_lacking(index, client.label, lacking)
                else:
                    if line.total:
                        self._progress.advance(client.label, line.at, line.total)
                    self._progress.waits(watch.note(line), client.label)
            raise ChannelFailed("it ended early")

    def _holds_up(self, index: int) -> bool:
        """Whether a node waits for what the others are told: until the first one has fetched, and while that sends."""
        words = len(self._words.get(index, ()))
        return index in self._others and (words == 0 or (words == 1 and index in self._lacking))

    def _begin_to_tell(self, index: int, channel: Channel) -> None:
        """A node waits for what the others are told: what it was told before a cut is said first."""
        with self._changed:
            Whole(channel.stdin).write(b"".join(self._words.get(index, ())))
            self._inputs[index] = channel.stdin

    def _note_lacking(self, index: int, label: str, lacking: Sequence[int]) -> None:
        self._check_numbers(label, lacking)
        with self._changed:
            self._lacking[index] = lacking
            self._changed.notify_all()

    def _wait_for_others(self, index: int, end: FetchEnd) -> None:
        """Keep this node's program, and so the node in use: its idle end must not strike while others fetch."""
        with self._changed:
            self._ends[index] = end
            if index in self._others:
                self._lacking.setdefault(index, ())  # an older agent has fetched it by itself
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure or len(self._ends) == len(self._nodes))

    def _check_numbers(self, label: str, numbers: Sequence[int]) -> None:
        """Raises MalformedAnswer where a node names what is not on the list."""
        if max(numbers, default=0) >= len(self._source.files):
            raise MalformedAnswer(label, "to 'fetch': it names files that are not on the list")

    def _addresses(self, label: str, need: Sequence[int]) -> bytes:
        """The answer to a node that wants addresses. Raises GpuopsError."""
        files = self._source.files
        self._check_numbers(label, need)
        return json.dumps({"urls": [[index, *self._source.url(files[index])] for index in need]}).encode() + b"\n"


def _older_agent(label: str) -> NodeRefused:
    return NodeRefused(
        f"{label} was made by an older gpuops, whose nodes fetch no data", "end it, and bring up another: gpuops down"
    )


def _lines(channel: TimedChannel, label: str) -> Iterator[FetchLine]:
    rest = b""
    while chunk := channel.stdout.read(MAX_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise MalformedAnswer(label, "to 'fetch': a line without end")
        yield from map(partial(validation.parse_document, label, "to 'fetch'", shape=FetchLine), lines)


class SharedProgress:
    """How far several nodes are, shown as one progress."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._label = label
        self._shares: dict[str, tuple[int, int]] = {}
        """Bytes that have arrived and that are to, by node."""
        self._lock = threading.Lock()

    def done(self, node: str) -> int:
        return self._shares.get(node, (0, 0))[0]

    def advance(self, node: str, done: int, total: int) -> None:
        with self._lock:
            self._shares[node] = (min(done, total), total)
            arrived, wanted = (sum(numbers) for numbers in zip(*self._shares.values(), strict=True))
            if arrived:
                self._progress.advance(arrived, wanted, self._label)

    def waits(self, why: str, node: str) -> None:
        self._progress.waits(why, node)


def describe_end(source: Source, ends: Sequence[FetchEnd], nodes: int) -> str:
    """The last sentence of a fetch. `ends`: of one node of each machine, the first first."""
    name = printable_path(source.name)
    files = plural(len(source.files), "file")
    if not any(end.fetched for end in ends):
        return f"data: {name} ({files}) is on the nodes as it is at {printable_path(source.address)}: nothing fetched"
    size = sum(end.bytes for end in ends)
    once = " once" if len(ends) > 1 and not any(end.fetched for end in ends[1:]) else ""
    return f"data: {name} ({files}) is on {plural(nodes, 'node')}, {amount(size)} fetched{once}"
