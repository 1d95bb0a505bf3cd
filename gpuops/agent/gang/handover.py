"""What a run left on a machine that its provider takes back, handed to a node that stays.

Over the gang link's port and secret, on a connection of its own: a node that goes `give`s to node 0; where node 0
goes, one of the others comes to `take`. Then, for each file, the newest first:

    giver  {"path", "size", "mtime_ns"}
    taker  {"want": true}                 false: it has that file as new, or no room for it
    giver  `size` bytes in frames, the last of them empty: it is whole
    taker  {"kept": true}
    giver  {"end": true}                  after the last
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from typing import Any, Callable, Iterator, Mapping

from gpuops.agent import presence
from gpuops.agent.files import outputs
from gpuops.agent.files.file_state import ABSENT, FILE
from gpuops.agent.files.folder import TreeFolder, checked, free_bytes, raw
from gpuops.agent.gang.channel import LIMIT, Wire
from gpuops.agent.gang.link import Link
from gpuops.agent.node import Node, Refusal, log, read_json, write_json
from gpuops.agent.retain import early_end, hold, sink

LAST_S = 30.0
"""With somebody there, who fetches them, results are handed over only so long before the machine goes."""
LOOK_S = 0.2
SILENCE_S = 15.0
BLOCK = LIMIT
MOST = 50_000_000_000
"""Bytes that are handed over, all together."""
ROOM = 1_000_000_000
"""Bytes that stay free where they come to."""
PART = ".gpuops-handed"
STATE = "handed.json"
"""In a run's folder: path -> the node that made it, of files that were handed to this one."""


class TooLate(Exception):
    """The machine is about to go."""


