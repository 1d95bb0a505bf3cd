"""Addresses of APIs that the environment names: a key is sent to such an address, so it must be safe to."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from gpuops.core.errors import UsageError


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
