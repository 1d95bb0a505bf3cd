"""What `--data` may name beside a path here: an address that nodes fetch from by themselves, or a path on them. Pure.

s3://BUCKET/PREFIX             an object, or all objects below a prefix: a folder
https://HOST/PATH[#sha256=HEX] one file; `http://` on this computer's loopback, or with `#sha256=`
node:/PATH                     what every node has already, as on a network volume
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote, unquote, urlsplit

from gpuops.agent.fetch.permitted import is_permitted
from gpuops.core.bucket import Bucket, DotenvPolicy
from gpuops.core.errors import UsageError
from gpuops.core.format import calm

NODE_PATH = "node:"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
SHA256_FRAGMENT = re.compile(r"sha256=([0-9a-fA-F]{64})")
BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
URL_SAFE = "%/:@!$&'()*+,;=~?-._"
"""What stays as it is in an address that a user typed; anything else is encoded."""
MAX_NAME_BYTES = 255
"""Of one name on a node's disk."""


@dataclass(frozen=True)
class BucketData(Bucket):
    """The objects of a bucket that a run reads. The bucket's region is found out by whoever asks it."""

    is_folder: bool = False
    """Whether the address ends with a slash: what lies below it is meant, and no object of that name."""
    dotenv: DotenvPolicy = DotenvPolicy.IGNORED

    flag: ClassVar[str] = "--data"

    @property
    def name(self) -> str:
        """Under which nodes have it."""
        return self.prefix.rpartition("/")[2] or self.bucket

    @property
    def address(self) -> str:
        return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def grants(self) -> str:
        return f"s3:ListBucket on arn:*:s3:::{self.bucket} and s3:GetObject on arn:*:s3:::{self.bucket}/*"

    @property
    def absent_hint(self) -> str:
        return "check the name"


@dataclass(frozen=True)
class WebData:
    """One file of a web server."""

    url: str
    """Without the checksum. It may hold a token behind `?`, and is neither printed nor recorded."""
    name: str
    """Under which nodes have it."""
    sha256: str = ""
    """What its content must have, where the user knows it."""

    @property
    def address(self) -> str:
        """For people: without what follows `?`."""
        return calm(self.url.partition("?")[0])


@dataclass(frozen=True)
class NodeData:
    """A path that every node has: nothing is sent or fetched."""

    path: str


DataAddress = BucketData | WebData | NodeData


def is_address(text: str) -> bool:
    """Whether `--data` names no path on this computer."""
    return bool(SCHEME.match(text)) or text.startswith(NODE_PATH)


def parse_address(text: str) -> DataAddress | None:
    """The address in `--data`; None for a path on this computer. Raises UsageError."""
    if text.startswith(NODE_PATH):
        return _parse_node_path(text)
    if not SCHEME.match(text):
        return None
    shown = calm(without_query(text))
    if not _is_unicode(text):
        raise UsageError(f"--data {shown} has bytes in it that are no text", "encode them as %XX, or name other data")
    scheme = text.partition("://")[0].lower()
    if scheme == "s3":
        return _parse_bucket(text, shown)
    if scheme not in ("https", "http"):
        raise UsageError(
            f"--data {shown}: nodes fetch from s3:// and https:// addresses", "name one of those, or a path here"
        )
    return _parse_web(text, shown)


def without_query(text: str) -> str:
    """An address without what follows `?` or `#`, and without a login; a path as it is. For messages and the ledger."""
    if not SCHEME.match(text):
        return text
    scheme, _, rest = text.partition("://")
    if scheme.lower() != "s3":
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def check_name(name: str, shown: str) -> str:
    """The name, if it can be that of a file or folder. Raises UsageError; `shown`: the address it is from."""
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        raise UsageError(f"--data {shown} ends with no name that a file can have", "name one file, or a prefix")
    return name


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_node_path(text: str) -> NodeData:
    path = text.removeprefix(NODE_PATH)
    if not path.startswith("/") or "\0" in path:
        raise UsageError(f"--data {calm(text)} is no absolute path on the nodes", "write it like node:/workspace/data")
    return NodeData(path)


def _parse_bucket(text: str, shown: str) -> BucketData:
    bucket, _, key = text.partition("://")[2].partition("/")
    if "@" in bucket:
        raise UsageError(
            f"--data {shown} was given with a login in it", "give the keys as AWS's own tools take them: AWS_PROFILE, …"
        )
    if not BUCKET_NAME.fullmatch(bucket):
        raise UsageError(f"--data {shown} names no bucket", "write it like s3://bucket/prefix")
    prefix = key.removesuffix("/")
    found = BucketData(bucket, prefix, is_folder=key.endswith("/") or not key)
    check_name(found.name, shown)
    return found


def _parse_web(text: str, shown: str) -> WebData:
    try:
        parts = urlsplit(text)
        port, host = parts.port, (parts.hostname or "").encode("idna").decode()
    except (ValueError, UnicodeError):
        raise UsageError(f"--data {shown} is no address", "write it like https://host/path/file.tar") from None
    if "@" in parts.netloc:
        raise UsageError(
            f"--data {shown} has a login in it, which would reach the nodes",
            "put the data into a bucket (s3://…), or use an address that needs no login",
        )
    checksum = SHA256_FRAGMENT.fullmatch(parts.fragment)
    if not host or (parts.fragment and not checksum):
        what = "has a fragment that is no checksum" if host else "names no host"
        raise UsageError(f"--data {shown} {what}", "write it like https://host/path/file.tar#sha256=HEX")
    sha256 = checksum[1].lower() if checksum else ""
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    query = f"?{quote(parts.query, safe=URL_SAFE)}" if parts.query else ""
    url = f"{parts.scheme}://{place}{quote(parts.path or '/', safe=URL_SAFE)}{query}"
    if not is_permitted(url, has_checksum=bool(sha256)):
        raise UsageError(
            f"--data {shown}: over http:// anybody on the way can change the data",
            "write https://, or add the file's checksum: http://…#sha256=HEX",
        )
    return WebData(url, check_name(unquote(parts.path).rpartition("/")[2], shown), sha256)
