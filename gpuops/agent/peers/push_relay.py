"""Mode `relay`: a push that one node receives and passes on while it receives, so that it leaves home once.

The client starts this program on every node of a chain and talks to each over that node's own login, in frames
(`wire_format`) to it and lines of JSON from it:

    -> {"behind", "ahead"}      certificates for the links to the node before and after this one, or null
    <- {"machine", "places"}    where this node listens for the one before it
    -> {"places"}               where the one after it listens
    <- {"reached", "why"}       whether it was reached
    -> {"from", "skip", "stall_s"}   the stream comes from `home` or from a `peer`; files that are passed on only
    -> pieces of the stream (from home), and for every 4 MiB {"sum": [offset, SHA-256 of all bytes before it]}
    <- {"at"}                   bytes so far, every two seconds; {"lost"}: the next node gets no more, and why
    <- {"last", "altered", "refusal"}   the last file that is staged; why others are not

The first node may be one that has the files already (mode `relay-source`): it is told {"from": "disk", "files"}, and
tells the client the sums, which passes them on.

A file is staged when the client's own sum covers all of it, whoever it came from: a node that alters the stream makes
the next one stop there, and nothing else. What this node cannot write, it passes on all the same.
"""

from __future__ import annotations

import select
import socket
import tempfile
import threading
import time
from typing import Any, BinaryIO, Callable, Sequence, cast

from gpuops.agent import wire_format
from gpuops.agent.files.copies import Listed, parse_listed, read_stream
from gpuops.agent.files.folder import TreeFolder
from gpuops.agent.files.incoming import Shelf
from gpuops.agent.files.push_decision import Entry
from gpuops.agent.files.push_steps import open_push
from gpuops.agent.files.transfer_modes import run
from gpuops.agent.network.interfaces import addresses
from gpuops.agent.node import Node, Refusal, parse_options
from gpuops.agent.peers.encrypted_link import Listener, connect, make_context
from gpuops.agent.peers.relay_conversation import Conversation, Proof
from gpuops.agent.peers.stream_onward import Onward

LISTEN_S = 60.0
"""How long the node before this one may take to come."""
REACH_LIMIT_S = 3.0
MAX_PLACES = 8
BEAT_INTERVAL_S = 2.0
CLIENT_SILENCE_S = 180.0
"""After so many seconds without a word of the client it is gone."""
AHEAD_BYTES = 64 << 20
"""How much may come from a peer before the client vouches for it."""
LAST_SUMS_S = 2.0
"""How long the sums for what came by a link that broke are waited for."""
RECEIVE_BYTES = 1 << 18


class Stream:
    """The stream as it comes, summed and passed on; a file for `wire_format.members`."""

    def __init__(self, piece: Callable[[], bytes], proof: Proof, onward: Onward | None) -> None:
        self._piece = piece
        self._proof = proof
        self._onward = onward
        self._sum = wire_format.RunningSum()
        self._data = b""
        self._at = 0
        """How much of it was read from here."""

    @property
    def received(self) -> int:
        """Bytes so far."""
        return self._sum.offset

    @property
    def taken(self) -> int:
        """Bytes that have been read from here."""
        return self._sum.offset - self._left

    @property
    def _left(self) -> int:
        return len(self._data) - self._at

    def end(self) -> None:
        """Sum what came, at its end."""
        self._proof.compare(*self._sum.here(), is_promise=False)

    def _receive(self) -> bytes:
        data = b"" if self._proof.is_false else self._piece()
        for offset, digest in self._sum.add(data):
            self._proof.compare(offset, digest, is_promise=False)
        if data and self._onward is not None:
            self._onward.put(data)
        return data

    def _fill(self, count: int) -> bool:
        """Have `count` bytes to read; whether there are so many before the end."""
        pieces, have = [self._data[self._at :]], self._left
        while have < count and (piece := self._receive()):
            pieces.append(piece)
            have += len(piece)
        self._data, self._at = b"".join(pieces), 0
        return have >= count

    def _take(self, count: int) -> bytes:
        data = self._data[self._at : self._at + count]
        self._at += len(data)
        return data

    def readline(self, limit: int) -> bytes:
        while (end := self._data.find(b"\n", self._at, self._at + limit)) < 0 and self._left < limit:
            if not self._fill(self._left + 1):
                break
        return self._take(end + 1 - self._at if end >= 0 else limit)

    def read(self, count: int) -> bytes:
        """So many bytes, or fewer at the end."""
        if self._left < count:
            self._fill(count)
        return self._take(count)


