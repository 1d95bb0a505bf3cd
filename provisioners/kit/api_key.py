"""An account that is known by its one API key: where the key comes from, and what was made with another one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gpuops.core.errors import AuthFailed, NotSetUp
from gpuops.core.models import Resource
from provisioners.base import Credential


def checked_key(found: Credential | None, variable: str, who: str, hint: str) -> Credential:
    """A key as `Context.credential` finds it. Raises NotSetUp, AuthFailed.

    hint   how one gets a key
    """
    if found is None:
        raise NotSetUp(f"there is no {who} API key: {variable} is not set", hint)
    secret = found.values[variable]
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise AuthFailed(f"the {who} API key is no key: it has characters that none has", hint)
    return found


def fingerprint(secret: str) -> str:
    """12 hex digits that tell one key from another, and from which no key can be recovered."""
    return hashlib.sha256(secret.encode()).hexdigest()[:12]


def kept_account(resource: Resource) -> Mapping[str, str]:
    """What a resource keeps of its account (`Resource.data["account"]`)."""
    account = resource.data.get("account")
    return account if isinstance(account, dict) else {}


def has_other_key(resource: Resource, key: str) -> bool:
    """Whether a resource was made with another key, by the fingerprint that it keeps as its account's `key`."""
    kept = kept_account(resource).get("key")
    return bool(kept) and kept != fingerprint(key)


def other_key(resource: Resource, variable: str) -> AuthFailed:
    """The error where a provider does not find what may be another account's, and go on there."""
    return AuthFailed(
        f"{resource.name} was made with another API key, and this one does not see it",
        f"use that key again: export {variable}=…",
    )
