"""Many cases at once: they wait much and work little. A test for each says how its own went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import pytest

C = TypeVar("C")
R = TypeVar("R")


class Together(Generic[C, R]):
    """Plays cases as soon as there is room, in their order."""

    def __init__(self, cases: Sequence[C], play: Callable[[C], R], at_once: int) -> None:
        self._pool = ThreadPoolExecutor(at_once)
        self._futures: dict[C, Future[R]] = {case: self._pool.submit(play, case) for case in cases}

    def __getitem__(self, case: C) -> R:
        """What came of one, when it is over; what it raised is raised."""
        return self._futures[case].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def chosen(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """The values of a parameter in the tests that are to run and use the asking fixture, in their order."""
    mine: list[Any] = [item for item in request.session.items if item.path == request.path]
    return [
        item.callspec.params[parameter]
        for item in mine
        if request.fixturename in item.fixturenames and parameter in item.fixturenames
    ]
