"""Whose keys a bucket is asked with, and that whoever comes later asks with the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.bucket import DotenvPolicy
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, UsageError
from gpuops.core.signals import Signals
from gpuops.core.sink import BucketSink
from gpuops.guard.services import SERVICES
from gpuops.sync import bucket, object_store
from tests.fakes.bucket import KEY, SECRET, FakeBucket

SINK = BucketSink("results", "lab")
PLACE = "s3://results/lab/r-1"
KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
VOID = {"AWS_ACCESS_KEY_ID": "AKIANOBODYS000000000", "AWS_SECRET_ACCESS_KEY": "void"}


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeBucket]:
    with FakeBucket() as one:
        yield one


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`work` may ask the bucket; the default profile and `other` may not."""
    path = tmp_path / "credentials"
    text = "[{}]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
    void = VOID.values()
    path.write_text(text.format("work", KEY, SECRET) + text.format("default", *void) + text.format("other", *void))
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", *KEYS, "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return path


@pytest.fixture
def world(fake: FakeBucket, files: Path, tmp_path: Path) -> Callable[..., Context]:  # noqa: ARG001
    def of(**env: str) -> Context:
        surroundings = {"AWS_ENDPOINT_URL": fake.url, **env}
        return Context(tmp_path, "o", tmp_path, surroundings, Output(), Signals(), SERVICES)

    return of


@pytest.mark.parametrize(
    ("env", "given", "profile"),
    [
        ({}, "", ""),
        ({}, "work", "work"),
        ({"AWS_PROFILE": "other"}, "work", "other"),
        ({"AWS_PROFILE": " other "}, "", "other"),
        ({"AWS_PROFILE": ""}, "work", "work"),
        (KEYS, "work", ""),
        ({**KEYS, "AWS_PROFILE": "other"}, "work", ""),
    ],
)
def test_whose_keys(env: dict[str, str], given: str, profile: str) -> None:
    assert object_store.select_profile(env, given) == profile


def test_the_profile_of_the_machines_serves_and_its_name_alone_is_kept(world: Callable[..., Context]) -> None:
    found = bucket.check_bucket(world(), dataclasses.replace(SINK, profile="work"))
    assert found == BucketSink("results", "lab", "work", DotenvPolicy.IGNORED, "us-east-1")
    with pytest.raises(AuthFailed, match="does not accept these credentials"):
        bucket.check_bucket(world(), SINK)


def test_what_is_exported_is_asked_first_and_kept_where_it_is_a_name(world: Callable[..., Context]) -> None:
    assert bucket.check_bucket(world(AWS_PROFILE="work"), SINK).profile == "work"
    assert bucket.check_bucket(world(**KEYS), dataclasses.replace(SINK, profile="other")).profile == ""


@pytest.mark.parametrize("later", [{}, {"AWS_PROFILE": "other"}, VOID], ids=["nothing", "another profile", "keys"])
def test_whoever_comes_later_asks_with_the_same(
    fake: FakeBucket, world: Callable[..., Context], later: dict[str, str]
) -> None:
    sink = bucket.check_bucket(world(AWS_PROFILE="work"), SINK)
    fake.client().put_object(Bucket="results", Key="lab/r-1/node0.tar", Body=b"kept")
    archive = bucket.open_archive(world(**later), sink, PLACE, 0)
    assert archive
    assert archive.read(4) == b"kept"
    assert bucket.create_upload_grant(world(**later), sink, "r-2", 1, None).place == "s3://results/lab/r-2"
    with pytest.raises(AuthFailed):
        bucket.open_archive(world(**later), dataclasses.replace(sink, profile=""), PLACE, 0)


def test_a_profile_that_is_no_more(fake: FakeBucket, world: Callable[..., Context], files: Path) -> None:
    """It leaves it to what is exported; where nothing is, it is said."""
    sink = bucket.check_bucket(world(), dataclasses.replace(SINK, profile="work"))
    files.write_text(files.read_text().replace("[work]", "[moved]"))
    fake.client().put_object(Bucket="results", Key="lab/r-1/node0.tar", Body=b"kept")
    assert bucket.open_archive(world(**KEYS), sink, PLACE, 0)
    assert bucket.open_archive(world(AWS_PROFILE="moved"), sink, PLACE, 0)
    for env in ({}, {"AWS_PROFILE": "work"}):
        with pytest.raises(UsageError, match="work") as caught:
            bucket.open_archive(world(**env), sink, PLACE, 0)
        assert caught.value.hint == "`aws configure list-profiles` shows what there is"


def test_a_bucket_of_the_projects_keys_is_asked_with_these_later(
    fake: FakeBucket, world: Callable[..., Context], files: Path
) -> None:
    """Also where other keys are there by then, of AWS's own files or exported."""
    files.rename(files.with_name("away"))
    first = world()
    first.dotenv = KEYS
    sink = bucket.check_bucket(first, SINK)
    assert sink.dotenv is DotenvPolicy.REQUIRED
    files.with_name("away").rename(files)
    fake.client().put_object(Bucket="results", Key="lab/r-1/node0.tar", Body=b"kept")
    for env in ({}, VOID):
        later = world(**env)
        later.dotenv = KEYS
        assert bucket.open_archive(later, sink, PLACE, 0)
    later = world()
    later.dotenv = KEYS
    with pytest.raises(AuthFailed, match="does not accept these credentials"):
        bucket.check_bucket(later, SINK)  # asked for the first time, `.env` comes last
    before = dataclasses.replace(sink, dotenv=DotenvPolicy.UNDECIDED)
    assert bucket.open_archive(later, before, PLACE, 0), "kept when `.env` came first"


def test_a_session_that_is_over_says_which_login(fake: FakeBucket, world: Callable[..., Context]) -> None:
    sink = bucket.check_bucket(world(), dataclasses.replace(SINK, profile="work"))
    fake.expired = True
    try:
        with pytest.raises(AuthFailed) as caught:
            bucket.open_archive(world(), sink, PLACE, 0)
    finally:
        fake.expired = False
    assert caught.value.hint == "sign in again (aws sso login --profile work)"
