"""What an address in `--data` leads to: its files, and where nodes fetch each of them.

A bucket is listed here, with the user's own keys, or without any where everybody may read it. Nodes get presigned
URLs, each for one object and for minutes, so that no key leaves this computer. A web server is asked by the nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from gpuops.core.context import Context
from gpuops.core.data_address import MAX_NAME_BYTES, BucketData, WebData
from gpuops.core.errors import AuthFailed, GpuopsError, NotSetUp, UsageError
from gpuops.core.format import amount, plural
from gpuops.core.timings import Whose
from gpuops.sync.object_store import (
    Denied,
    amazon_region,
    bucket_region,
    call_s3,
    create_client,
    select_profile,
    translate_error,
)
from gpuops.sync.project_files import printable_path

MAX_OBJECTS = 100_000
"""A longer listing takes minutes, and its files hours: each of them is a request."""
SIGNATURE_S = 900
"""How long a presigned URL holds. A download that has begun goes on beyond it."""
ANSWER_TIMEOUT_S = 20.0
MAX_SIZE_DIGITS = 18
"""Of bytes that a server tells of a file: a longer number is none that any disk holds."""

NodeUrl = tuple[str, Mapping[str, str]]
"""A URL, which may be secret, and the headers that a node must send to it."""


class SourceFile(NamedTuple):
    """A file that nodes fetch."""

    path: str
    """Under which they have it, from the data's folder on, with `/`."""
    size: int | None = None
    """In bytes; None where only the server can tell it."""
    etag: str = ""
    """As the listing tells it; empty without one."""
    sha256: str = ""
    """Given by the user; empty without."""
    key: str = ""
    """Of the object in its bucket."""


@dataclass(frozen=True)
class Source:
    """What an address leads to, at one moment."""

    name: str
    """Of the file or folder that nodes will have."""
    address: str
    """For people."""
    files: Sequence[SourceFile]
    url: Callable[[SourceFile], NodeUrl] = field(repr=False)
    """Where a node fetches a file from. Raises GpuopsError."""
    is_public: bool = False
    """Whether it is a bucket that is read without keys."""
    region: str = ""
    """Of Amazon's S3, where it is a bucket there."""
    has_md5_tags: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Whether an ETag of MD5's form is the content's MD5; asks the bucket."""

    @property
    def size(self) -> int | None:
        """In bytes; None where only the server can tell it."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None


def find_source(ctx: Context, data: BucketData | WebData) -> Source:
    """What the address leads to; lists a bucket. Raises UsageError, ProviderError."""
    if isinstance(data, WebData):
        file, url = SourceFile(data.name, sha256=data.sha256), data.url
        return Source(data.name, data.address, [file], lambda _: (url, {}))
    with ctx.progress.during(f"listing {printable_path(data.address)}", whose=Whose.NETWORK):
        s3, data, is_public = _open_bucket(ctx, data)
        try:
            files = _list_files(s3, data)
        except Denied as denied:
            if is_public:
                raise _without_keys(data) from denied
            raise
        asks = partial(_has_md5_tags, s3, data, files[0])
        return Source(data.name, data.address, files, partial(_presign, s3, data), is_public, amazon_region(s3), asks)


def describe_source(source: Source) -> str:
    """A sentence part on what it is; a web server is asked from here."""
    count, origin = plural(len(source.files), "file"), f"from {printable_path(source.address)}"
    if source.size is not None:
        return f"{count}, {amount(source.size)}, {origin}"
    size, why = _web_size(source)
    return f"{count}, {f'of a size that is not known here ({why})' if size is None else amount(size)}, {origin}"


def _without_keys(data: BucketData) -> AuthFailed:
    return AuthFailed(
        f"no AWS credentials are known, and without any the bucket {data.bucket} may not be listed",
        "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with AWS_PROFILE",
    )


def _presign(s3: Any, data: BucketData, file: SourceFile) -> NodeUrl:
    # S3 tells the object's SHA-256 only where it is asked for; the header is part of the signature.
    parameters = {"Bucket": data.bucket, "Key": file.key, "ChecksumMode": "ENABLED"}
    try:
        signed = s3.generate_presigned_url("get_object", Params=parameters, ExpiresIn=SIGNATURE_S)
    except Exception as error:
        raise translate_error(error, data, "s3:GetObject") from error
    return str(signed), {"x-amz-checksum-mode": "ENABLED"}


def _has_md5_tags(s3: Any, data: BucketData, file: SourceFile) -> bool:
    """Whether the bucket encrypts by no key of its owner's: else its ETags are no MD5 (S3, "Object": ETag)."""
    try:
        head = call_s3(data, "s3:GetObject", s3.head_object, Key=file.key)
    except GpuopsError:
        return False  # whoever fetches is told why
    return head.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in head


