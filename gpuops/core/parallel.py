"""Work beside the caller's, in threads: the same on several nodes at once, or one piece of another kind.

Nodes are few and their work is waiting, so nothing limits how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from gpuops.agent.workers import WORKERS

T = TypeVar("T")
R = TypeVar("R")

JOIN_INTERVAL_S = 0.5
"""On Windows Ctrl-C interrupts no wait: it is noticed between two waits of this length."""


class BackgroundTask(Generic[T]):
    """Work that goes on in a thread. An interrupt of whoever waits for it does not."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._failure: BaseException | None = None
        self._job = WORKERS.start(self._run, "beside")

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._failure = error

    def wait(self) -> None:
        while not self._job.join(JOIN_INTERVAL_S):
            pass

    def result(self) -> T:
        """Wait for it. Raises what it has raised."""
        self.wait()
        if self._failure is not None:
            raise self._failure
        return self._results[0]


def on_each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Run `work` on every item at once. Returns results in order; raises the first item's failure when all have ended.

    An interrupt of the calling thread waits for none of the others.
    """
    tasks = [BackgroundTask(partial(work, item)) for item in items]
    for task in tasks:
        task.wait()
    return [task.result() for task in tasks]
