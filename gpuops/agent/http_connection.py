"""Connections to web servers and object stores: by the environment's proxy, with a certificate that is verified."""

from __future__ import annotations

import base64
import http.client
import os
import re
import ssl
import urllib.request
from urllib.parse import SplitResult, unquote, urlsplit

SILENCE_LIMIT_S = 60.0
"""Time without a byte after which a request fails."""
CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Certificate authorities of common systems, for a Python that was built to look elsewhere."""
CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")


def error_code(body: bytes) -> str:
    """The error code of S3 in an answer; empty without one."""
    match = CODE.search(body)
    return match[1].decode() if match else ""


def make_connection(scheme: str, host: str, port: int | None, silence_s: float) -> http.client.HTTPConnection:
    """A connection to be opened by its first request, through the proxy of the environment if there is one.

    Raises ValueError for a proxy whose address is none.
    """
    proxy = "" if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme, "")
    port = port or (443 if scheme == "https" else 80)  # without one, http.client takes the end of an IPv6 address
    place, via = (host, port), urlsplit(proxy if "//" in proxy else f"//{proxy}")
    if via.hostname:
        place = (via.hostname, via.port or port)
    if scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            *place, timeout=silence_s, context=_trust()
        )
    else:
        connection = http.client.HTTPConnection(*place, timeout=silence_s)
    if via.hostname:
        connection.set_tunnel(host, port, _proxy_login(via))
    return connection


def _proxy_login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _trust() -> ssl.SSLContext:
    """The default context, with a system's certificate authorities where it has none."""
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and not context.get_ca_certs():
        for bundle in filter(os.path.exists, CA_BUNDLES):
            context.load_verify_locations(bundle)
            break
    return context
