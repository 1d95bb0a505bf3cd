"""What providers with an HTTP API share: an address that a key may be sent to, and what answers tell of time."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from gpuops.core.errors import UsageError
from gpuops.core.polling import Clock

MAX_WAIT_DIGITS = 9
"""Of a `Retry-After` in seconds: thirty years. More of them are a mistake, and may not even be a finite number."""


def checked_url(url: str, variable: str, example: str, secret: str) -> str:
    """`url` without a slash at its end: by TLS, or on this machine or its private network. Raises UsageError.

    `variable`: the environment's name for it; `secret`: what is sent there, as `an API key`.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise UsageError(
            f"{variable} is '{url}', which is no address of an API", f"unset it, or write it like {example}"
        )
    if parts.scheme == "http" and not _is_private(host):
        raise UsageError(f"{variable} is {url}: {secret} would travel unencrypted", "write it with https://")
    return url.rstrip("/")


def _is_private(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_private or address.is_loopback


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """`Retry-After` in seconds; None where it is not said, or no such number."""
    said = headers.get("Retry-After") or ""
    return float(said) if said.isascii() and said.isdigit() and len(said) <= MAX_WAIT_DIGITS else None


class ServerClock:
    """A provider's clock, as its answers tell it: HTTP's `Date`, and the seconds that have passed since.

    The latest answer counts. May be used from any thread.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: tuple[float, float] | None = None
        """What the last answer said (UTC seconds), and when it came (seconds since the boot)."""

    def note(self, date: str | None) -> None:
        """Take the `Date` of an answer that has just come; what is none changes nothing. One without a time zone is
        UTC (RFC 9110, section 5.6.7)."""
        try:
            told = parsedate_to_datetime(date or "")
            said = (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError, OSError):
            return
        self._last = said, self._clock.since_boot()

    def now(self) -> float | None:
        """The provider's time now in UTC seconds; None before an answer has told it."""
        if self._last is None:
            return None
        said, came = self._last
        return said + self._clock.since_boot() - came
