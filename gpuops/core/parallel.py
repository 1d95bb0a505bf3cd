"""The same work on several nodes at once, in a thread for each.

Nodes are few and their work is waiting, so nothing limits how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from gpuops.agent.workers import WORKERS

T = TypeVar("T")
R = TypeVar("R")

JOIN_INTERVAL_S = 0.5
"""On Windows Ctrl-C interrupts no wait: it is noticed between two waits of this length."""


def on_each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Run `work` on every item at once. Returns results in order; raises the first item's failure when all have ended.

    An interrupt of the calling thread waits for none of the others.
    """
    results: dict[int, R] = {}
    failures: dict[int, BaseException] = {}

    def one(index: int, item: T) -> None:
        try:
            results[index] = work(item)
        except BaseException as error:
            failures[index] = error

    jobs = [WORKERS.start(partial(one, *pair), "each") for pair in enumerate(items)]
    for job in jobs:
        while not job.join(JOIN_INTERVAL_S):
            pass
    if failures:
        raise failures[min(failures)]
    return [results[index] for index in range(len(items))]


def run_both(first: Callable[[], T], second: Callable[[], R]) -> tuple[T, R]:
    """Two pieces of work at once. Raises the first one's failure before the second's, when both have ended."""
    answers: list[Any] = on_each(lambda work: work(), [first, second])
    return answers[0], answers[1]
