"""Several questions at once, each with an answer or an error of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gpuops.core.errors import ProviderError, UsageError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MOST = 8
"""So many at a time: AWS counts requests, and what it allows to describe refills by 20 a second."""


def together(calls: Mapping[K, Callable[[], V]], most: int = MOST) -> dict[K, V | ProviderError | UsageError]:
    """What each came to, in the order given. What is no error of ours is raised once all have ended."""
    if not calls:
        return {}
    with ThreadPoolExecutor(min(most, len(calls)), thread_name_prefix="aws") as pool:
        under_way = {name: pool.submit(_settled, call) for name, call in calls.items()}
        return {name: future.result() for name, future in under_way.items()}


def _settled(call: Callable[[], V]) -> V | ProviderError | UsageError:
    try:
        return call()
    except (ProviderError, UsageError) as error:
        return error


def sure(settled: V | ProviderError | UsageError) -> V:
    """An answer without which there is no going on. Raises what it came to instead."""
    if isinstance(settled, ProviderError | UsageError):
        raise settled
    return settled
