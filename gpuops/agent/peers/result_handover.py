"""Hands the results on a preempted machine over to a node of the run whose machine stays.

It uses the gang link's port and secret, on a connection of its own: a preempted node connects to node 0 in the role
`give`; if node 0 is preempted, one of the others connects in the role `take`. The newest file goes first:

    giver  {"path", "size", "mtime_ns"}
    taker  {"want": true}                 false: its file is as new or newer, or it has no room
    giver  `size` bytes in frames, and an empty frame
    taker  {"kept": true}
    giver  {"end": true}                  after the last
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from functools import partial
from typing import Any, BinaryIO, Callable, Iterator, Mapping, NamedTuple

from gpuops.agent import client_activity
from gpuops.agent.files import output_files
from gpuops.agent.files.folder import TreeFolder, checked_path, free_bytes, path_bytes
from gpuops.agent.files.push_decision import ABSENT, FILE
from gpuops.agent.node import Node, Refusal, log, read_json, remove_file, write_json
from gpuops.agent.peers.authenticated_channel import MAX_FRAME_BYTES, Channel
from gpuops.agent.peers.link import GIVE, TAKE, Link
from gpuops.agent.result_storage import end_after_upload, sink, wait_for_download
from gpuops.agent.run_documents import LaunchSpec, SinkPhase
from gpuops.agent.run_files import HANDED_FILE
from gpuops.agent.workers import WORKERS

LATEST_START_S = 30.0
"""While a client is connected, which may download the results, a handover starts this long before the machine ends."""
SAFETY_CHECK_INTERVAL_S = 0.2
SILENCE_LIMIT_S = 15.0
MAX_HANDOVER_BYTES = 50_000_000_000
"""Of one handover."""
RESERVED_DISK_BYTES = 1_000_000_000
"""Stay free on the node that takes."""
PART = ".gpuops-handed"


class TooLate(Exception):
    """The machine is about to end."""


class Offer(NamedTuple):
    """A file that the giver offers; `path` is relative to the tree."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> Offer:
        """Raises KeyError, TypeError, ValueError, and Refusal for a path outside the tree."""
        return cls(checked_path(message["path"]), int(message["size"]), int(message["mtime_ns"]))


