"""Which addresses data may come from: https, and http where no change on the way would go unnoticed."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_permitted(url: str, has_checksum: bool) -> bool:
    """Whether a file may be fetched from this address; `has_checksum`: what arrives is compared with a SHA-256."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return True
    return parts.scheme == "http" and (has_checksum or _is_loopback(parts.hostname or ""))


def may_redirect(url: str, target: str, has_checksum: bool) -> bool:
    """Whether a server may send on from one address to another: never from https to less."""
    if urlsplit(url).scheme == "https":
        return urlsplit(target).scheme == "https"
    return is_permitted(target, has_checksum)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
