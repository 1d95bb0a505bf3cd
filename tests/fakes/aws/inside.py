"""The fake asked from within its own process, without HTTP: what botocore would send is answered on the spot."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError
from botocore.httpsession import URLLib3Session

from tests.fakes.aws import wire
from tests.fakes.aws.fake import FakeAWS
from tests.fakes.aws.requests import Unreachable


class Body(io.BytesIO):
    """As urllib3 hands a body out."""

    def stream(self, _size: int = 0) -> Iterator[bytes]:
        while part := self.read(65536):
            yield part


@contextmanager
def inside(fake: FakeAWS) -> Iterator[None]:
    """Everything that this process asks AWS goes to this fake, and none of it through a socket. Faults that are played
    and callbacks belong to the server, and are not met here."""

    def send(_: URLLib3Session, request: Any) -> AWSResponse:
        parts = urlsplit(request.url)
        told = {
            name.lower(): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in request.headers.items()
        }
        raw = request.body or b""
        raw = raw if isinstance(raw, bytes) else raw.encode() if isinstance(raw, str) else raw.read()
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        heard = wire.read(request.method, path or "/", {"host": parts.netloc, **told}, raw)
        fake.requests.append(heard)
        try:
            answer = fake.answer(heard)
        except Unreachable as error:
            raise EndpointConnectionError(endpoint_url=request.url) from error
        heard.status, heard.error = answer.status, answer.error
        return AWSResponse(request.url, answer.status, dict(answer.headers), Body(answer.body))

    with mock.patch.object(URLLib3Session, "send", send):
        yield
