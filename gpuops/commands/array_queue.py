"""The indices of an array as its places take them: which wait, which go on, and what became of the others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from gpuops.commands.array_plan import IndexOutcome, format_indices
from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, NodeError


class IndexQueue:
    """The indices that wait, those that go on, and what became of the others. Shared by the places' threads.

    The first index never waits: its run stood in the ledger for the whole array.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = indices
        self.error: BaseException | None = None
        """What ends the whole command: a fault of ours, or a guard that has taken over."""
        self._waiting = deque(indices[1:])
        self._outcomes: dict[int, IndexOutcome] = {}
        self._live: dict[int, Context] = {}
        self._signal: tuple[int, Interrupted] | None = None
        self._why_stopped = ""
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """The next index; None where there is none, or none may begin any more."""
        with self._lock:
            return self._waiting.popleft() if self._waiting and not self._why_stopped else None

    def stop(self, why: str, error: BaseException | None = None) -> None:
        """No further run begins."""
        with self._lock:
            self._why_stopped = self._why_stopped or why
            self.error = self.error or error

    def relay(self, count: int, error: Interrupted) -> None:
        """Tell every run of a signal."""
        with self._lock:
            self._signal = count, error
            for ctx in self._live.values():
                ctx.signals.relay(count, error)

    def begin(self, index: int, ctx: Context) -> None:
        with self._lock:
            self._live[index] = ctx
            if self._signal:
                ctx.signals.relay(*self._signal)

    def end(self, outcome: IndexOutcome) -> None:
        with self._lock:
            self._outcomes[outcome.index] = outcome
            self._live.pop(outcome.index, None)

    def format_waiting(self) -> str:
        """The indices that wait, as `--array` takes them; empty for none."""
        with self._lock:
            return format_indices(self._waiting)

    def describe(self) -> str:
        with self._lock:
            return f"ended: {len(self._outcomes)}, running: {len(self._live)}, waiting: {len(self._waiting)}"

    def outcomes(self, *, interrupted: bool) -> list[IndexOutcome]:
        """Of every index; of those that were not begun as well."""
        code = Interrupted.exit_code if interrupted else NodeError.exit_code
        why = self._why_stopped or "no node of it is left"
        return [self._outcomes.get(index) or IndexOutcome(index, code, f"not started: {why}") for index in self.indices]
