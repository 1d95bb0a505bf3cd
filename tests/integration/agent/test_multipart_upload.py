"""An archive's way into a bucket, over real HTTP: whole, proven and closed, whatever the network and the files do."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent import http_connection
from gpuops.agent.result_storage import multipart_upload, presigned_requests, streamed_archive
from gpuops.agent.result_storage.multipart_upload import SentPart, Stored, Upload
from gpuops.agent.result_storage.presigned_requests import DeadlineExceeded, RequestDenied, with_retries
from gpuops.agent.result_storage.presigned_urls import PresignedUrls
from gpuops.agent.result_storage.streamed_archive import Archive, Item
from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.signals import Signals
from gpuops.core.sink import BucketSink
from gpuops.guard.services import SERVICES
from gpuops.sync import bucket as home
from tests.conftest import HANG_S, until
from tests.fakes.bucket import FakeBucket

MB = 1 << 20
KEY = "lab/r-1/node0.tar"


@pytest.fixture(scope="module")
def served() -> Iterator[FakeBucket]:
    with FakeBucket() as fake:
        yield fake


@pytest.fixture
def fake(served: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> FakeBucket:
    served.forget()
    served.client().create_bucket(Bucket=served.name)
    served.asked.clear()
    served.faults.clear()
    served.denied.clear()
    served.before = None
    monkeypatch.setattr(presigned_requests, "MIN_RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(presigned_requests, "RETRY_LIMIT_S", 2.0)
    monkeypatch.setattr(multipart_upload, "MIN_PART_BYTES", 5 * MB)
    return served


@pytest.fixture
def urls(fake: FakeBucket, tmp_path: Path) -> PresignedUrls:
    world = Context(tmp_path, "o", tmp_path, fake.env, Output(), Signals(), SERVICES)
    granted = home.create_upload_grant(world, BucketSink(fake.name, "lab", region="us-east-1"), "r-1", 1, None)
    return PresignedUrls.parse(granted.urls[0].document())


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Four files: of one part, of several, empty, and small."""
    items = []
    for number, size in enumerate([6 * MB, 17 * MB + 3, 0, 1000]):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(os.urandom(size))
        items.append(Item(os.fsencode(path), f"out/{number}.pt", size, path.stat().st_mtime_ns))
    return Archive(items)


def send(archive: Archive, urls: PresignedUrls, **more: Any) -> Stored:
    told: list[int] = []
    due = more.pop("deadline", multipart_upload.NEVER)
    use: dict[str, Any] = {
        "deadline": lambda: due,
        "progress": told.append,
        "sent": {},
        "record": lambda _: None,
        **more,
    }
    return Upload(archive, lambda: urls, {"schema": 1, "run": "r-1", "node": 0}, **use).run()