def _open_bucket(ctx: Context, data: BucketData) -> tuple[Any, BucketData, bool]:
    """An S3 client for the bucket's region, the data with that region, and whether no keys are used.

    Raises UsageError, ProviderError.
    """
    data = dataclasses.replace(data, profile=select_profile(ctx.env))
    try:
        s3, is_public = create_client(ctx, data), False
    except NotSetUp:
        s3, is_public = create_client(ctx, data, anonymous=True), True
    data = dataclasses.replace(data, region=bucket_region(s3, data))
    return create_client(ctx, data, anonymous=is_public), data, is_public


def _list_files(s3: Any, data: BucketData) -> list[SourceFile]:
    """The object of that key, or else all below it. Raises UsageError, ProviderError."""
    if not data.is_folder:
        first = call_s3(data, "s3:ListBucket", s3.list_objects_v2, Prefix=data.prefix, MaxKeys=1)
        found = first.get("Contents", [])
        if found and found[0]["Key"] == data.prefix:  # the shortest key with this beginning comes first
            return [_source_file(found[0], data.name)]
    base = f"{data.prefix}/" if data.prefix else ""
    files: list[SourceFile] = []
    for count, item in enumerate(_objects(s3, data, base)):
        if count == MAX_OBJECTS:
            raise UsageError(
                f"--data {printable_path(data.address)} has more than {MAX_OBJECTS:,} objects",
                "name a part of it, or pack them into a few larger files",
            )
        if item["Key"].endswith("/") and not item["Size"]:
            continue  # what consoles make to show a folder
        files.append(_source_file(item, f"{data.name}/{_inside(item['Key'], base)}"))
    if not files:
        raise UsageError(
            f"there is nothing at {printable_path(data.address)}", f"look there: aws s3 ls s3://{data.bucket}/"
        )
    _refuse_clashes(files)
    return files


def _objects(s3: Any, data: BucketData, base: str) -> Iterator[Mapping[str, Any]]:
    more: dict[str, str] = {}
    while True:
        page = call_s3(data, "s3:ListBucket", s3.list_objects_v2, Prefix=base, **more)
        yield from page.get("Contents", [])
        if not page.get("IsTruncated"):
            return
        more = {"ContinuationToken": page["NextContinuationToken"]}


def _source_file(item: Mapping[str, Any], path: str) -> SourceFile:
    return SourceFile(path, int(item["Size"]), str(item["ETag"]), key=str(item["Key"]))


def _inside(key: str, base: str) -> str:
    """A key from `base` on, as a path. Raises UsageError for one that no file can have."""
    path = key.removeprefix(base)
    parts = path.split("/")
    is_long = any(len(part.encode(errors="replace")) > MAX_NAME_BYTES for part in parts)
    if not key.startswith(base) or "\0" in path or {"", ".", ".."} & set(parts) or is_long:
        raise UsageError(
            f"the object {printable_path(key)!r} has a name that no file can have",
            "give it another name, or name a part of the bucket without it",
        )
    return path


def _refuse_clashes(files: Sequence[SourceFile]) -> None:
    """Raises UsageError where one object's name is another's folder, or comes twice."""
    in_order = sorted((file.path for file in files), key=lambda path: path.replace("/", "\0"))  # a folder comes first
    for path, after in pairwise(in_order):
        if after.startswith(f"{path}/"):
            raise UsageError(
                f"{printable_path(path)} is both an object and the folder of others",
                "give one of them another name, or name a part of the bucket",
            )
        if after == path:
            raise UsageError(f"the bucket lists {printable_path(path)} twice", "try again, or name a part of it")


def _web_size(source: Source) -> tuple[int | None, str]:
    """The size of a web server's file, or else why it is not known."""
    from gpuops.agent.fetch import web  # brings http and ssl, which most commands do without
    from gpuops.agent.node import Refusal

    file = source.files[0]
    url, headers = source.url(file)
    try:
        answer = web.ask(web.Address(url, headers, bool(file.sha256)), {}, "HEAD", ANSWER_TIMEOUT_S)
    except (web.Cut, Refusal) as error:
        return None, str(error)
    answer.close()
    if answer.status != 200:
        return None, f"{answer.host} answers {answer.status}"
    length = answer.header("Content-Length")
    is_size = length.isdecimal() and len(length) <= MAX_SIZE_DIGITS
    return (int(length), "") if is_size else (None, f"{answer.host} does not tell it")
