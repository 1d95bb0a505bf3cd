"""A provisioner held to its contract, ours or a third party's: it answers in time, in our errors, each resource once.

An exception of an SDK becomes Unknown, a call that never returns too; a thing listed twice is
listed once; a state that the contract does not know is `unknown`. So its callers handle
GpuopsError alone, and no provider can stop `down`, `reap` or the guard.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from gpuops.agent.workers import WORKERS
from gpuops.core.account_variables import AccountVariables
from gpuops.core.errors import GpuopsError, Partial, Unknown
from gpuops.core.models import (
    Intent,
    Journal,
    Offer,
    Option,
    Payer,
    Problem,
    Request,
    Resource,
    ResourceState,
    SiteFact,
)
from gpuops.core.quota import Quota, QuotaIncrease, QuotaReport
from provisioners.base import Provisioner, TellsQuota

CALL_TIMEOUT_S = 180.0
"""How long a call other than `create` may take. A provisioner has shorter limits for each request of its own."""

ANY_OWNER = re.compile(r"gpuops-[0-9a-f]{8}-[a-z]")
"""How the name of anything begins that some home's gpuops has made."""
PAYER_EXTRA_S = 10.0
"""What a provisioner may take to find its key, beside its patience with others."""

T = TypeVar("T")


class CheckedProvisioner:
    """A LoadedProvisioner around a Provisioner: `inner`, as it was written. Its optional methods are looked for here
    alone."""

    def __init__(self, inner: Provisioner, limit_s: float = CALL_TIMEOUT_S) -> None:
        self.inner = inner
        self._limit_s = limit_s
        self.contract = inner.contract
        self.name = inner.name
        self.capabilities: Mapping[str, bool | str] = dict(inner.capabilities)
        self.options: Sequence[Option] = tuple(inner.options)
        declared = declared_variables(inner)
        self.credentials: Sequence[str] = declared.credentials
        self.surroundings: Sequence[str] = declared.surroundings
        self.launches_apart_s = float(getattr(inner, "launches_apart_s", 0.0))
        self.grants_machines = bool(getattr(inner, "grants_machines", False))
        self.examples: Sequence[str] = tuple(map(str, getattr(inner, "examples", ())))
        self.ends_only_its_own = bool(getattr(inner, "ends_only_its_own", False))
        self.settle_s = float(inner.settle_s)
        self.gone_s = float(inner.gone_s)

    def preflight(self, request: Request) -> Sequence[Problem]:
        return self._limited(lambda: list(self.inner.preflight(request)))

    def offers(self, request: Request) -> Sequence[Offer]:
        return self._limited(lambda: list(self.inner.offers(request)))

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        # In this thread, since the journal is this thread's. A creation that hangs is ended by the guard.
        return self._translated(lambda: list(self.inner.create(offer, intent, journal)))

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        prefix = re.compile(f"gpuops-{re.escape(owner)}-")
        return self._list_marked(prefix, lambda: self.inner.list_owned(owner, regions))

    def list_every_owner(self) -> Sequence[Resource]:
        find: Callable[[], Sequence[Resource]] | None = getattr(self.inner, "list_every_owner", None)
        return [] if find is None else self._list_marked(ANY_OWNER, find)

    def _list_marked(self, prefix: re.Pattern[str], find: Callable[[], Sequence[Resource]]) -> Sequence[Resource]:
        try:
            return self._limited(lambda: _marked_resources(prefix, find()))
        except Partial as error:
            found = error.found
            raise Partial(
                error.message, error.hint, self._translated(lambda: _marked_resources(prefix, found))
            ) from error

    def describe(self, resource: Resource) -> Resource:
        described = self._limited(lambda: _with_known_state(self.inner.describe(resource)))
        if described.key != resource.key:  # it may be another user's, and be destroyed next
            say = f"{self.name} was asked about {resource.kind} {resource.id}, and described {described.id}"
            raise Unknown(say, "try again in a minute")
        return described

    def destroy(self, resources: Sequence[Resource]) -> None:
        self._limited(lambda: self.inner.destroy(resources))

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:
        return self._limited(lambda: self.inner.self_destruct(resource))

    def forget(self, region: str) -> bool:
        forget: Callable[[str], bool] | None = getattr(self.inner, "forget", None)
        return forget is not None and self._limited(lambda: forget(region))

    def standing(self, request: Request) -> Sequence[Resource]:
        find: Callable[[Request], Sequence[Resource]] | None = getattr(self.inner, "standing", None)
        return [] if find is None else self._limited(lambda: list(find(request)))

    def survey(self, request: Request) -> Sequence[SiteFact]:
        tell: Callable[[Request], Sequence[SiteFact]] | None = getattr(self.inner, "survey", None)
        return [] if tell is None else self._limited(lambda: list(tell(request)))

    def balance(self) -> float | None:
        tell: Callable[[], float | None] | None = getattr(self.inner, "balance", None)
        return None if tell is None else self._limited(tell)

    def account(self) -> Mapping[str, float] | None:
        tell: Callable[[], Mapping[str, float | None] | None] | None = getattr(self.inner, "account", None)
        if tell is not None:
            told = self._limited(tell)
            return None if told is None else _finite_numbers(told)
        if not hasattr(self.inner, "balance"):
            return None
        return _finite_numbers({"balance": self.balance()})

    def payer(self, request: Request, patience_s: float = 0.0) -> Payer | None:
        tell: Callable[[Request, float], Payer] | None = getattr(self.inner, "payer", None)
        if tell is None:
            return None
        try:
            payer = call_with_timeout(
                lambda: tell(request, patience_s), patience_s + PAYER_EXTRA_S, f"payer at {self.name}"
            )
        except Exception:
            payer = None
        return payer if isinstance(payer, Payer) else Payer("", "")

    def provider_time(self) -> float | None:
        tell: Callable[[], float | None] | None = getattr(self.inner, "provider_time", None)
        try:
            told = None if tell is None else tell()
        except Exception:
            return None
        return float(told) if isinstance(told, int | float) and math.isfinite(told) else None

    def last_words(self, resource: Resource) -> str:
        tell: Callable[[Resource], str] | None = getattr(self.inner, "last_words", None)
        return "" if tell is None else self._limited(lambda: str(tell(resource)))

    def quota(self, request: Request) -> QuotaReport | None:
        tell: Callable[[Request], QuotaReport] | None = getattr(self.inner, "quota", None)
        return None if tell is None else self._limited(lambda: tell(request))

    def request_quota(self, quota: Quota, wanted: float) -> QuotaIncrease:
        inner = cast(TellsQuota, self.inner)
        return self._limited(lambda: inner.request_quota(quota, wanted))

    def requested_quota(self, quota: Quota, id: str) -> QuotaIncrease:
        inner = cast(TellsQuota, self.inner)
        return self._limited(lambda: inner.requested_quota(quota, id))

    def policy(self, sink: str = "") -> Mapping[str, Any] | None:
        tell: Callable[[str], Mapping[str, Any]] | None = getattr(self.inner, "policy", None)
        return None if tell is None else self._limited(lambda: tell(sink))

    def admit(self, resources: Sequence[Resource]) -> bool:
        admit: Callable[[Sequence[Resource]], bool] | None = getattr(self.inner, "admit", None)
        return False if admit is None else self._limited(lambda: bool(admit(resources)))

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
        """The call's value. Raises Unknown when it does not return in time."""
        try:
            return call_with_timeout(lambda: self._translated(call), self._limit_s, f"{self.name} call")
        except CallTimeout:
            raise Unknown(
                f"{self.name} did not answer within {self._limit_s:.0f} s", "check the network, try again"
            ) from None