class Source:
    """The stream of this node's own files, summed and passed on."""

    def __init__(self, client: Conversation, onward: Onward | None) -> None:
        self._client = client
        self._onward = onward
        self._sum = wire_format.RunningSum()

    @property
    def received(self) -> int:
        """Bytes so far."""
        return self._sum.offset

    def put(self, data: bytes) -> None:
        """Raises Refusal(`torn`) where the client is gone."""
        for sum_here in self._sum.add(data):
            self._tell(sum_here)
        if self._onward is not None:
            self._onward.put(data)

    def end(self) -> None:
        self._tell(self._sum.here())

    def _tell(self, sum_here: tuple[int, str]) -> None:
        try:
            self._client.say(sum=sum_here)
        except (OSError, ValueError) as error:
            raise wire_format.torn() from error


def main(mode: str, arguments: Sequence[str]) -> int:
    """Raises Refusal(`no-node`, `disk`), and as `relay` or `relay_source`."""
    return run(relay_source if mode == "relay-source" else relay, arguments)


def relay(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Mode, `--tree T --push P`. Raises Refusal(`superseded`, `torn`), and OSError."""
    incoming, files = open_push(node, arguments)
    shelf = Shelf(incoming)
    client = Conversation(stdin, stdout)
    links: list[Listener | Onward] = []
    try:
        _relay(node, client, files, shelf, links)
    finally:
        _close_all(links)
        shelf.close()
    return 0


def relay_source(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Mode, `--tree T`: files of this node's own go to the next one. Raises Refusal(`torn`, `bad-path`), OSError."""
    folder = TreeFolder(node.tree(parse_options(arguments)["tree"]))
    client = Conversation(stdin, stdout)
    links: list[Listener | Onward] = []
    try:
        with tempfile.TemporaryDirectory(prefix="relay-", dir=node.dir) as keys:
            _, onward, order = _meet(node, client, keys, links)
        client.listen(lambda: _close_all(links))
        source = Source(client, onward)
        _begin_beats(client, source, links)
        refusal = _send_own(source, folder, parse_listed(order["files"]))
        if onward and refusal is None:
            onward.finish()
        client.say(whole=refusal is None, refusal=_told(refusal))
    finally:
        _close_all(links)
    return 0


def _send_own(source: Source, folder: TreeFolder, files: list[Listed]) -> Refusal | None:
    """Why not all files went into the stream; None where they did."""
    try:
        for data in read_stream(folder, files):
            source.put(data)
        source.end()
    except Refusal as refusal:
        return refusal
    return None


def _relay(
    node: Node, client: Conversation, files: list[tuple[str, Entry]], shelf: Shelf, links: list[Listener | Onward]
) -> None:
    listener, onward, order = _meet(node, client, shelf.folder, links)
    piece = client.piece
    if order["from"] == "peer":
        piece = _from_peer(client, listener, links)
    stream = Stream(piece, client.proof, onward)
    _begin_beats(client, stream, links)
    is_whole = _store(stream, files, set(order["skip"]), shelf, client.proof)
    if is_whole:
        stream.end()
        if order["from"] == "home":
            client.listen(lambda: None)
        elif listener:
            listener.close()  # the node before this one waits for that
        if onward:
            onward.finish()
        client.proof.wait(lambda: client.proof.proven == stream.received, CLIENT_SILENCE_S)
    else:
        _close_all(links)
        last_sum = stream.received - stream.received % wire_format.SUM_INTERVAL_BYTES
        client.proof.wait(lambda: client.proof.proven >= last_sum, LAST_SUMS_S)
    shelf.settle(client.proof.proven)
    is_whole = is_whole and client.proof.proven == stream.received
    client.say(last=shelf.last, whole=is_whole, altered=client.proof.is_false, refusal=_told(shelf.refusal))


def _told(refusal: Refusal | None) -> dict[str, Any] | None:
    return {"kind": refusal.kind, "say": refusal.say, "hint": refusal.hint} if refusal else None


def _meet(
    node: Node, client: Conversation, folder: str, links: list[Listener | Onward]
) -> tuple[Listener | None, Onward | None, dict[str, Any]]:
    """Let the node before this one come, and reach the next. `folder`: for what only this user may read.

    Returns the port for the one, the link to the other, and what the client wants then. Raises Refusal(`torn`).
    """
    start = client.answer()
    listener = None
    if start["behind"]:
        listener = Listener(make_context(start["behind"], True, folder), LISTEN_S)
        links.append(listener)
    known = addresses(node, {}, lambda _item: None)
    port = listener.port if listener else 0
    places = [[entry["address"], port] for entry in _by_preference(known["addresses"])] if listener else []
    client.say(machine=known["machine"], places=places[:MAX_PLACES], port=port)

    onward, why = _reach(client.answer(), start["ahead"], folder, client)
    links += [onward] if onward else []
    client.say(reached=onward is not None, why=why)

    order = client.answer()
    if onward:
        onward.stall_s = float(order["stall_s"])
    return listener, onward, order


def _by_preference(known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A network card's addresses, then those of tunnels and of bridges, which other machines may have as well."""
    return sorted(known, key=lambda entry: ["direct", "tunnel", "bridge"].index(entry["kind"]))


def _reach(
    target: dict[str, Any], credentials: str | None, folder: str, client: Conversation
) -> tuple[Onward | None, str]:
    """The link to the next node, or why there is none."""
    places = [(str(address), int(port)) for address, port in target["places"]]
    if not credentials or not places:
        return None, ""
    try:
        link = connect(places, make_context(credentials, False, folder), REACH_LIMIT_S)
    except OSError as error:
        return None, error.strerror or str(error)
    return Onward(link, client.tell_lost), ""


def _from_peer(client: Conversation, listener: Listener | None, links: list[Listener | Onward]) -> Callable[[], bytes]:
    """What reads the stream from the node before this one. The client's sums are noted meanwhile."""
    link = listener.peer(REACH_LIMIT_S) if listener else None
    if link is None:
        raise wire_format.torn()
    peer: socket.socket = link
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    client.listen(lambda: _close_all(links))
    proof, received = client.proof, 0

    def piece() -> bytes:
        nonlocal received
        if not proof.wait(lambda: received - proof.promised < AHEAD_BYTES, CLIENT_SILENCE_S):
            return b""
        count = 0
        try:
            while more := peer.recv_into(buffer[count:]):  # of TLS, 16 kB at most
                count += more
                if count == len(buffer) or not select.select([peer], [], [], 0)[0]:
                    break
        except (OSError, ValueError):
            pass  # the stream ends here: what came is kept
        received += count
        return bytes(buffer[:count])

    return piece


def _close_all(links: list[Listener | Onward]) -> None:
    for link in links:
        link.close()


def _begin_beats(client: Conversation, stream: Stream | Source, links: list[Listener | Onward]) -> None:
    def work() -> None:
        try:
            while time.monotonic() - client.heard < CLIENT_SILENCE_S:
                client.say(at=stream.received)
                time.sleep(BEAT_INTERVAL_S)
        except (OSError, ValueError):
            pass  # the client is gone
        client.proof.end()
        _close_all(links)

    threading.Thread(target=work, name="relay beats", daemon=True).start()


def _store(stream: Stream, files: list[tuple[str, Entry]], skipped: set[int], shelf: Shelf, proof: Proof) -> bool:
    """Write every file of the stream. Returns whether it came to its end."""
    try:
        for name, size, blocks in wire_format.members(cast(BinaryIO, stream)):
            index = int(name)
            path, entry = files[index]
            if size != entry.size:
                return False
            if index in skipped:
                for _ in blocks:
                    pass
                continue
            came = shelf.keep(path, entry, blocks)
            if came is not None:
                shelf.put(stream.taken, index, came, path, entry)
            shelf.settle(proof.proven)
    except (Refusal, IndexError, ValueError):
        return False  # it was cut, or altered on the way
    return not proof.is_false