def send_for_as_long_as_the_first_part_takes(
    archive: Archive, urls: PresignedUrls, due: float, then: Callable[[], None] = lambda: None, **more: Any
) -> Stored:
    """Once that is there, no time is left for others, and enough for closing it, however busy this machine is."""
    ends = [due]

    class Pressed(Upload):
        def _gather(self, running: Any, etags: dict[int, str]) -> None:
            super()._gather(running, etags)
            if 1 in etags and ends == [due]:
                then()
                ends[0] = time.time() + multipart_upload.CLOSING_RESERVE_S

    use: dict[str, Any] = {"sent": {}, "record": lambda _: None, "progress": lambda _: None, **more}
    return Pressed(archive, lambda: urls, {}, deadline=lambda: ends[0], **use).run()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given up because this machine is busy."""
    monkeypatch.setattr(multipart_upload, "CLOSING_RESERVE_S", HANG_S)
    monkeypatch.setattr(presigned_requests, "RETRY_LIMIT_S", HANG_S)


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def whole(archive: Archive) -> dict[str, bytes]:
    return {item.name: Path(os.fsdecode(item.source)).read_bytes() for item in archive.items}


def test_it_is_there_whole_and_says_what_is_in_it(fake: FakeBucket, urls: PresignedUrls, archive: Archive) -> None:
    found = send(archive, urls)
    data = fake.content(KEY)
    inside = members(data)
    safe = json.loads(inside.pop("safe.json"))
    assert inside == whole(archive)
    assert (found.files, found.size, found.missing, found.changed) == (4, len(data), 0, [])
    assert [row[:2] for row in safe["files"]] == [[one.name, one.size] for one in archive.items]
    assert (safe["run"], safe["missing"]) == ("r-1", 0)
    assert not fake.uploads()


def test_what_a_node_is_given_holds_no_key(fake: FakeBucket, urls: PresignedUrls) -> None:
    assert not [secret for secret in fake.secrets if secret in json.dumps(urls._asdict())]


def test_what_is_small_is_one_part(fake: FakeBucket, urls: PresignedUrls, archive: Archive) -> None:
    send(Archive(archive.items[2:]), urls)
    assert len(fake.of_nodes("PUT", "partNumber")) == 1
    assert sorted(members(fake.content(KEY))) == ["out/2.pt", "out/3.pt", "safe.json"]


@pytest.mark.parametrize(
    ("method", "part", "what"),
    [
        ("PUT", "partNumber=1&", "500"),
        ("PUT", "partNumber=2&", "lost"),
        ("PUT", "partNumber=3&", "slow"),
        ("POST", "uploadId", "500"),
        ("POST", "uploadId", "inside"),
        ("POST", "uploadId", "lost"),
        ("HEAD", "node0.tar", "500"),
    ],
)
@pytest.mark.usefixtures("unhurried")
def test_what_fails_is_done_again(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive, method: str, part: str, what: str
) -> None:
    fake.play(method, part, what, times=2 if what == "500" else 1)
    assert send(archive, urls).missing == 0
    assert len(members(fake.content(KEY))) == 5


def test_a_file_that_changes_between_two_looks_is_sent_as_it_is(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive
) -> None:
    second = Path(os.fsdecode(archive.items[1].source))
    done: list[str] = []

    def change(method: str, address: str) -> None:
        if method == "PUT" and "partNumber=2&" in address and not done:
            done.append(address)
            second.write_bytes(b"n" * second.stat().st_size)

    original = presigned_requests.send_request

    def ask(method: str, url: str, *rest: Any) -> presigned_requests.Response:
        change(method, url)
        return original(method, url, *rest)

    presigned_requests.send_request, undo = ask, original  # type: ignore[assignment]
    try:
        found = send(archive, urls)
    finally:
        presigned_requests.send_request = undo
    inside = members(fake.content(KEY))
    assert found.changed == ["out/1.pt"]
    assert len(inside["out/1.pt"]) == second.stat().st_size
    assert inside["out/0.pt"] == Path(os.fsdecode(archive.items[0].source)).read_bytes()
    rows = {row[0]: row[2] for row in json.loads(inside["safe.json"])["files"]}
    assert rows["out/1.pt"] is None
    assert rows["out/0.pt"]


def test_bytes_that_never_arrive_as_they_were_are_not_sent_for_ever(
    urls: PresignedUrls, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something on the way alters them, or a file is never at rest."""
    sent: list[str] = []
    ask = presigned_requests.send_request

    def altered(method: str, url: str, *rest: Any) -> presigned_requests.Response:
        if "partNumber=1&" not in url:
            return ask(method, url, *rest)
        sent.append(url)
        return presigned_requests.Response(400, {}, b"<Error><Code>BadDigest</Code></Error>")

    monkeypatch.setattr(presigned_requests, "send_request", altered)
    with pytest.raises(RequestDenied, match="BadDigest"):
        send(archive, urls)
    assert len(sent) == multipart_upload.MAX_PART_ATTEMPTS


