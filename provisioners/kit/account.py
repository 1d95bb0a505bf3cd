"""The account of an API key: whose it is, what money is on it, and what is no other account's for sure."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import AuthFailed, ProviderError
from gpuops.core.models import Payer, Resource
from gpuops.core.polling import Clock
from provisioners.checked_provisioner import CallTimeout, call_with_timeout
from provisioners.kit.json_api import JsonApi
from provisioners.kit.service import fingerprint


@dataclass(frozen=True)
class AccountFacts:
    """What a provider says of an account. Money is in $, None where it is not known; text is empty then."""

    id: str = ""
    email: str = ""
    balance: float | None = None
    spend_per_hr: float | None = None
    """$/h that the account spends now."""
    spend_limit: float | None = None
    """$/h that it may spend."""

    def document(self) -> dict[str, Any]:
        """By name, those that are known."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in ("", None)}


class KeyAccount:
    """The account of the key that is there now. May be used from any thread; construction touches nothing.

    ask   asks the provider, where it has a question for that. Raises ProviderError
    """

    def __init__(self, api: JsonApi, clock: Clock, ask: Callable[[], AccountFacts] = AccountFacts) -> None:
        self._api = api
        self._clock = clock
        self._ask = ask
        self._lock = threading.Lock()
        self._known: dict[str, AccountFacts] = {}
        """By a key's fingerprint."""
        self._asked_at: dict[str, float] = {}
        """By the same, on the monotonic clock."""
        self._seen: set[tuple[str, str]] = set()
        """A key's fingerprint and the id of a machine that the provider has told it of: it is of the same account,
        whatever key made it."""

    def facts(self, max_age_s: float = float("inf")) -> AccountFacts:
        """What the provider says of the account; it is asked again where its answer is older than `max_age_s`. Whose
        account it is stays known where a later question is not answered. Raises ProviderError."""
        key = fingerprint(self._api.key)
        with self._lock:
            known = self._known.get(key)
            if known is None or self._clock.monotonic() - self._asked_at[key] >= max_age_s:
                told, before = self._ask(), known or AccountFacts()
                known = told if told.id else dataclasses.replace(told, id=before.id, email=before.email)
                self._known[key], self._asked_at[key] = known, self._clock.monotonic()
            return known

    def payer(self, patience_s: float) -> Payer:
        """Whose account it is, and where its key came from. Nobody is asked twice, nor for longer than `patience_s`."""
        found = self._api.find_key()
        key = fingerprint(found.values[self._api.service.key_variable])
        if patience_s > 0 and key not in self._known:
            with suppress(CallTimeout, ProviderError):
                call_with_timeout(self.facts, patience_s, "payer")
        known = self._known.get(key) or AccountFacts()
        name = known.email or (f"{self._api.service.name} account {known.id}" if known.id else "")
        return Payer(name, found.source)

    def data(self, kept: Resource | None = None) -> dict[str, str]:
        """What a resource keeps of its account: the key's fingerprint, and the id where that is known. `kept`: as the
        ledger knows it, by this key or by another one."""
        key, before = fingerprint(self._api.key), kept_account(kept) if kept else {}
        known = self._known.get(key) or AccountFacts()
        id_ = known.id or (before.get("id") if before.get("key") == key else "")
        return {"key": key, **({"id": str(id_)} if id_ else {})}

    def saw(self, account: Mapping[str, str], ids: Iterable[str]) -> None:
        """The provider has told of these machines. `account`: `data` from before it was asked, since the key may be
        another one by now."""
        self._seen |= {(account["key"], id_) for id_ in ids}

    def check(self, resource: Resource) -> None:
        """Raises AuthFailed where what the provider does not find may be another account's, and go on there."""
        key = fingerprint(self._api.key)
        kept = kept_account(resource)
        if (kept.get("key") or key) == key or (key, resource.id) in self._seen:
            return
        if not kept.get("id") or kept["id"] != self.facts().id:
            raise AuthFailed(
                f"{resource.name} was made with another API key, and this one does not see it",
                f"use that key again: export {self._api.service.key_variable}=…",
            )


def kept_account(resource: Resource) -> Mapping[str, str]:
    """What a resource keeps of its account (`Resource.data["account"]`)."""
    account = resource.data.get("account")
    return account if isinstance(account, dict) else {}
