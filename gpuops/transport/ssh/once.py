"""Doing something once for all who need it at the same time; its failure is everybody's, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuops.core.errors import NodeError
from gpuops.transport.ssh import errors

T = TypeVar("T")


class Once(Generic[T]):
    """One login at a time. A server counts failed ones and bans, so that those who waited do not try again each."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._attempts = 0
        self._failure: NodeError | None = None

    def get(self, there: Callable[[], T | None], make: Callable[[], T]) -> T:
        """What is `there` already, else what `make` makes; or the failure of who made it while we waited."""
        if (found := there()) is not None:
            return found
        seen = self._attempts
        with self._turn:
            if (found := there()) is not None:
                return found
            if self._attempts != seen and self._failure is not None:
                raise errors.again(self._failure)
            self._failure = None
            try:
                return make()
            except NodeError as error:
                self._failure = error
                raise
            finally:
                self._attempts += 1
