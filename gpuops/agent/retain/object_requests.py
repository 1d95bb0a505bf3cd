"""Requests to an object store by addresses that carry their own permission: nothing here knows a key.

What may be asked again is asked again, with pauses, until it is answered, refused or too late.
"""

from __future__ import annotations

import errno
import http.client
import os
import re
import socket
import ssl
import time
import urllib.request
from typing import Callable, Iterable, Mapping, NamedTuple
from urllib.parse import urlsplit

SILENCE_S = 60.0
"""A store that says nothing for so long will not."""


FIRST_S = 0.5


LONGEST_S = 30.0
"""Pauses between tries."""


PATIENCE_S = 1800.0
"""How long one request is tried again while the store, or the way to it, is in trouble."""


BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where systems keep whom to trust; a Python of its own may look elsewhere."""


BUSY = ("InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "OperationAborted", "Throttling")


CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")


MESSAGE = re.compile(rb"<Message>([^<]{1,300})</Message>")


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def code(self) -> str:
        """The store's word for what is wrong; empty where it says none."""
        found = CODE.search(self.body)
        return found[1].decode() if found else ""


class Denied(OSError):
    """The store will not do it, however often it is asked. `code`: its word for why."""

    def __init__(self, answer: Answer) -> None:
        found = MESSAGE.search(answer.body)
        self.code = answer.code() or f"HTTP {answer.status}"
        said = f": {found[1].decode('utf-8', 'replace')}" if found else ""
        OSError.__init__(self, errno.EACCES, f"the bucket refuses it ({self.code}{said})")


class Late(OSError):
    """The time for it is over."""

    def __init__(self, trouble: str = "") -> None:
        OSError.__init__(self, errno.ETIMEDOUT, "there was no time for it" + (f" ({trouble})" if trouble else ""))


def patiently(ask: Callable[[], Answer], deadline: float) -> Answer:
    """The first answer that is one. `deadline`: UTC seconds. Raises Denied, Late, and OSError where the
    store's certificate is not trusted."""
    pause, end = FIRST_S, min(deadline, time.time() + PATIENCE_S)
    while True:
        try:
            answer = ask()
            if answer.status < 300 and not answer.code():
                return answer
            if answer.status < 500 and answer.status not in (408, 429) and answer.code() not in BUSY:
                raise Denied(answer)
            trouble = f"{answer.status} {answer.code()}".strip()
        except ssl.SSLCertVerificationError as error:
            raise OSError(errno.EACCES, f"its certificate is not trusted here ({error.verify_message})") from error
        except (http.client.HTTPException, ssl.SSLError, socket.timeout, ConnectionError, socket.gaierror) as error:
            trouble = str(error) or type(error).__name__
        except OSError as error:
            if isinstance(error, (Denied, Late)):
                raise
            trouble = error.strerror or str(error)  # no route, no network
        if time.time() + pause >= end:
            raise Late(trouble)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_S)


def ask(
    method: str,
    url: str,
    body: Iterable[bytes] = (),
    size: int = 0,
    headers: Mapping[str, str] | None = None,
    silence_s: float = SILENCE_S,
) -> Answer:
    """One request, once. Raises OSError and http.client.HTTPException."""
    parts = urlsplit(url)
    connection = _connection(parts.scheme, parts.hostname or "", parts.port, silence_s)
    try:
        connection.putrequest(method, f"{parts.path or '/'}?{parts.query}", skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if method != "HEAD":
            connection.putheader("Content-Length", str(size))
        try:
            connection.endheaders()
            for block in body:
                connection.send(block)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may have answered before it had everything: that answer says why
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def length(url: str, deadline: float, silence_s: float = SILENCE_S) -> int | None:
    """How many bytes an object has; None where there is none. Raises OSError."""
    try:
        answer = patiently(lambda: ask("HEAD", url, (), 0, None, silence_s), deadline)
    except Denied as error:
        if error.code in ("HTTP 404", "HTTP 403"):  # 403: who may not list a bucket is not told what is not in it
            return None
        raise
    return int(answer.headers["content-length"])


def _connection(scheme: str, host: str, port: int | None, silence_s: float) -> http.client.HTTPConnection:
    proxy = "" if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme, "")
    at, there = (host, port), urlsplit(proxy if "//" in proxy else f"//{proxy}")
    if there.hostname:
        at = (there.hostname, there.port)
    if scheme == "https":
        made: http.client.HTTPConnection = http.client.HTTPSConnection(*at, timeout=silence_s, context=_trust())
    else:
        made = http.client.HTTPConnection(*at, timeout=silence_s)
    if there.hostname:
        made.set_tunnel(host, port or (443 if scheme == "https" else 80))
    return made


def _trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and not context.get_ca_certs():
        for bundle in filter(os.path.exists, BUNDLES):
            context.load_verify_locations(bundle)
            break
    return context