def declared_variables(one: object) -> AccountVariables:
    """The account's variables that a provisioner, its class or its factory declares; none where it declares none."""
    return AccountVariables(tuple(getattr(one, "credentials", ())), tuple(getattr(one, "surroundings", ())))


class CallTimeout(Exception):
    """A call has not returned in time."""


def call_with_timeout(call: Callable[[], T], limit_s: float, name: str) -> T:
    """Run a call in a thread; return or raise what it does. Raises CallTimeout at the limit; the thread goes on."""
    outcome: list[T | BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    if not WORKERS.start(work, name).join(limit_s):
        raise CallTimeout
    value = outcome[0]
    if isinstance(value, BaseException):
        raise value
    return value


def _marked_resources(prefix: re.Pattern[str], listed: Sequence[Resource]) -> list[Resource]:
    marked = [_with_known_state(resource) for resource in listed if prefix.match(resource.name)]
    return list({(resource.kind, resource.id): resource for resource in marked}.values())


def _finite_numbers(reported: Mapping[str, float | None]) -> dict[str, float]:
    """The finite numbers alone; a provider may report more, such as its account's name."""
    numbers = {name: value for name, value in reported.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _with_known_state(resource: Resource) -> Resource:
    state = ResourceState.parse(resource.state or ResourceState.UNKNOWN)
    if state is ResourceState.LEAVING:
        return dataclasses.replace(resource, state=state, bills=False, per_hour=0.0)
    return dataclasses.replace(resource, state=state)
