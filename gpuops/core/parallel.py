"""The same work on several nodes at once, a thread for each.

Nodes are few and their work is waiting, so there is no pool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

JOIN_INTERVAL_S = 0.5
"""On Windows Ctrl-C interrupts no wait: it is noticed between two waits of this length."""


def on_each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Run `work` on every item at once. Returns results in order; raises the first item's failure when all have ended.

    The threads are daemons: an interrupt of the calling thread waits for none of them.
    """
    results: dict[int, R] = {}
    failures: dict[int, BaseException] = {}

    def one(index: int, item: T) -> None:
        try:
            results[index] = work(item)
        except BaseException as error:
            failures[index] = error

    threads = [threading.Thread(target=one, args=pair, daemon=True) for pair in enumerate(items)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(JOIN_INTERVAL_S)
    if failures:
        raise failures[min(failures)]
    return [results[index] for index in range(len(items))]
