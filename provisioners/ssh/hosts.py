"""The file of hosts that something of ours may be on: how each is reached, and its key at the first login."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.core.errors import Rejected, Unknown, UsageError
from gpuops.core.file_lock import LockTimeout, file_lock
from gpuops.core.files import write_atomic
from gpuops.core.polling import Clock

if TYPE_CHECKING:
    from gpuops.transport.ssh import Target


LOCK_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class KnownHost:
    """A host that was logged in to: where our folder is there, and the Python that runs the agent."""

    target: Target
    root: str
    python: str
    """Empty where it is needed in containers alone."""
    engine: str = ""
    """Of the nodes in containers; empty for nodes on the host itself, which have a root of their own."""
    written_at: float = field(default=0.0, compare=False)
    """When this entry was written, in UTC seconds; given by `HostBook`."""


class HostBook:
    """JSON, by the host's name. Several commands may write it: a change holds a lock, and each write is atomic."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or Clock()

    def names(self) -> list[str]:
        return sorted(self._read())

    def get(self, name: str) -> KnownHost | None:
        from gpuops.transport.ssh import Target

        entry = self._read().get(name)
        if not entry:
            return None
        try:
            target, engine = Target.from_document(entry["target"]), str(entry.get("engine") or "")
            return KnownHost(target, str(entry["root"]), str(entry["python"]), engine, _written_at(entry))
        except (KeyError, TypeError, UsageError) as error:
            shown = name if name.isprintable() else repr(name)
            raise self._unreadable(f"what it says of {shown} is not what gpuops wrote") from error

    def require(self, name: str) -> KnownHost:
        """The entry of a host. Raises Rejected where another command has removed it."""
        known_host = self.get(name)
        if known_host is None:
            raise Rejected(f"{name} was forgotten while it was used", "try again")
        return known_host

    def record(self, name: str, known_host: KnownHost) -> None:
        with self._locked_book() as book:
            book[name] = {
                "target": known_host.target.document(),
                "root": known_host.root,
                "python": known_host.python,
                "engine": known_host.engine,
                "at": max(self._clock.now(), _written_at(book.get(name)) + 1e-3),
            }

    def remove_unchanged(self, name: str, known_host: KnownHost) -> None:
        """Remove an entry, unless another command has written it since `known_host` was read: it may create a node."""
        with self._locked_book() as book:
            if name in book and _written_at(book[name]) == known_host.written_at:
                del book[name]

    def remove(self, name: str) -> bool:
        """Remove a host whatever may be on it. Returns whether it was in the file."""
        with self._locked_book() as book:
            return book.pop(name, None) is not None

    def _read(self) -> dict[str, Any]:
        try:
            book = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise self._unreadable(str(error)) from error
        if not isinstance(book, dict):
            raise self._unreadable("it is no list of hosts")
        return book

    def _unreadable(self, why: str) -> Rejected:
        return Rejected(
            f"{self.path} cannot be read: {why}",
            f"restore it: it tells where something of ours may be; or begin it anew: mv {self.path} {self.path}.old",
        )

    @contextmanager
    def _locked_book(self) -> Iterator[dict[str, Any]]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with file_lock(self.path.with_suffix(".lock"), LOCK_TIMEOUT_S):
                book = self._read()
                yield book
                write_atomic(self.path, json.dumps(book).encode())
        except LockTimeout:
            raise Unknown(f"{self.path} is held by another command", "try again") from None
        except OSError as error:
            raise Unknown(f"{self.path} cannot be written: {error}", "free some space") from error


def _written_at(entry: object) -> float:
    """When an entry was written, in UTC seconds; 0 where it does not say."""
    written_at = entry.get("at") if isinstance(entry, dict) else None
    return float(written_at) if isinstance(written_at, int | float) else 0.0