class Handover:
    """One run's, on one node. `done` is set once the run is over here, and kept wherever it is to be kept."""

    def __init__(
        self, node: Node, spec: Mapping[str, Any], link: Link, done: threading.Event, event: Callable[..., None]
    ) -> None:
        self._node = node
        self._spec = spec
        self._link = link
        self._done = done
        self._event = event
        self._me: int = spec["node"]
        self._going: dict[int, float] = {}
        """Nodes whose machines are taken back, and when (monotonic)."""
        self._lock = threading.Lock()
        self._giving = threading.Lock()
        self._given = False
        link.visit = self.visit

    def note(self, node: int, left_s: float) -> None:
        """The machine of a node goes in so many seconds."""
        until = self._going.setdefault(node, time.monotonic() + left_s)
        self._link.open_until = max(self._link.open_until, until)

    def begin(self) -> None:
        """The run is over: see to it, in a thread of its own, that what it left goes with no machine."""
        if self._going and self._me != 0 and (self._me in self._going or 0 in self._going):
            threading.Thread(target=self._safely, args=(self._part,), name="handover", daemon=True).start()

    def _part(self) -> None:
        """Of any node but node 0."""
        if self._me not in self._going:
            self._with_head("take", lambda wire: self._take(wire, 0))
        elif 0 in self._going:
            self._event("unhanded", why="node0 goes as well")
        elif self._is_needed():
            self._with_head("give", lambda wire: self._give(wire, 0))

    def _with_head(self, role: str, do: Callable[[Wire], None]) -> None:
        wire = self._link.call_head(role)
        if wire is None:
            self._event("unhanded", why="node0 does not answer")
            return
        try:
            do(wire)
        finally:
            wire.close()

    def visit(self, member: int, role: str, wire: Wire) -> None:
        """Node 0's part: a member has come, to give or to take."""
        self._safely(lambda: self._receive(member, role, wire))

    def _receive(self, member: int, role: str, wire: Wire) -> None:
        self._done.wait(max(0.0, self._link.open_until - time.monotonic()))
        if not self._done.is_set():
            return
        if role == "give":
            self._take(wire, member)
            return
        with self._giving:  # whoever comes second waits: the first may go as well
            if not self._given and 0 in self._going and self._is_needed():
                self._give(wire, member)
                self._given = True
                return
        wire.send({"end": True})

    def _safely(self, do: Callable[[], None]) -> None:
        try:
            do()
        except (OSError, ValueError, KeyError, TypeError, Refusal, TooLate) as error:
            say = getattr(error, "say", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._event("unhanded", why=say)
        except Exception as error:
            log(f"what {self._spec['run']} left could not be handed over\n{traceback.format_exc()}")
            self._event("unhanded", why=f"{type(error).__name__}: {error}")

    def _is_needed(self) -> bool:
        """Whether it is nowhere else, once whoever is there has had the time to fetch it."""
        while not self._is_safe():
            left_s = self._going[self._me] - time.monotonic()
            if left_s < LAST_S or not early_end.is_there(presence.count(), presence.silent_s()):
                return True
            time.sleep(LOOK_S)
        return False

    def _is_safe(self) -> bool:
        home = os.path.join(self._node.run(self._spec["run"]), hold.HOME)
        return os.path.exists(home) or (sink.known(self._node, self._spec["run"]) or {}).get("state") == "safe"

    # What goes.

    def _give(self, wire: Wire, to: int) -> None:
        wire.limit(max(SILENCE_S, self._going[self._me] - time.monotonic()))  # its own run may be ending still
        files = size = 0
        try:
            for path, mtime_ns in self._newest():
                try:
                    fd = os.open(os.path.join(os.fsencode(self._tree()), raw(path)), os.O_RDONLY)
                except OSError:
                    continue  # gone meanwhile, or not ours to read: it keeps no other file here
                with open(fd, "rb") as file:
                    length = os.fstat(file.fileno()).st_size
                    if size + length > MOST:
                        continue
                    _sent(wire, {"path": path, "size": length, "mtime_ns": mtime_ns})
                    if not _heard(wire).get("want"):
                        continue
                    self._stream(wire, file, length)
                if _heard(wire).get("kept"):
                    files, size = files + 1, size + length
            _sent(wire, {"end": True})
        finally:
            if files:
                self._event("handed", to=to, files=files, bytes=size)

    def _newest(self) -> Iterator[tuple[str, int]]:
        question = {"run": self._spec["run"], "patterns": self._spec.get("outs") or []}
        found = outputs.outs(self._node, question, lambda _item: None)["files"]
        for path, _size, mtime_ns in sorted(found, key=lambda row: row[2], reverse=True):
            if os.path.isfile(os.path.join(os.fsencode(self._tree()), raw(path))):
                yield path, mtime_ns

    def _stream(self, wire: Wire, file: Any, length: int) -> None:
        left = length
        while left:
            if time.monotonic() > self._going[self._me]:
                raise TooLate("the machine was about to go")
            block = file.read(min(BLOCK, left))
            if not block:
                raise OSError(None, "a file became shorter while it was handed over")
            wire.write(block)
            left -= len(block)
        wire.write(b"")

    # What comes.

    def _take(self, wire: Wire, of: int) -> None:
        wire.limit(max(SILENCE_S, self._going.get(of, 0.0) - time.monotonic()))  # it may wait for a client first
        matches = outputs.matcher(self._spec.get("outs") or [])
        files = size = 0
        try:
            offer = _heard(wire)
            while not offer.get("end"):
                path, length, mtime_ns = checked(offer["path"]), int(offer["size"]), int(offer["mtime_ns"])
                wire.limit(SILENCE_S)
                wants = matches(path) and self._is_wanted(path, length, mtime_ns)
                _sent(wire, {"want": wants})
                if wants:
                    self._keep(wire, path, length, mtime_ns)
                    self._hold(path, of)
                    _sent(wire, {"kept": True})
                    files, size = files + 1, size + length
                offer = _heard(wire)
        finally:
            if files:
                self._event("took", of=of, files=files, bytes=size)

    def _is_wanted(self, path: str, length: int, mtime_ns: int) -> bool:
        found = TreeFolder(self._tree()).look(path)
        free = free_bytes(self._tree())
        if free is not None and free < length + ROOM:
            return False
        return found.kind == ABSENT or (found.kind == FILE and found.entry.mtime_ns < mtime_ns)

    def _keep(self, wire: Wire, path: str, length: int, mtime_ns: int) -> None:
        """Write it beside the tree, and put it into its place when it is whole. Raises OSError, Refusal."""
        part = self._node.path(f"{PART}-{threading.get_ident()}")
        left = length
        try:
            with open(part, "wb") as file:
                while block := wire.read():
                    left -= len(block)
                    if left < 0:
                        break
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            if left:
                raise OSError(None, f"{path} is not as long as was announced")
            os.utime(part, ns=(mtime_ns, mtime_ns))
            with self._lock:  # another node may hand over a newer one just now
                if not self._is_wanted(path, 0, mtime_ns):
                    raise OSError(None, f"{path} has become newer here meanwhile")
                TreeFolder(self._tree()).place(path, os.fsencode(part))
        finally:
            if os.path.lexists(part):
                os.unlink(part)

    def _hold(self, path: str, of: int) -> None:
        """What was fetched from here before is not all any more: this node waits for its user again."""
        folder = self._node.run(self._spec["run"])
        with self._lock:
            write_json(os.path.join(folder, STATE), {**handed(folder), path: of})
            home = os.path.join(folder, hold.HOME)
            if os.path.exists(home):
                os.unlink(home)
        self._node.touch()

    def _tree(self) -> str:
        return self._node.tree(self._spec["tree"])


def handed(folder: str) -> dict[str, int]:
    """What other nodes have handed to this one of a run: path -> node."""
    return dict(read_json(os.path.join(folder, STATE)) or {})


def _sent(wire: Wire, message: Mapping[str, Any]) -> None:
    if not wire.send(message):
        raise ConnectionError("the other node has gone")


def _heard(wire: Wire) -> dict[str, Any]:
    message = wire.receive()
    if message is None:
        raise ConnectionError("the other node has gone")
    return message
