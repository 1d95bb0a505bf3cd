"""What an address in `--data` leads to: a bucket's listing, its region, its keys or none, the URLs of its objects."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

import pytest
from botocore.exceptions import ClientError

from gpuops.agent.fetch import web
from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.data_address import BucketData, WebData, parse_address
from gpuops.core.errors import AuthFailed, GpuopsError, UsageError
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES
from gpuops.sync import data_sources
from gpuops.sync.data_sources import Source, describe_source, find_source
from gpuops.sync.object_store import translate_error
from tests.fakes.bucket import SECRET, FakeBucket
from tests.fakes.data_server import DataServer, Play


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeBucket]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with FakeBucket(region="eu-central-1") as one:
        for name in ("AWS_ENDPOINT_URL", "AWS_EC2_METADATA_DISABLED"):
            monkeypatch.setenv(name, one.env[name])
        yield one


def world(fake: FakeBucket, folder: Path, *, keys: bool = True) -> Context:
    env = {name: value for name, value in fake.env.items() if keys or name in ("AWS_ENDPOINT_URL",)}
    return Context(folder, "o", folder, env, Output(), Signals(), SERVICES)


def put(fake: FakeBucket, *keys: str) -> None:
    s3 = fake.client()
    for key in keys:
        s3.put_object(Bucket=fake.name, Key=key, Body=b"" if key.endswith("/") else key.encode())


def find(fake: FakeBucket, folder: Path, address: str, *, keys: bool = True) -> Source:
    data = parse_address(address)
    assert isinstance(data, BucketData | WebData)
    return find_source(world(fake, folder, keys=keys), data)


KEYS = ("sets/train/a", "sets/train/deep/b ü", "sets/train/deep/", "sets/train-old/c", "sets/train.tar", "top")


@pytest.mark.parametrize(
    ("address", "paths"),
    [
        ("s3://results/sets/train", ["train/a", "train/deep/b ü"]),
        ("s3://results/sets/train/", ["train/a", "train/deep/b ü"]),
        ("s3://results/sets/train.tar", ["train.tar"]),
        ("s3://results/top", ["top"]),
        ("s3://results/sets/train/deep", ["deep/b ü"]),
        (
            "s3://results",
            [f"results/{key}" for key in sorted(KEYS) if not key.endswith("/")],
        ),
    ],
)
def test_an_object_is_a_file_and_a_prefix_a_folder(
    fake: FakeBucket, tmp_path: Path, address: str, paths: list[str]
) -> None:
    put(fake, *KEYS)
    source = find(fake, tmp_path, address)
    assert [file.path for file in source.files] == paths
    assert source.name == paths[0].partition("/")[0]
    assert source.size == sum(len(file.key.encode()) for file in source.files)


@pytest.mark.parametrize(("encryption", "known"), [({}, True), ({"ServerSideEncryption": "aws:kms"}, False)])
def test_whether_a_tag_is_an_md5_is_asked_of_the_bucket(
    fake: FakeBucket, tmp_path: Path, encryption: dict[str, str], known: bool
) -> None:
    fake.client().put_object(Bucket=fake.name, Key="set/a", Body=b"a", **encryption)
    source = find(fake, tmp_path, "s3://results/set")
    assert source.has_md5_tags() is known
    fake.denied.add("s3:GetObject")
    assert source.has_md5_tags() is False
    assert source.region == "", "it is not Amazon's"


class Pages:
    """A bucket whose listing comes in pages of two."""

    meta = SimpleNamespace(endpoint_url="http://127.0.0.1", region_name="")

    def list_objects_v2(self, Prefix: str, ContinuationToken: str = "0", **_: object) -> dict[str, object]:
        at = int(ContinuationToken)
        items = [{"Key": f"{Prefix}{number}", "Size": 1, "ETag": '"t"'} for number in range(at, min(at + 2, 5))]
        return {"Contents": items, "IsTruncated": at + 2 < 5, "NextContinuationToken": str(at + 2)}


def test_every_page_of_a_listing_counts(tmp_path: Path, fake: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_sources, "_open_bucket", lambda _, data: (Pages(), data, False))
    source = find(fake, tmp_path, "s3://results/many/")
    assert [file.path for file in source.files] == [f"many/{number}" for number in range(5)]
    monkeypatch.setattr(data_sources, "MAX_OBJECTS", 4)
    with pytest.raises(UsageError, match="has more than 4 objects"):
        find(fake, tmp_path, "s3://results/many/")
    monkeypatch.setattr(data_sources, "_objects", lambda *_: iter([{"Key": "many/x/", "Size": 0}] * 5))
    with pytest.raises(UsageError, match="has more than 4 objects"):
        find(fake, tmp_path, "s3://results/many/")


@pytest.mark.parametrize("key", ["set/../x", "set//x", "set/./x", "set/a/../../x", f"set/{'x' * 300}"])
def test_a_name_that_no_file_can_have_is_refused(
    fake: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    put(fake, "set/a")
    listed = [{"Key": "set/a", "Size": 1, "ETag": '"t"'}, {"Key": key, "Size": 1, "ETag": '"t"'}]
    monkeypatch.setattr(data_sources, "_objects", lambda *_: iter(listed))
    with pytest.raises(UsageError, match="has a name that no file can have"):
        find(fake, tmp_path, "s3://results/set/")


def test_an_object_that_is_also_a_folder_is_refused(fake: FakeBucket, tmp_path: Path) -> None:
    put(fake, "set/a", "set/a-b", "set/a.c", "set/a/b")
    with pytest.raises(UsageError, match="set/a is both an object and the folder of others"):
        find(fake, tmp_path, "s3://results/set/")


def test_an_object_that_is_listed_twice_is_not_written_twice(
    fake: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [{"Key": "set/a", "Size": 1, "ETag": '"t"'}] * 2
    monkeypatch.setattr(data_sources, "_objects", lambda *_: iter(listed))
    with pytest.raises(UsageError, match="lists set/a twice"):
        find(fake, tmp_path, "s3://results/set/")


def test_a_clock_that_is_wrong_is_said(fake: FakeBucket) -> None:
    error = ClientError({"Error": {"Code": "RequestTimeTooSkewed", "Message": "The difference…"}}, "ListObjectsV2")
    found = translate_error(error, BucketData(fake.name), "s3:ListBucket")
    assert isinstance(found, AuthFailed)
    assert "the clock of this computer is wrong" in found.message


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://results/none", "there is nothing at s3://results/none"),
        ("s3://absent/none", "there is no bucket absent"),
    ],
)
def test_nothing_there_is_said(fake: FakeBucket, tmp_path: Path, address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(fake, tmp_path, address)


def ask(source: Source, index: int = 0) -> web.Answer:
    url, headers = source.url(source.files[index])
    return web.ask(web.Address(url, headers, has_checksum=False), {})


def test_a_url_serves_one_object_for_minutes_and_tells_its_checksum(fake: FakeBucket, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(b"content").digest()
    fake.client().put_object(Bucket=fake.name, Key="a b", Body=b"content", ChecksumAlgorithm="SHA256")
    source = find(fake, tmp_path, "s3://results/a b")
    answer = ask(source)
    assert (answer.status, answer.read(), answer.version.etag) == (200, b"content", source.files[0].etag)
    assert base64.b64decode(answer.header("x-amz-checksum-sha256")) == sha256
    answer.close()
    query = dict(parse_qsl(urlsplit(source.url(source.files[0])[0]).query))
    assert int(query["X-Amz-Expires"]) == data_sources.SIGNATURE_S
    assert "/eu-central-1/" in query["X-Amz-Credential"], "the bucket's region, whichever the user's is"
    assert SECRET not in source.url(source.files[0])[0]
    assert "X-Amz" not in repr(source)


def test_a_public_bucket_needs_no_keys(fake: FakeBucket, tmp_path: Path) -> None:
    put(fake, "a")
    with pytest.raises(AuthFailed, match="no AWS credentials are known"):
        find(fake, tmp_path, "s3://results/a", keys=False)
    fake.client().put_object_acl(Bucket=fake.name, Key="a", ACL="public-read")
    fake.public = True
    source = find(fake, tmp_path, "s3://results/a", keys=False)
    assert source.is_public
    assert "?" not in source.url(source.files[0])[0]
    answer = ask(source)
    assert answer.read() == b"a"
    answer.close()
    assert not find(fake, tmp_path, "s3://results/a").is_public


def test_keys_that_are_refused_are_said_with_what_they_need(fake: FakeBucket, tmp_path: Path) -> None:
    put(fake, "a")
    fake.expired = True
    with pytest.raises(GpuopsError, match="session of these AWS credentials has ended"):
        find(fake, tmp_path, "s3://results/a")
    data = BucketData("results", "a")
    assert data.grants == "s3:ListBucket on arn:*:s3:::results and s3:GetObject on arn:*:s3:::results/*"


def test_what_would_be_fetched_is_described(fake: FakeBucket, tmp_path: Path) -> None:
    put(fake, "set/a", "set/b")
    assert describe_source(find(fake, tmp_path, "s3://results/set")) == "2 files, 10 B, from s3://results/set"
    with DataServer({"/x.tar": b"x" * 2000}) as server:
        source = find(fake, tmp_path, f"{server.url}/x.tar?token=hush")
        assert describe_source(source) == f"1 file, 2.0 kB, from {server.url}/x.tar"
        assert [one.method for one in server.heard] == ["HEAD"]
        server.plays.append(Play(status=405))
        assert describe_source(source) == (
            f"1 file, of a size that is not known here (127.0.0.1 answers 405), from {server.url}/x.tar"
        )
        server.has_length, server.more = False, {"Content-Length": "9" * 5000}
        assert "of a size that is not known here (127.0.0.1 does not tell it)" in describe_source(source)
    assert "hush" not in repr(source)


def test_no_url_outlives_its_minutes(fake: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(fake, "a")
    monkeypatch.setattr(data_sources, "SIGNATURE_S", 1)
    source = find(fake, tmp_path, "s3://results/a")
    url, headers = source.url(source.files[0])
    began = time.time()
    while (answer := web.ask(web.Address(url, headers, has_checksum=False), {})).status == 200:
        answer.close()
        assert time.time() < began + 60
        time.sleep(0.2)
    assert (answer.status, answer.code()) == (403, "AccessDenied")
    answer.close()