class Handover:
    """One run's handover, on one node. `done` is set once the run has ended here and its results are in their sink."""

    def __init__(
        self, node: Node, spec: LaunchSpec, link: Link, done: threading.Event, event: Callable[..., None]
    ) -> None:
        self._node = node
        self._spec = spec
        self._link = link
        self._done = done
        self._event = event
        self._me = spec.node
        self._preempted: dict[int, float] = {}
        """Preempted nodes, and when their machines end (monotonic)."""
        self._lock = threading.Lock()
        self._giving = threading.Lock()
        self._was_given = False
        link.visit = self.visit

    def note(self, node: int, left_s: float) -> None:
        """The machine of a node ends in `left_s` seconds."""
        until = self._preempted.setdefault(node, time.monotonic() + left_s)
        self._link.open_until = max(self._link.open_until, until)

    def begin(self) -> None:
        """The run has ended: hand over, in a thread, what would be lost with a machine. Node 0 waits to be called."""
        if self._preempted and self._me != 0 and (self._me in self._preempted or 0 in self._preempted):
            WORKERS.start(partial(self._record_failure, self._call_head), "handover")

    def _call_head(self) -> None:
        """The part of every node but node 0."""
        if self._me not in self._preempted:
            self._with_head(TAKE, lambda channel: self._take(channel, 0))
        elif 0 in self._preempted:
            self._event("unhanded", why="node0 goes as well")
        elif self._is_needed():
            self._with_head(GIVE, lambda channel: self._give(channel, 0))

    def _with_head(self, role: str, transfer: Callable[[Channel], None]) -> None:
        channel = self._link.call_head(role)
        if channel is None:
            self._event("unhanded", why="node0 does not answer")
            return
        try:
            transfer(channel)
        finally:
            channel.close()

    def visit(self, member: int, role: str, channel: Channel) -> None:
        """Node 0's part: a member has called, to give or to take."""
        self._record_failure(lambda: self._serve(member, role, channel))

    def _serve(self, member: int, role: str, channel: Channel) -> None:
        self._done.wait(max(0.0, self._link.open_until - time.monotonic()))
        if not self._done.is_set():
            return
        if role == GIVE:
            self._take(channel, member)
            return
        with self._giving:  # a second caller waits: the first may be preempted as well
            if not self._was_given and 0 in self._preempted and self._is_needed():
                self._give(channel, member)
                self._was_given = True
                return
        channel.send({"end": True})

    def _record_failure(self, handover: Callable[[], None]) -> None:
        """Carry out a handover; one that fails is recorded as the event `unhanded`."""
        try:
            handover()
        except (OSError, ValueError, KeyError, TypeError, Refusal, TooLate) as error:
            say = getattr(error, "say", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._event("unhanded", why=say)
        except Exception as error:
            log(f"the results of {self._spec.run} could not be handed over\n{traceback.format_exc()}")
            self._event("unhanded", why=f"{type(error).__name__}: {error}")

    def _is_needed(self) -> bool:
        """Whether the results exist only here. A connected client gets the time to download them first."""
        while not self._is_safe():
            left_s = self._preempted[self._me] - time.monotonic()
            if left_s < LATEST_START_S or not end_after_upload.is_attended(
                client_activity.count_clients(), client_activity.silent_for_s()
            ):
                return True
            time.sleep(SAFETY_CHECK_INTERVAL_S)
        return False

    def _is_safe(self) -> bool:
        """Whether the results were downloaded, or are in their sink."""
        if wait_for_download.is_downloaded(self._node.run(self._spec.run)):
            return True
        state = sink.read_state(self._node, self._spec.run)
        return state is not None and state.state == SinkPhase.SAFE

    # Giving.

    def _give(self, channel: Channel, to: int) -> None:
        """Offer every output to another node, and send those it wants."""
        left_s = self._preempted[self._me] - time.monotonic()
        channel.limit_silence(max(SILENCE_LIMIT_S, left_s))  # the taker's own run may still be ending
        files = size = 0
        try:
            for path, mtime_ns in self._newest():
                try:
                    fd = os.open(os.path.join(os.fsencode(self._tree()), path_bytes(path)), os.O_RDONLY)
                except OSError:
                    continue  # removed meanwhile, or not readable: the other files go on
                with open(fd, "rb") as file:
                    length = os.fstat(file.fileno()).st_size
                    if size + length > MAX_HANDOVER_BYTES:
                        continue
                    _send(channel, Offer(path, length, mtime_ns)._asdict())
                    if not _receive(channel).get("want"):
                        continue
                    self._send_content(channel, file, length)
                if _receive(channel).get("kept"):
                    files, size = files + 1, size + length
            _send(channel, {"end": True})
        finally:
            if files:
                self._event("handed", to=to, files=files, bytes=size)

    def _newest(self) -> Iterator[tuple[str, int]]:
        """Path and mtime in ns of the run's outputs, the newest first."""
        question = {"run": self._spec.run, "patterns": self._spec.outs}
        rows = output_files.outs(self._node, question, lambda _item: None)["files"]
        for path, _size, mtime_ns in sorted(rows, key=lambda row: row[2], reverse=True):
            if os.path.isfile(os.path.join(os.fsencode(self._tree()), path_bytes(path))):
                yield path, mtime_ns

    def _send_content(self, channel: Channel, file: BinaryIO, length: int) -> None:
        """Raises TooLate where the machine is about to end, and OSError."""
        left = length
        while left:
            if time.monotonic() > self._preempted[self._me]:
                raise TooLate("the machine was about to go")
            block = file.read(min(MAX_FRAME_BYTES, left))
            if not block:
                raise OSError(None, "a file became shorter while it was handed over")
            channel.write(block)
            left -= len(block)
        channel.write(b"")

    # Taking.

    def _take(self, channel: Channel, of: int) -> None:
        """Receive the outputs of node `of` that are newer than ours."""
        left_s = self._preempted.get(of, 0.0) - time.monotonic()
        channel.limit_silence(max(SILENCE_LIMIT_S, left_s))  # the giver may wait for a client first
        matches = output_files.compile_patterns(self._spec.outs)
        files = size = 0
        try:
            message = _receive(channel)
            while not message.get("end"):
                offer = Offer.parse(message)
                channel.limit_silence(SILENCE_LIMIT_S)
                is_wanted = matches(offer.path) and self._has_room(offer.size) and self._is_newer(offer)
                _send(channel, {"want": is_wanted})
                if is_wanted:
                    self._receive_file(channel, offer)
                    self._hold(offer.path, of)
                    _send(channel, {"kept": True})
                    files, size = files + 1, size + offer.size
                message = _receive(channel)
        finally:
            if files:
                self._event("took", of=of, files=files, bytes=size)

    def _has_room(self, size: int) -> bool:
        free = free_bytes(self._tree())
        return free is None or free >= size + RESERVED_DISK_BYTES

    def _is_newer(self, offer: Offer) -> bool:
        """Whether the offered file is newer than the one here, or there is none."""
        present = TreeFolder(self._tree()).look(offer.path)
        return present.kind == ABSENT or (present.kind == FILE and present.entry.mtime_ns < offer.mtime_ns)

    def _receive_file(self, channel: Channel, offer: Offer) -> None:
        """Write a file beside the tree, and move it to its place when it is whole. Raises OSError, Refusal."""
        part = self._node.path(f"{PART}-{threading.get_ident()}")
        missing = offer.size
        try:
            with open(part, "wb") as file:
                while block := channel.read():
                    missing -= len(block)
                    if missing < 0:
                        break
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            if missing:
                raise OSError(None, f"{offer.path} is not as long as was announced")
            os.utime(part, ns=(offer.mtime_ns, offer.mtime_ns))
            with self._lock:  # another node may be handing over a newer one
                if not self._has_room(0) or not self._is_newer(offer):
                    raise OSError(None, f"{offer.path} has become newer here meanwhile")
                TreeFolder(self._tree()).place(offer.path, os.fsencode(part))
        finally:
            if os.path.lexists(part):
                os.unlink(part)

    def _hold(self, path: str, of: int) -> None:
        """Hold this run's results again until a client has downloaded them: a file of node `of` came in addition."""
        folder = self._node.run(self._spec.run)
        with self._lock:
            write_json(os.path.join(folder, HANDED_FILE), {**handed_files(folder), path: of})
            remove_file(os.path.join(folder, wait_for_download.HOME))
        self._node.touch()

    def _tree(self) -> str:
        return self._node.tree(self._spec.tree)


def handed_files(folder: str) -> dict[str, int]:
    """Files of a run that other nodes have handed to this one: path -> node."""
    return dict(read_json(os.path.join(folder, HANDED_FILE)) or {})


def _send(channel: Channel, message: Mapping[str, Any]) -> None:
    """Raises ConnectionError."""
    if not channel.send(message):
        raise ConnectionError("the other node has disconnected")


def _receive(channel: Channel) -> dict[str, Any]:
    """Raises ConnectionError."""
    message = channel.receive()
    if message is None:
        raise ConnectionError("the other node has disconnected")
    return message
