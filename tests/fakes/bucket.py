"""A bucket over real HTTP: moto's S3 with a door in front that is as strict as the real one's, and that can fail.

The door checks what moto lets pass: who asks, that a presigned URL is signed by that key and still holds, Content-MD5.
With `certificate` it is a proxy, too, behind which the names of Amazon's own S3 lead here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import ssl
import threading
import time
from calendar import timegm
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlsplit

KEY = "AKIACANARYCANARY0001"
USER = "arn:aws:iam::123456789012:user/gpuops"
SECRET = "canarysecret/neverleaves/thiscomputer000"
AMAZON = ".amazonaws.com"
NEW = ("af-south-1", "ap-east-1", "eu-south-1", "me-south-1")
"""Regions launched after 20 March 2019: S3's global address knows nothing of them (AWS, "Virtual hosting")."""
KMS = {"s3:PutObject": "kms:GenerateDataKey", "s3:GetObject": "kms:Decrypt"}
HOP = ("connection", "transfer-encoding", "content-length", "server", "date")


@dataclass
class Fault:
    """What happens to the next `times` requests of a method whose address has `part` in it, after `skip` of them:
    `500`, `lost` (done, and not answered), `cut` (half an answer), `inside` (200 with an error in it), `slow`."""

    method: str
    part: str
    what: str
    times: int = 1
    skip: int = 0


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    status: int
    signed: bool
    """By an address, not by a header: a node's."""


@dataclass
class FakeBucket:
    """`with FakeBucket() as fake:`; `fake.env` is what a user has in the environment."""

    name: str = "results"
    denied: set[str] = field(default_factory=set)
    """`s3:PutObject`, …; of a bucket with SSE-KMS `kms:GenerateDataKey` and `kms:Decrypt`."""
    public: bool = False
    """Whether everybody may list and read it."""
    expired: bool = False
    asked: list[Asked] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    before: Callable[[str, str], None] | None = None
    """Told of each request's method and address before it is done."""
    region: str = "us-east-1"
    certificate: Path | None = None
    """Of `*.s3.amazonaws.com` and of the region's own."""

    def __enter__(self) -> Self:
        from moto.server import ThreadedMotoServer

        self._counting = threading.Lock()
        self.one_at_a_time = threading.Lock()  # moto completes no upload while another of its parts comes in
        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        self.behind = self._moto.get_host_and_port()
        fake = self

        class Door(_Door):
            owner = fake

        self._door = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._door.daemon_threads = True
        threading.Thread(target=self._door.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._door.server_port}"
        where = {"LocationConstraint": self.region}
        more = {} if self.region == "us-east-1" else {"CreateBucketConfiguration": where}
        self.client().create_bucket(Bucket=self.name, **more)
        self.asked.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown()
        self._door.server_close()
        self.forget()
        self._moto.stop()

    def forget(self) -> None:
        """Moto's memory is the process's: what the last one left goes."""
        connection = http.client.HTTPConnection(*self.behind)
        connection.request("POST", "/moto-api/reset")
        connection.getresponse().read()
        connection.close()

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def secrets(self) -> tuple[str, ...]:
        return (SECRET,)

    def client(self) -> Any:
        import boto3

        return boto3.client("s3", endpoint_url=self.url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
                            region_name=self.region)  # fmt: skip

    def names(self) -> list[str]:
        found = self.client().list_objects_v2(Bucket=self.name)
        return [one["Key"] for one in found.get("Contents", [])]

    def content(self, key: str) -> bytes:
        return bytes(self.client().get_object(Bucket=self.name, Key=key)["Body"].read())

    def uploads(self) -> list[str]:
        """Keys of those that nobody has completed or aborted: they bill."""
        return [one["Key"] for one in self.client().list_multipart_uploads(Bucket=self.name).get("Uploads", [])]

    def play(self, method: str, part: str, what: str, times: int = 1, skip: int = 0) -> None:
        self.faults.append(Fault(method, part, what, times, skip))

    def of_nodes(self, method: str, part: str = "") -> list[Asked]:
        """What nodes have asked."""
        return [one for one in self.asked if one.signed and one.method == method and part in str(one.query)]

    def fault(self, method: str, address: str) -> str:
        with self._counting:
            for one in self.faults:
                if one.method == method and one.part in address and one.times:
                    if one.skip:
                        one.skip -= 1
                        continue
                    one.times -= 1
                    return one.what
        return ""


def action(method: str, query: dict[str, str]) -> str:
    """The permission that a request on an object needs."""
    if method == "DELETE" and "uploadId" in query:
        return "s3:AbortMultipartUpload"
    return {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}.get(method, "s3:PutObject")


