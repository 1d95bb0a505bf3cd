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
    <- {"last", "refusal"}      the last file that is staged; why others are not

A file is staged when the client's own sum covers all of it, whoever it came from: a node that alters the stream makes
the next one stop there, and nothing else. What this node cannot write, it passes on all the same.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any, BinaryIO, Callable, Sequence, cast

from gpuops.agent import wire_format
from gpuops.agent.files.incoming import Shelf
from gpuops.agent.files.push_decision import Entry
from gpuops.agent.files.push_steps import open_push
from gpuops.agent.files.transfer_modes import run
from gpuops.agent.network.interfaces import addresses
from gpuops.agent.node import Node, Refusal
from gpuops.agent.peers.encrypted_link import Listener, connect, make_context
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


class Proof:
    """The stream's sums as they are here, against those of the client."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Guards all that follows."""
        self.proven = 0
        """All bytes before this offset are the client's."""
        self.promised = 0
        """The highest offset that the client has told a sum of."""
        self.is_false = False
        self.is_over = False
        """Whether the client says no more."""
        self._sums: dict[int, str] = {}
        """Those that only one side has told, by offset."""

    def compare(self, offset: int, digest: str, is_promise: bool) -> None:
        with self.changed:
            if is_promise:
                self.promised = max(self.promised, offset)
            other = self._sums.pop(offset, None)
            if other is None:
                self._sums[offset] = digest
            elif other == digest:
                self.proven = max(self.proven, offset)
            else:
                self.is_false = True
            self.changed.notify_all()

    def end(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def wait(self, is_met: Callable[[], bool], limit_s: float) -> bool:
        """Whether `is_met` within the limit; at once where the sums are false, or no more can come."""
        with self.changed:
            self.changed.wait_for(lambda: is_met() or self.is_false or self.is_over, limit_s)
            return is_met()


class Conversation:
    """The client: messages and pieces of the stream from it, lines to it."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self.proof = Proof()
        self.heard = time.monotonic()
        self._frames = wire_format.frames(stdin)
        self._stdout = stdout
        self._write = threading.Lock()

    def say(self, **message: Any) -> None:
        """Raises OSError where the client is gone."""
        with self._write:
            self._stdout.write(json.dumps(message).encode() + b"\n")
            self._stdout.flush()

    def tell_lost(self, why: str) -> None:
        try:
            self.say(lost=why)
        except (OSError, ValueError):
            pass  # the client is gone: the beats notice that

    def _next(self) -> tuple[int, bytes]:
        """The next frame; an empty piece at the end."""
        found = next(self._frames, (wire_format.DATA, b""))
        self.heard = time.monotonic()
        return found

    def answer(self) -> dict[str, Any]:
        """The client's next message that says something. Raises Refusal(`torn`) where it is gone."""
        while True:
            kind, content = self._next()
            message = json.loads(content) if kind == wire_format.MESSAGE else None
            if not isinstance(message, dict):
                raise wire_format.torn()
            if message:
                return message

    def piece(self) -> bytes:
        """The next piece of the stream, empty at its end; sums that come before it are noted."""
        while True:
            kind, content = self._next()
            if kind == wire_format.DATA:
                return content
            self._note(json.loads(content))

    def listen(self, when_over: Callable[[], None]) -> None:
        """Note sums until the client says no more, in a thread."""

        def work() -> None:
            try:
                while self.piece():
                    pass
            except (Refusal, OSError, ValueError, TypeError):
                pass  # a client that speaks nonsense says nothing more
            self.proof.end()
            when_over()

        threading.Thread(target=work, name="relay client", daemon=True).start()

    def _note(self, message: dict[str, Any]) -> None:
        if "sum" in message:
            offset, digest = message["sum"]
            self.proof.compare(int(offset), str(digest), is_promise=True)


class Stream:
    """The stream as it comes, summed and passed on; a file for `wire_format.members`."""

    def __init__(self, piece: Callable[[], bytes], proof: Proof, onward: Onward | None) -> None:
        self._piece = piece
        self._proof = proof
        self._onward = onward
        self._sum = wire_format.RunningSum()
        self._buffer = bytearray()

    @property
    def received(self) -> int:
        """Bytes so far."""
        return self._sum.offset

    @property
    def taken(self) -> int:
        """Bytes that have been read from here."""
        return self._sum.offset - len(self._buffer)

    def end(self) -> None:
        """Sum what came, at its end."""
        self._proof.compare(*self._sum.here(), is_promise=False)

    def _fill(self) -> bool:
        data = b"" if self._proof.is_false else self._piece()
        for offset, digest in self._sum.add(data):
            self._proof.compare(offset, digest, is_promise=False)
        if data and self._onward is not None:
            self._onward.put(data)
        self._buffer += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def readline(self, limit: int) -> bytes:
        while (end := self._buffer.find(b"\n", 0, limit)) < 0 and len(self._buffer) < limit and self._fill():
            pass
        return self._take(end + 1 if end >= 0 else limit)

    def read(self, count: int) -> bytes:
        if not self._buffer:
            self._fill()
        return self._take(count)


def main(_mode: str, arguments: Sequence[str]) -> int:
    """Raises Refusal(`no-node`, `disk`), and as `relay`."""
    return run(relay, arguments)


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


def _relay(
    node: Node, client: Conversation, files: list[tuple[str, Entry]], shelf: Shelf, links: list[Listener | Onward]
) -> None:
    start = client.answer()
    listener = None
    if start["behind"]:
        listener = Listener(make_context(start["behind"], True, shelf.folder), LISTEN_S)
        links.append(listener)
    known = addresses(node, {}, lambda _item: None)
    port = listener.port if listener else 0
    places = [[entry["address"], port] for entry in _by_preference(known["addresses"])] if listener else []
    client.say(machine=known["machine"], places=places[:MAX_PLACES], port=port)

    onward, why = _reach(client.answer(), start["ahead"], shelf.folder, client)
    links += [onward] if onward else []
    client.say(reached=onward is not None, why=why)

    order = client.answer()
    if onward:
        onward.stall_s = float(order["stall_s"])
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
    refusal = shelf.refusal
    client.say(
        last=shelf.last,
        whole=is_whole and client.proof.proven == stream.received,
        refusal={"kind": refusal.kind, "say": refusal.say, "hint": refusal.hint} if refusal else None,
    )


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
    client.listen(lambda: _close_all(links))
    proof, received = client.proof, 0

    def piece() -> bytes:
        nonlocal received
        if not proof.wait(lambda: received - proof.promised < AHEAD_BYTES, CLIENT_SILENCE_S):
            return b""
        try:
            data = peer.recv(RECEIVE_BYTES)
        except (OSError, ValueError):
            return b""  # the stream ends here: what came is kept
        received += len(data)
        return data

    return piece


def _close_all(links: list[Listener | Onward]) -> None:
    for link in links:
        link.close()


def _begin_beats(client: Conversation, stream: Stream, links: list[Listener | Onward]) -> None:
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
            if part := shelf.write(path, entry, blocks):
                shelf.put(stream.taken, index, part, path, entry)
            shelf.settle(proof.proven)
    except (Refusal, IndexError, ValueError):
        return False  # it was cut, or altered on the way
    return not proof.is_false
