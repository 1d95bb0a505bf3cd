"""The client of a relay: frames from it, lines of JSON to it, and what its sums prove."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, BinaryIO, Callable

from gpuops.agent import wire_format
from gpuops.agent.node import Refusal


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
