"""Several calls of a provider's: each is made, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gpuops.core.errors import ProviderError, UsageError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_CALLS_AT_ONCE = 8


def each(calls: Iterable[Callable[[], object]]) -> None:
    """Make all calls, one after another. Raises the first ProviderError, after all were made."""
    errors: list[ProviderError] = []
    for call in calls:
        try:
            call()
        except ProviderError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def ask_all(
    calls: Mapping[K, Callable[[], V]], most: int = MAX_CALLS_AT_ONCE
) -> dict[K, V | ProviderError | UsageError]:
    """The answer or the error of each call, in the order given, `most` at a time. An error that is not ours is raised,
    after all calls have ended."""
    if not calls:
        return {}
    with ThreadPoolExecutor(min(most, len(calls)), thread_name_prefix="provider") as pool:
        under_way = {name: pool.submit(_settled, call) for name, call in calls.items()}
        return {name: future.result() for name, future in under_way.items()}


def _settled(call: Callable[[], V]) -> V | ProviderError | UsageError:
    try:
        return call()
    except (ProviderError, UsageError) as error:
        return error


def require(settled: V | ProviderError | UsageError) -> V:
    """The answer of one call of `ask_all`. Raises its error."""
    if isinstance(settled, ProviderError | UsageError):
        raise settled
    return settled
