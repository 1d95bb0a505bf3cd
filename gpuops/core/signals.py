"""Ctrl-C, SIGTERM and SIGHUP (Windows: SIGBREAK) as one command handles them.

While a command goes `forward`, a signal raises in the main thread: Interrupted, or HandOver for SIGHUP. Inside
`shielded` it waits for the end of the block: a provider call must be journalled before anything else happens. After
the first signal the command goes `backward`, that is, it undoes: a further signal only sets `hurry`. A command that
ends something already (`insist`) answers the first signal with a callback; the second raises. What is ignored on entry
stays so: `nohup` sees to that for SIGHUP. Threads that do a command's work have Signals of their own, to which the main
thread relays what comes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gpuops.core.errors import Interrupted
from gpuops.core.platform import HERE


class HandOver(Interrupted):
    """The terminal is gone: the guard continues."""


class Signals:
    """The handlers of one command, installed on entry; the former ones are restored on exit."""

    def __init__(
        self, on_first: Callable[[], None] = lambda: None, on_second: Callable[[], None] = lambda: None
    ) -> None:
        self.count = 0
        self._forward = False
        self._shield = 0
        self._insists: Callable[[], None] | None = None
        self._pending: Interrupted | None = None
        self._on_first = on_first
        self._on_second = on_second
        self._former: dict[int, Any] = {}

    @property
    def hurry(self) -> bool:
        """A second signal came: the command skips what is not necessary."""
        return self.count > 1

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", HERE.hang_up):
                number = getattr(signal, name)
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._former[number] = signal.signal(number, self._handle)
        self._forward = True
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def backward(self) -> None:
        """From here on the command undoes: signals only hurry it."""
        self._forward = False

    def forward(self) -> None:
        """The command goes on after it has undone something. Raises Interrupted where a signal came in between."""
        if self.count:
            raise Interrupted("interrupted", "")
        self._forward = True

    def relay(self, count: int, error: Interrupted | None = None) -> None:
        """Tell what another thread's signals have come to: `check` of the thread that these are for raises `error`, the
        first of them. Signals themselves are heard in the main thread alone."""
        self.count = count
        if error is not None and self._forward:
            self._forward, self._pending = False, error

    def check(self) -> None:
        """Raise what was relayed to this thread, once."""
        self._raise_pending()

    def insist(self, on_first: Callable[[], None]) -> None:
        """From here on the first signal calls `on_first` and the second raises Interrupted; SIGHUP is ignored."""
        self._forward = False
        self._insists = on_first

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Delay a signal until the block is done."""
        self._shield += 1
        try:
            yield
        finally:
            self._shield -= 1
            self._raise_pending()  # also where the block failed: no retry is wanted any more

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == getattr(signal, HERE.hang_up):
            if self._forward:
                self._interrupt(HandOver("the terminal is gone", ""))
            return
        self.count += 1
        if self._insists is not None:
            self._insisted(self._insists)
            return
        if self.count == 2:
            self._on_second()
        if self._forward:
            self._on_first()
            self._interrupt(Interrupted("interrupted", ""))

    def _insisted(self, answer: Callable[[], None]) -> None:
        if self.count == 1:
            answer()
        elif self.count == 2:
            self._interrupt(Interrupted("interrupted", ""))

    def _interrupt(self, error: Interrupted) -> None:
        self._forward = False  # only one is ever raised
        self._pending = error
        if not self._shield:
            self._raise_pending()

    def _raise_pending(self) -> None:
        if self._pending is not None and not self._shield:
            pending, self._pending = self._pending, None
            raise pending
