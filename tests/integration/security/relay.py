"""Somebody on the way between two nodes of a run: sees every byte, and passes on what it likes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from gpuops.agent.peers.authenticated_channel import HEAD

Way = Literal["to member", "to head"]
LINES: dict[Way, int] = {"to member": 2, "to head": 1}
"""What each side says before its first frame: nonce and proof, and an answer."""


@dataclass
class Passing:
    """One connection through the relay."""

    ends: dict[Way, socket.socket]
    """Where what travels this way comes out."""
    seen: dict[Way, list[bytes]] = field(default_factory=lambda: {"to member": [], "to head": []})
    """Whole frames, as they were sent."""

    def close(self) -> None:
        for end in self.ends.values():
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


Meddle = Callable[[Passing, Way, int, bytes], "bytes | None"]
"""What goes on in place of the n-th frame (from 0); None: the connection is cut."""


def honest(_passing: Passing, _way: Way, _number: int, frame: bytes) -> bytes | None:
    return frame


class Relay:
    """Meddles with one connection after the other, as many as there are; the others are passed on as they are."""

    def __init__(self, head: tuple[str, int], *meddles: Meddle) -> None:
        self._head = head
        self._meddles = meddles
        self.passed: list[Passing] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for passing in self.passed:
            passing.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._head)
            except OSError:
                return
            meddle = self._meddles[len(self.passed)] if len(self.passed) < len(self._meddles) else honest
            passing = Passing({"to member": near, "to head": far})
            self.passed.append(passing)
            for way, source in (("to member", far), ("to head", near)):
                threading.Thread(target=self._carry, args=(passing, way, source, meddle), daemon=True).start()

    def _carry(self, passing: Passing, way: Way, source: socket.socket, meddle: Meddle) -> None:
        target = passing.ends[way]
        try:
            with source.makefile("rb") as stream:
                for _ in range(LINES[way]):
                    target.sendall(stream.readline())
                while len(head := stream.read(HEAD.size)) == HEAD.size:
                    frame = head + stream.read(HEAD.unpack(head)[0])
                    passing.seen[way].append(frame)
                    goes_on = meddle(passing, way, len(passing.seen[way]) - 1, frame)
                    if goes_on is None:
                        return
                    target.sendall(goes_on)
        except OSError:
            pass  # one of them has gone
        finally:
            passing.close()
