"""One request for data and its answer: redirects, and the failures that a later request may overcome (`Cut`).

No message names more of an address than its host: what follows may be a signature, which is a secret.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from typing import Mapping, NamedTuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from gpuops.agent.fetch.permitted import may_redirect
from gpuops.agent.http_connection import SILENCE_LIMIT_S, error_code, make_connection
from gpuops.agent.node import Refusal

MAX_REDIRECTS = 5
MAX_ERROR_BYTES = 1 << 16
"""How much of an answer without data is read."""
BLOCK_BYTES = 1 << 20
MAX_FILE_BYTES = (1 << 63) - 1
"""No disk has a larger file."""
PROXY_DENIAL = re.compile(r"Tunnel connection failed: ([0-9]{3})")
"""Matches the only error of `http.client` for a proxy that does not let through; group 1: its status."""
URL_SAFE = "%/:@!$&'()*+,;=~?-._"
ENDED_SIGNATURES = ("ExpiredToken", "RequestExpired")
"""Error codes of S3, with status 400, for an address that holds no longer."""


class Cut(Exception):
    """No answer, or not all of it; a later request may succeed."""


class NotThere(Cut):
    """Nobody listens at the address, or its host has no name: a later request seldom succeeds."""


class Address(NamedTuple):
    """Where a file is fetched from, and the headers that its signature covers."""

    url: str
    headers: Mapping[str, str]
    has_checksum: bool
    """Whether the content is compared with a SHA-256 that the user named."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


class Version(NamedTuple):
    """What a server says of a file's content. Two that are equal are of the same content, where they say enough."""

    etag: str
    modified: str
    size: int | None
    """None where the server does not tell it."""

    @property
    def is_telling(self) -> bool:
        """Whether another content would have another version."""
        return bool(self.etag or self.modified)

    @property
    def validator(self) -> str:
        """What `If-Range` takes; empty where a rest cannot be told from that of another content."""
        return self.modified if self.etag.startswith("W/") else self.etag or self.modified


class Answer:
    """An answer whose data have not been read yet. Close it."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, host: str) -> None:
        self._connection = connection
        self._response = response
        self.host = host
        self.status = response.status
        self.length = response.length
        """Bytes of data in this answer; None where the server does not tell."""
        if (self.length or 0) > MAX_FILE_BYTES:
            raise Cut(f"{host} tells a size that no file can have")
        self.is_chunked = bool(response.chunked)

    def header(self, name: str) -> str:
        return (self._response.getheader(name) or "").strip()

    @property
    def version(self) -> Version:
        """Of the whole file, also where this answer is a part of it."""
        size = self.length
        if self.status == 206:
            _, total = self.content_range()
            size = total
        return Version(self.header("ETag"), self.header("Last-Modified"), size)

    def content_range(self) -> tuple[int, int]:
        """Of a partial answer: where it begins, and the size of the whole. Raises Cut for one that does not say."""
        try:
            unit, _, rest = self.header("Content-Range").partition(" ")
            span, _, total = rest.partition("/")
            start, size = int(span.partition("-")[0]), int(total)
            if unit != "bytes" or size > MAX_FILE_BYTES:
                raise ValueError(unit)
            return start, size
        except ValueError:
            raise Cut(f"{self.host} does not say which part of the file it sends") from None

    def code(self) -> str:
        """S3's error code; empty without one."""
        try:
            return error_code(self._response.read(MAX_ERROR_BYTES))
        except (OSError, http.client.HTTPException):
            return ""

    def read(self) -> bytes:
        """Some of the data; empty at their end. Raises Cut."""
        try:
            return self._response.read1(BLOCK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Cut(describe(error, self.host)) from error

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def ask(
    address: Address, headers: Mapping[str, str], method: str = "GET", silence_s: float = SILENCE_LIMIT_S
) -> Answer:
    """Send a request and follow redirects. Raises Cut, and Refusal(`certificate`, `redirect`)."""
    url = address.url
    for _ in range(MAX_REDIRECTS + 1):
        parts = urlsplit(url)
        host = parts.hostname or ""
        answer = _send(parts, method, {"Accept-Encoding": "identity", **address.headers, **headers}, silence_s)
        if answer.status not in (301, 302, 303, 307, 308):
            return answer
        try:
            target = quote(urljoin(url, answer.header("Location")), safe=URL_SAFE)
            parts = urlsplit(target)
            is_allowed = (
                may_redirect(url, target, address.has_checksum) and not parts.username and (parts.port or 1) > 0
            )
        except ValueError:
            is_allowed = False
        finally:
            answer.close()
        if not is_allowed:
            raise Refusal(
                "redirect", f"{host} sends on to an address that is not https", "use the address that it leads to"
            )
        url = target
    raise Refusal("redirect", f"{address.host} sends on and on", "use the address that it leads to")


def _send(parts: SplitResult, method: str, headers: Mapping[str, str], silence_s: float) -> Answer:
    host = parts.hostname or ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection = make_connection(parts.scheme, host, parts.port, silence_s)
        try:
            connection.request(method, target, headers=dict(headers))
            return Answer(connection, connection.getresponse(), host)
        except BaseException:
            connection.close()
            raise
    except ssl.SSLCertVerificationError as error:
        raise Refusal(
            "certificate",
            f"the certificate of {host} is not trusted here ({error.verify_message})",
            "check the address; a private authority goes into SSL_CERT_FILE of the node's image",
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise (NotThere if _is_nobody_there(error) else Cut)(describe(error, host)) from error


def _is_nobody_there(error: Exception) -> bool:
    """Whether a system or a name server has said that there is nobody, and not that it could not find out."""
    if isinstance(error, socket.gaierror):
        return error.errno != socket.EAI_AGAIN
    return isinstance(error, ConnectionRefusedError)


def describe(error: Exception, host: str) -> str:
    """A failure of the network in a few words."""
    if isinstance(error, socket.gaierror):
        return f"the host name {host} is not known"
    if isinstance(error, socket.timeout):
        return f"{host} says nothing"
    if isinstance(error, http.client.HTTPException):
        return f"{host} sends no proper HTTP ({type(error).__name__})"
    if denial := PROXY_DENIAL.match(str(error)):
        return f"the proxy answers {denial[1]}, asked for {host}"
    why = error.strerror if isinstance(error, OSError) else ""
    return f"the connection to {host} failed: {why or type(error).__name__}"
