"""moto, called inside this process: what it keeps of one account, apart from every other fake's."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import botocore.session
from moto.core import responses
from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.kms import models as kms
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends

from tests.fakes.aws.requests import Answer, Request

_APPLICATION = DomainDispatcherApplication(create_backend_app)
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # for good: others read the environment while a region is made
botocore.session.create_loader = functools.cache(botocore.session.create_loader)  # type: ignore[attr-defined]
"""One for all sessions of this process: what one has read of a service, for long, no other reads again."""
kms.generate_private_key = functools.cache(kms.generate_private_key)  # type: ignore[attr-defined]
"""One for all disks that nobody encrypts: each region of each account would look for two of its own."""
responses.method_names_from_class = functools.cache(responses.method_names_from_class)  # type: ignore[attr-defined]
"""What a service can do does not change: moto looks through its methods at each request."""


class StandIn:
    """One account; end() forgets it."""

    def __init__(self, account: str) -> None:
        self.account = account

    def ask(self, request: Request, raw: bytes | None = None) -> Answer:
        """What moto answers; `raw`: a body other than the request's own."""
        body = request.raw if raw is None else raw
        begun: list[Any] = []
        environ = self._environ(request, body)
        application = _APPLICATION.get_application(environ)
        written = application(environ, lambda status, headers, _=None: begun.extend((status, headers)))
        try:
            content = b"".join(written)
        finally:
            getattr(written, "close", lambda: None)()
        status = int(begun[0].split()[0])
        skip = ("connection", "transfer-encoding", "date", "server")
        headers = {name: value for name, value in begun[1] if name.lower() not in skip}
        return Answer(status, content, headers, "" if status < 400 else f"moto {status}")

    def _environ(self, request: Request, body: bytes) -> dict[str, Any]:
        parts = urlsplit(request.path)
        environ = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(parts.path, "latin-1"),
            "RAW_URI": request.path,
            "REQUEST_URI": request.path,
            "QUERY_STRING": parts.query,
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "HTTP_X_MOTO_ACCOUNT_ID": self.account,
        }
        for name, value in request.headers.items():
            plain = name.upper().replace("-", "_")
            if plain == "CONTENT_TYPE":
                form = request.service == "s3" and "form" in value  # urllib says so of any body, and moto believes it
                environ[plain] = "application/octet-stream" if form else value
            elif plain not in ("CONTENT_LENGTH", "TRANSFER_ENCODING", "EXPECT"):
                environ[f"HTTP_{plain}"] = value
        return environ

    def ec2(self, region: str) -> Any:
        """moto's EC2 of a region; made at the first call, without moto's own images of 2017."""
        return ec2_backends[self.account][region]

    def regions(self) -> Iterator[tuple[str, Any]]:
        """Those that were asked for anything so far."""
        yield from list(ec2_backends[self.account].items())

    @property
    def s3(self) -> Any:
        return s3_backends[self.account]["aws"]

    def end(self) -> None:
        self.s3.reset()  # names of buckets are one space for all accounts
        for one in list(BackendDict._instances):
            one.pop(self.account, None)
