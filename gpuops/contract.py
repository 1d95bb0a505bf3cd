"""A provisioner held to its contract: whoever wrote it, it answers in time, in our words, once.

An exception of an SDK becomes Unknown, a call that never returns too; a thing listed twice is
listed once; a state that the contract does not know is `unknown`. So the stories need to know
GpuopsError alone, and no provider can stop `down`, `reap` or the guard from going on.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from gpuops.errors import GpuopsError, Unknown
from gpuops.models import STATES, Intent, Journal, Offer, Problem, Request, Resource
from provisioners.base import Provisioner

CALL_S = 180.0
"""How long a call other than `create` may take; each has shorter limits of its own for the network."""

T = TypeVar("T")


class Checked:
    """A Provisioner around a Provisioner."""

    def __init__(self, inner: Provisioner, limit_s: float = CALL_S) -> None:
        self._inner = inner
        self._limit_s = limit_s
        self.contract = inner.contract
        self.name = inner.name
        self.capabilities = inner.capabilities
        self.options = inner.options
        self.settle_s = inner.settle_s
        self.gone_s = inner.gone_s

    def preflight(self, request: Request) -> Sequence[Problem]:
        return self._limited(lambda: list(self._inner.preflight(request)))

    def offers(self, request: Request) -> Sequence[Offer]:
        return self._limited(lambda: list(self._inner.offers(request)))

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        # In this thread, since the journal is this thread's. A creation that hangs is ended by the guard.
        return self._translated(lambda: list(self._inner.create(offer, intent, journal)))

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        listed = self._limited(lambda: list(self._inner.list_owned(owner, regions)))
        ours = {(one.kind, one.id): _known(one) for one in listed if one.name.startswith(f"gpuops-{owner}-")}
        return list(ours.values())

    def describe(self, resource: Resource) -> Resource:
        return _known(self._limited(lambda: self._inner.describe(resource)))

    def destroy(self, resources: Sequence[Resource]) -> None:
        self._limited(lambda: self._inner.destroy(resources))

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:
        return self._limited(lambda: self._inner.self_destruct(resource))

    def _translated(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except GpuopsError:
            raise
        except Exception as error:
            raise Unknown(
                f"{self.name} failed: {type(error).__name__}: {error}",
                f"this may be a bug in the provisioner '{self.name}': report it to whoever wrote it",
            ) from error

    def _limited(self, call: Callable[[], T]) -> T:
        """The call's value. Raises Unknown when it does not return in time; its thread is left behind."""
        box: list[T | BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                box.append(self._translated(call))
            except BaseException as error:
                box.append(error)
            done.set()

        threading.Thread(target=work, daemon=True, name=f"{self.name} call").start()
        if not done.wait(self._limit_s):
            raise Unknown(f"{self.name} did not answer within {self._limit_s:.0f} s", "check the network, try again")
        value = box[0]
        if isinstance(value, BaseException):
            raise value
        return value


def _known(resource: Resource) -> Resource:
    return resource if resource.state in STATES else dataclasses.replace(resource, state="unknown")
