"""A provider with an HTTP API and one API key, as plain data: where both are found, and what failed answers mean."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.core.errors import AuthFailed, NotSetUp, ProviderError, RateLimited
from provisioners.base import Context, Credential
from provisioners.kit import error_table
from provisioners.kit.documents import parse_document
from provisioners.kit.error_table import Row, Words, because, read_words
from provisioners.kit.http_api import checked_url, retry_after_s


@dataclass(frozen=True)
class StoredKey:
    """A file in which the provider's own tools keep the key."""

    path: str
    """As people write it: `~/.config/lambda/key`. `~/.config` is where XDG_CONFIG_HOME says."""
    find: Callable[[str], str] = str.strip
    """The key in the file's text; empty where it has none. Raises ValueError where that cannot be read."""

    def place(self, env: Mapping[str, str]) -> Path:
        """Raises RuntimeError where no home directory is known."""
        home = Path(env.get("HOME") or Path.home())
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
        in_config = self.path.removeprefix("~/.config/")
        return home / self.path.removeprefix("~/") if in_config == self.path else config / in_config


@dataclass(frozen=True)
class Service:
    """What `JsonApi` and `RentedProvisioner` must know of a provider."""

    name: str
    """As people call it."""
    address: str
    """What stands before every path."""
    address_variable: str
    """The variable that names another address: `LAMBDA_API_URL`."""
    key_variable: str
    """The variable with the API key, which is sent as `Authorization: Bearer …`."""
    keys_page: str
    """Where people make keys."""
    errors: Sequence[Row] = error_table.STANDARD
    """The provider's own rows, and then the standard ones."""
    read_words: Callable[[int, Any, str], Words] = read_words
    """What a failed answer says, by its status, its JSON (None for what is none) and its text."""
    said_wait: re.Pattern[str] | None = None
    """How an answer's words tell who asks too often to wait, where `Retry-After` does not: seconds, its first group."""
    unsaid_wait_s: float | None = None
    """How long to wait where neither does, as RateLimited tells it."""
    stored_keys: Sequence[StoredKey] = ()
    """The first that holds a key counts."""
    envelope: str = ""
    """The name in every answer under which the rest stands; empty: none."""
    requests_apart_s: float = 0.0
    """Seconds from one request to the next, over all processes of this computer."""
    wait_at_429_s: float | None = None
    """How long a GET waits after a 429 that says no time; None: it raises RateLimited at once."""
    billing_page: str = ""
    """Where people add credit."""

    @property
    def no_key(self) -> str:
        """How one gets a key."""
        return f"make one at {self.keys_page}, and export {self.key_variable}=… or put it into .env"

    @property
    def no_money(self) -> str:
        """How one adds credit."""
        return f"add credit: {self.billing_page}" if self.billing_page else "add credit"

    def find_key(self, context: Context) -> Credential:
        """The key and where it comes from. Raises NotSetUp, AuthFailed."""
        found = context.credential([self.key_variable], lambda: self._stored_key(context.env))
        if found is None:
            raise NotSetUp(f"there is no {self.name} API key: {self.key_variable} is not set", self.no_key)
        secret = found.values[self.key_variable]
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            raise AuthFailed(f"the {self.name} API key is no key: it has characters that none has", self.no_key)
        return found

    def _stored_key(self, env: Mapping[str, str]) -> Credential | None:
        """Raises AuthFailed for a file that cannot be read, which may hold the key."""
        for stored in self.stored_keys:
            try:
                path = stored.place(env)
                secret = stored.find(path.read_text(encoding="utf-8")).strip()
            except (FileNotFoundError, NotADirectoryError, RuntimeError):
                continue
            except (OSError, ValueError) as error:
                say = f"{path} cannot be read, and {self.key_variable} is not set"
                raise AuthFailed(say, self.no_key) from error
            if secret:
                return Credential(stored.path, {self.key_variable: secret})
        return None

    def find_address(self, env: Mapping[str, str]) -> str:
        """The API's address, without a slash at its end. Raises UsageError."""
        given = env.get(self.address_variable, "").strip() or self.address
        return checked_url(given, self.address_variable, self.address, "an API key")

    def failure(
        self, status: int, headers: Mapping[str, str], body: bytes, doing: str, *, creating: bool = False
    ) -> ProviderError:
        """The error of an answer that is none of success.

        doing      what was tried: `start a gpu_1x_a10`
        creating   whether it costs money once it is done
        """
        text = body.decode(errors="replace")
        words = self.read_words(status, parse_document(text), text)
        names = {str(status), f"{status // 100}xx", words.code, *words.names}
        values = {
            "who": self.name,
            "keys": self.keys_page,
            "billing": self.no_money,
            "unset": f"unset {self.address_variable}, or set it to {self.address}",
            "doing": doing,
            "status": str(status),
            "why": because(words.message),
            "detail": words.message or f"HTTP {status}, without a word",
            "hint": words.hint or "change what is asked for",
            **words.values,
        }
        said = f"{words.code} {words.message}".strip()
        error = error_table.find(self.errors, names, said, values, creating=creating)
        if isinstance(error, RateLimited):
            error.retry_after = retry_after_s(headers)
            if error.retry_after is None:
                found = self.said_wait and self.said_wait.search(words.message)
                error.retry_after = float(found[1]) if found else self.unsaid_wait_s
        return error


def fingerprint(secret: str) -> str:
    """12 hex digits that tell one key from another, and from which no key can be recovered."""
    return hashlib.sha256(secret.encode()).hexdigest()[:12]