class _Door(BaseHTTPRequestHandler):
    owner: FakeBucket
    protocol_version = "HTTP/1.1"

    def do_CONNECT(self) -> None:
        assert self.owner.certificate
        self.send_response_only(200)
        self.end_headers()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.owner.certificate)
        try:
            self.connection = context.wrap_socket(self.connection, server_side=True)
        except OSError:  # who asked does not trust it
            return
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def do_GET(self) -> None:
        fake = self.owner
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fake.before:
            fake.before(self.command, self.path)
        signed = "X-Amz-Signature" in query
        refused = self._elsewhere() or self._refused(parts.path, query, body)
        what = fake.fault(self.command, self.path)
        if refused:
            status, code = refused
            return self._done(query, signed, status, {"x-amz-bucket-region": fake.region}, _error(code))
        if what == "500":
            return self._done(query, signed, 500, {}, _error("InternalError"))
        if what == "inside":
            return self._done(query, signed, 200, {}, _error("InternalError"))
        if what == "slow":
            time.sleep(1.0)
        with fake.one_at_a_time:
            status, headers, answer = self._behind(body)
        if status == 500 and "uploadId" in query:  # moto falls over one that is over
            status, headers, answer = 404, {}, _error("NoSuchUpload")
        if what == "lost":
            fake.asked.append(Asked(self.command, parts.path, query, 0, signed))
            self.close_connection = True
            return None
        return self._done(query, signed, status, headers, answer, cut=what == "cut")

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _elsewhere(self) -> tuple[int, str] | None:
        """S3's global address serves a region only after a day, and a new one never; that of another one never does."""
        host, region = self.headers["Host"], self.owner.region
        if not host.endswith(AMAZON) or host.endswith(f"s3.{region}{AMAZON}"):
            return None
        if not host.endswith(f"s3{AMAZON}"):
            return 301, "PermanentRedirect"
        if region == "us-east-1":
            return None
        return (400, "IllegalLocationConstraintException") if region in NEW else (307, "TemporaryRedirect")

    def _refused(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, str] | None:
        fake = self.owner
        if "X-Amz-Signature" in query:
            began = timegm(time.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
            if time.time() > began + int(query["X-Amz-Expires"]) or fake.expired:
                return 403, "AccessDenied"
            if signature(self.command, path, query, dict(self.headers.items())) != query["X-Amz-Signature"]:
                return 403, "SignatureDoesNotMatch"
        elif fake.expired:
            return 400, "ExpiredToken"
        elif fake.public and "Authorization" not in self.headers:
            return None if self.command in ("GET", "HEAD") else (403, "AccessDenied")
        elif "Authorization" not in self.headers:
            return 403, "AccessDenied"
        elif f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
            return 403, "InvalidAccessKeyId"
        is_object = self._inside(path).strip("/").count("/") > 0
        needed = action(self.command, query)
        if is_object and needed in fake.denied:
            return 403, "AccessDenied"
        if is_object and KMS.get(needed) in fake.denied:
            return 403, KMS[needed]
        wanted = self.headers.get("Content-MD5")
        if wanted and base64.b64encode(hashlib.md5(body).digest()).decode() != wanted:
            return 400, "BadDigest"
        return None

    def _inside(self, path: str) -> str:
        """The address with the bucket in it, where only the host's name has it."""
        virtual = self.headers["Host"].startswith(f"{self.owner.name}.s3.")
        return f"/{self.owner.name}{path}" if virtual else path

    def _behind(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.owner.behind)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("expect", "connection")}
        headers["Host"] = ":".join(map(str, self.owner.behind))
        connection.request(self.command, self._inside(self.path), body, headers)
        answer = connection.getresponse()
        found = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        if self.command == "HEAD":
            kept["Content-Length"] = answer.getheader("Content-Length") or "0"
        connection.close()
        return answer.status, kept, found

    def _done(
        self, query: dict[str, str], signed: bool, status: int, headers: dict[str, str], body: bytes, cut: bool = False
    ) -> None:
        self.owner.asked.append(Asked(self.command, urlsplit(self.path).path, query, status, signed))
        with suppress(OSError):  # who asked is gone
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


def signature(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> str:
    """AWS's version 4, of an address (as its documentation describes it)."""
    sent = {name.lower(): value for name, value in headers.items()}
    covered = [f"{name}:{sent.get(name, '')}" for name in query["X-Amz-SignedHeaders"].split(";")]
    rest = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items()
                  if name != "X-Amz-Signature")  # fmt: skip
    canonical = "\n".join([method, path, "&".join(f"{name}={value}" for name, value in rest), *covered, "",
                           query["X-Amz-SignedHeaders"], "UNSIGNED-PAYLOAD"])  # fmt: skip
    _, date, region, service, last = query["X-Amz-Credential"].split("/")
    key = f"AWS4{SECRET}".encode()
    for word in (date, region, service, last):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    text = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], f"{date}/{region}/{service}/{last}",
                      hashlib.sha256(canonical.encode()).hexdigest()])  # fmt: skip
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _error(code: str) -> bytes:
    said = "as asked for"
    if code in KMS.values():
        key = "arn:aws:kms:us-east-1:123456789012:key/1a2b-3c4d"
        why = f"because no identity-based policy allows the {code} action"
        code, said = "AccessDenied", f"User: {USER} is not authorized to perform: {code} on resource: {key} {why}"
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{said}</Message></Error>'.encode()