def test_what_cannot_be_read_is_not_said_to_be_there(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros stand in the archive for a file of another user, or on a disk that fails; and for one that has gone."""
    there, (first, second, third, _) = streamed_archive._read, archive.items
    denied = lambda source, *rest: iter(()) if source == second.source else there(source, *rest)  # noqa: E731
    monkeypatch.setattr(streamed_archive, "_read", denied)
    Path(os.fsdecode(first.source)).unlink()
    found = send(archive, urls)
    assert (found.missing, found.unread, found.changed) == (1, [second.name], [])
    safe = json.loads(members(fake.content(KEY))["safe.json"])
    assert safe["missing"] == 1
    assert [row[0] for row in safe["files"]] == [third.name, "out/3.pt"]


@pytest.mark.parametrize("code", ["expired", "denied", "aborted"])
def test_what_is_refused_is_not_asked_again(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presigned_requests, "RETRY_LIMIT_S", 100.0)
    if code == "aborted":
        s3 = fake.client()
        for one in s3.list_multipart_uploads(Bucket=fake.name)["Uploads"]:
            s3.abort_multipart_upload(Bucket=fake.name, Key=one["Key"], UploadId=one["UploadId"])
    elif code == "expired":
        monkeypatch.setattr(fake, "expired", True)
    else:
        fake.denied.add("s3:PutObject")
    began = time.monotonic()
    with pytest.raises(RequestDenied, match="the bucket refuses it"):
        send(archive, urls)
    assert time.monotonic() - began < 60.0
    monkeypatch.undo()
    assert KEY not in fake.names()


def test_a_store_that_stays_away_is_given_up(urls: PresignedUrls, archive: Archive, fake: FakeBucket) -> None:
    fake.play("PUT", "partNumber", "500", times=10_000)
    with pytest.raises(DeadlineExceeded, match="500 InternalError"):
        send(archive, urls)
    assert KEY not in fake.names()


def test_a_successor_sends_only_what_is_missing(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: dict[str, list[Any]] = {}
    ask = presigned_requests.send_request

    def comes_last(method: str, url: str, *rest: Any) -> presigned_requests.Response:
        if "partNumber=4&" not in url:
            return ask(method, url, *rest)
        until(lambda: set(noted) >= {"1", "2", "3"}, "the others are there")
        raise DeadlineExceeded("and this one comes not at all")

    monkeypatch.setattr(presigned_requests, "send_request", comes_last)
    with pytest.raises(DeadlineExceeded):
        send(archive, urls, record=lambda parts: noted.update(json.loads(json.dumps(parts))))
    monkeypatch.setattr(presigned_requests, "send_request", ask)
    fake.asked.clear()
    assert send(archive, urls, sent={number: SentPart(*fields) for number, fields in noted.items()}).missing == 0
    again = {one.query["partNumber"] for one in fake.of_nodes("PUT", "partNumber")}
    assert not again & {"1", "2", "3"}
    inside = members(fake.content(KEY))
    inside.pop("safe.json")
    assert inside == whole(archive)


@pytest.mark.usefixtures("unhurried")
def test_where_the_time_is_short_what_came_is_an_archive(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive
) -> None:
    """The second file's last part does not come through: the first file is there, and closed."""
    fake.play("PUT", "partNumber=3&", "500", times=10_000)
    found = send_for_as_long_as_the_first_part_takes(archive, urls, time.time() + 3 * HANG_S)
    assert (found.files, found.missing) == (1, 3)
    inside = members(fake.content(KEY))
    safe = json.loads(inside.pop("safe.json"))
    assert inside == {"out/0.pt": whole(archive)["out/0.pt"]}
    assert (safe["missing"], [row[0] for row in safe["files"]]) == (3, ["out/0.pt"])


@pytest.mark.usefixtures("unhurried")
def test_that_the_time_is_short_may_be_told_on_the_way(fake: FakeBucket, urls: PresignedUrls, archive: Archive) -> None:
    """A machine that nobody takes back, until a part has come."""
    fake.play("PUT", "partNumber=3&", "500", times=10_000)
    found = send_for_as_long_as_the_first_part_takes(archive, urls, multipart_upload.NEVER)
    assert (found.files, found.missing) == (1, 3)
    assert sorted(members(fake.content(KEY))) == ["out/0.pt", "safe.json"]


@pytest.mark.usefixtures("unhurried")
def test_a_store_that_falls_silent_keeps_what_came_from_no_end(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part is sent and never answered: the machine goes before that connection is given up."""
    let_go, under_way = threading.Event(), threading.Event()
    told: list[int] = []
    before = set(threading.enumerate())
    ask = presigned_requests.send_request

    def unanswered(method: str, url: str, *rest: Any) -> presigned_requests.Response:
        if "partNumber=1&" in url:
            assert under_way.wait(HANG_S), "its end is the end of the time"
        answer = ask(method, url, *rest)
        if "partNumber=3&" in url:
            under_way.set()
            let_go.wait(HANG_S)
        return answer

    monkeypatch.setattr(presigned_requests, "send_request", unanswered)
    try:
        found = send_for_as_long_as_the_first_part_takes(archive, urls, multipart_upload.NEVER, progress=told.append)
        late = [one for one in set(threading.enumerate()) - before if one.name.startswith("ThreadPool")]
        assert late, "one waits for its answer still"
        closed = len(told)
    finally:
        let_go.set()
    for thread in late:
        thread.join(HANG_S)
    assert len(told) == closed, "what comes too late says nothing any more"
    assert (found.files, found.missing) == (1, 3)
    assert sorted(members(fake.content(KEY))) == ["out/0.pt", "safe.json"]


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("part", ["PUT partNumber=400&", "POST uploadId"])
def test_what_closes_it_is_asked_again_while_there_is_time(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    let_go, asked = threading.Event(), list[str]()
    method, name = part.split()

    def first_hangs(how: str, address: str) -> None:
        if how == method and name in address:
            asked.append(address)
            if len(asked) == 1:
                monkeypatch.setattr(http_connection, "SILENCE_LIMIT_S", HANG_S)
                let_go.wait(HANG_S)

    monkeypatch.setattr(fake, "before", first_hangs)
    fake.play("PUT", "partNumber=3&", "500", times=10_000)
    soon: Callable[[], None] = lambda: monkeypatch.setattr(http_connection, "SILENCE_LIMIT_S", 1.0)  # noqa: E731
    try:
        assert send_for_as_long_as_the_first_part_takes(archive, urls, multipart_upload.NEVER, soon).missing == 3
    finally:
        let_go.set()
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("left", "silence"),
    [
        (multipart_upload.NEVER, http_connection.SILENCE_LIMIT_S),
        (40.0, 20.0),
        (0.0, multipart_upload.MIN_SILENCE_LIMIT_S),
    ],
)
def test_an_answer_is_waited_for_half_of_the_time_there_is(
    urls: PresignedUrls, archive: Archive, left: float, silence: float
) -> None:
    end = time.time() + multipart_upload.CLOSING_RESERVE_S + left
    use: dict[str, Any] = {"sent": {}, "record": lambda _: None, "progress": lambda _: None}
    assert Upload(archive, lambda: urls, {}, deadline=lambda: end, **use)._silence_s() == pytest.approx(
        silence, abs=10.0
    )


@pytest.mark.parametrize("heads", [0, 10_000])
def test_what_was_closed_without_an_answer_is_there(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive, monkeypatch: pytest.MonkeyPatch, heads: int
) -> None:
    """The answer is lost, and the store is in trouble until the time for closing it shorter has come. With `heads`: it
    does not say either whether all of it is there, until another close is refused."""
    fake.play("POST", "uploadId", "lost")
    fake.play("POST", "uploadId", "500", times=10_000)
    fake.play("HEAD", "node0.tar", "500", times=heads)

    def refused(method: str, address: str) -> None:
        if method == "PUT" and "partNumber=400&" in address:
            fake.faults.clear()

    monkeypatch.setattr(fake, "before", refused)
    found = send(archive, urls, deadline=time.time() + 600.0)
    assert (found.files, found.missing, found.size) == (4, 0, len(fake.content(KEY)))
    assert len(members(fake.content(KEY))) == 5
    assert bool(fake.of_nodes("PUT", "'partNumber': '400'")) is bool(heads)


def test_what_is_not_there_is_not_said_to_be_where_its_closing_was_never_answered(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive
) -> None:
    fake.play("POST", "uploadId", "500", times=10_000)
    with pytest.raises(DeadlineExceeded, match="500 InternalError"):
        send(archive, urls)
    assert KEY not in fake.names()


def test_where_there_is_no_time_at_all_nothing_is_said_to_be_there(
    fake: FakeBucket, urls: PresignedUrls, archive: Archive
) -> None:
    with pytest.raises(DeadlineExceeded, match="not even for its first files"):
        send(archive, urls, deadline=time.time())
    assert KEY not in fake.names()


def test_what_is_too_large_is_said(urls: PresignedUrls) -> None:
    large = Archive([Item(b"/nowhere", "out/a", 2 << 40, 0)])
    assert multipart_upload.size_excess(large, urls) == "it is 2199 GB, and a bucket is sent 1068 GB of a node at most"
    assert multipart_upload.size_excess(Archive([Item(b"/nowhere", "out/a", 100_000_000_000, 0)]), urls) == ""


@pytest.mark.parametrize(
    ("answers", "tries"),
    [([503, 200], 2), ([429, 200], 2), ([408, 408, 200], 3), ([200], 1)],
)
def test_a_store_that_is_busy_is_asked_again(answers: list[int], tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presigned_requests, "MIN_RETRY_PAUSE_S", 0.001)
    left = list(answers)
    assert with_retries(lambda: presigned_requests.Response(left.pop(0), {}, b""), time.time() + 60.0).status == 200
    assert len(answers) - len(left) == tries


def test_an_error_within_a_good_answer_is_one() -> None:
    body = b"<Error><Code>InvalidPart</Code><Message>no</Message></Error>"
    with pytest.raises(RequestDenied, match=r"the bucket refuses it \(InvalidPart: no\)"):
        with_retries(lambda: presigned_requests.Response(200, {}, body), time.time() + 60.0)


def test_a_name_that_cannot_be_found_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presigned_requests, "MIN_RETRY_PAUSE_S", 0.01)

    def ask() -> presigned_requests.Response:
        return presigned_requests.send_request("HEAD", "http://nowhere.invalid/x?y=1")

    with pytest.raises(DeadlineExceeded):
        with_retries(ask, time.time() + 0.05)
