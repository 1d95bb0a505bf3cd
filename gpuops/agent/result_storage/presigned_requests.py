"""Requests to an object store with presigned URLs, which carry their own permission: this node holds no key.

`with_retries` repeats a request, with growing pauses, until it is answered, refused or too late.
"""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
import time
from typing import Callable, Iterable, Mapping, NamedTuple
from urllib.parse import urlsplit

from gpuops.agent.http_connection import SILENCE_LIMIT_S, error_code, make_connection

MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 0.5, 30.0
"""The pause doubles with each retry."""
RETRY_LIMIT_S = 1800.0
"""How long one request is retried while the store, or the network, is in trouble."""
RETRYABLE = ("InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "OperationAborted", "Throttling")
"""Error codes of S3 that a retry may overcome."""
MESSAGE = re.compile(rb"<Message>([^<]{1,300})</Message>")


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def code(self) -> str:
        """The store's error code; empty without one."""
        return error_code(self.body)


class RequestDenied(OSError):
    """The store refuses the request, and a retry would not help. `code`: its error code."""

    def __init__(self, answer: Response) -> None:
        match = MESSAGE.search(answer.body)
        self.code = answer.code() or f"HTTP {answer.status}"
        message = f": {match[1].decode('utf-8', 'replace')}" if match else ""
        OSError.__init__(self, errno.EACCES, f"the bucket refuses it ({self.code}{message})")


class DeadlineExceeded(OSError):
    """The deadline has passed. `trouble`: why the last attempt failed."""

    def __init__(self, trouble: str = "") -> None:
        OSError.__init__(self, errno.ETIMEDOUT, "there was no time for it" + (f" ({trouble})" if trouble else ""))


def with_retries(attempt: Callable[[], Response], deadline: float) -> Response:
    """The first successful answer. `deadline`: UTC seconds.

    Raises RequestDenied, DeadlineExceeded, and OSError where the store's certificate is not trusted.
    """
    pause_s, end = MIN_RETRY_PAUSE_S, min(deadline, time.time() + RETRY_LIMIT_S)
    while True:
        try:
            answer = attempt()
            if answer.status < 300 and not answer.code():
                return answer
            if answer.status < 500 and answer.status not in (408, 429) and answer.code() not in RETRYABLE:
                raise RequestDenied(answer)
            trouble = f"{answer.status} {answer.code()}".strip()
        except ssl.SSLCertVerificationError as error:
            raise OSError(errno.EACCES, f"its certificate is not trusted here ({error.verify_message})") from error
        except (http.client.HTTPException, ssl.SSLError, socket.timeout, ConnectionError, socket.gaierror) as error:
            trouble = str(error) or type(error).__name__
        except OSError as error:
            if isinstance(error, (RequestDenied, DeadlineExceeded)):
                raise
            trouble = error.strerror or str(error)  # no route, no network
        if time.time() + pause_s >= end:
            raise DeadlineExceeded(trouble)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_RETRY_PAUSE_S)


def send_request(
    method: str,
    url: str,
    body: Iterable[bytes] = (),
    size: int = 0,
    headers: Mapping[str, str] | None = None,
    silence_s: float = SILENCE_LIMIT_S,
) -> Response:
    """Send one request, once. Raises OSError and http.client.HTTPException."""
    parts = urlsplit(url)
    connection = make_connection(parts.scheme, parts.hostname or "", parts.port, silence_s)
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
            pass  # the store may have answered before it read everything: its answer says why
        answer = connection.getresponse()
        return Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def object_size(url: str, deadline: float, silence_s: float = SILENCE_LIMIT_S) -> int | None:
    """An object's size in bytes; None where it does not exist. Raises OSError."""
    try:
        answer = with_retries(lambda: send_request("HEAD", url, (), 0, None, silence_s), deadline)
    except RequestDenied as error:
        if error.code in ("HTTP 404", "HTTP 403"):  # 403: S3 hides absence from those who may not list the bucket
            return None
        raise
    return int(answer.headers["content-length"])
