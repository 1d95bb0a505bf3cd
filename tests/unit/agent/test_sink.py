"""One file's way to another disk, and when a node has nothing left to live for."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.client_activity import note_heard, silent_for_s
from gpuops.agent.daemon import watchdog
from gpuops.agent.lease_clock import ClockReading, next_end, renewed_lease
from gpuops.agent.node import Node
from gpuops.agent.result_storage import (
    bucket_sink,
    end_after_upload,
    presigned_urls,
    sink,
    stored_files,
    verified_copy,
    wait_for_download,
)
from gpuops.agent.result_storage.end_after_upload import (
    OTHERS_LIMIT_S,
    LastActivity,
    StallTimer,
    all_safe,
    is_attended,
    last_progress_times,
    may_end,
)
from gpuops.agent.result_storage.multipart_upload import Stored
from gpuops.agent.result_storage.streamed_archive import Item
from gpuops.agent.result_storage.verified_copy import copy_verified
from gpuops.agent.run_documents import LaunchSpec, SinkSpec
from tests.conftest import until

NOW = ClockReading(1_000_000.0, 500.0, "b")


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "a", tmp_path / "far" / "b"
    source.write_bytes(b"x" * 3_000_000)
    told: list[int] = []
    found = copy_verified(os.fsencode(source), os.fsencode(target), told.append)
    assert found is not None
    assert (found[0], target.read_bytes()) == (3_000_000, source.read_bytes())
    assert sum(told) == 3_000_000
    monkeypatch.setattr(verified_copy, "read_back", lambda *_: "other")
    source.write_bytes(b"new")
    with pytest.raises(OSError, match="reads back differently"):
        copy_verified(os.fsencode(source), os.fsencode(target), told.append)
    assert target.stat().st_size == 3_000_000, "the last good one stays"
    assert [path.name for path in target.parent.iterdir()] == ["b"]


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("pipe", "link", "gone", "."):
        assert copy_verified(os.fsencode(tmp_path / name), os.fsencode(tmp_path / "copy"), lambda _: None) is None
    assert not (tmp_path / "copy").exists()


def test_what_may_not_be_read_is_not_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another user, or without permissions: a node that ended with its run would take it along."""
    folder, volume = tmp_path / "runs" / "r-1", tmp_path / "volume"
    folder.mkdir(parents=True)
    items = [Item(os.fsencode(tmp_path / name), f"out/{name}", 1, 0) for name in ("a.pt", "b.pt")]
    for item in items:
        Path(os.fsdecode(item.source)).write_bytes(b"x")
    opened = os.open

    def denied(path: Any, flags: int, *rest: Any) -> int:
        if path == items[0].source:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *rest)

    monkeypatch.setattr(verified_copy.os, "open", denied)
    monkeypatch.setattr(stored_files, "list_items", lambda *_: items)
    sink._store(Node(str(tmp_path)), str(folder), LaunchSpec("r-1", sink=SinkSpec(str(volume))), str(volume), None)
    noted = json.loads((folder / sink.STATE).read_text())
    assert (noted["state"], noted["why"]) == ("failed", "Permission denied, 1 file")
    assert (volume / "node0/out/b.pt").exists(), "the others are stored"


@pytest.mark.parametrize(
    ("present", "all_safe", "waited_s", "ends"),
    [
        (False, True, 0.0, True),
        (True, True, 0.0, False),
        (True, True, 1e6, False),
        (False, False, OTHERS_LIMIT_S - 1, False),
        (False, False, OTHERS_LIMIT_S, True),
        (True, False, OTHERS_LIMIT_S, False),
    ],
)
def test_a_node_ends_alone_and_with_the_others(present: bool, all_safe: bool, waited_s: float, ends: bool) -> None:
    assert may_end(present, all_safe, waited_s) is ends


def test_a_node_waits_for_a_client_of_what_another_node_handed_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own results are safe, but the sink never gets those of the node that was preempted."""
    node, folder = Node(str(tmp_path)), tmp_path / "runs" / "r-1"
    folder.mkdir(parents=True)
    (folder / "handed.json").write_text(json.dumps({"a.pt": 1}))
    waits, usual, own_thread = list[float](), time.sleep, threading.current_thread()

    def sleep(seconds: float) -> None:
        if threading.current_thread() is own_thread:
            waits.append(seconds)
            wait_for_download.record_download(str(folder))
        else:  # one that a test before this left behind
            usual(seconds)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(end_after_upload, "may_end", lambda *_: True)
    monkeypatch.setattr(end_after_upload.time, "sleep", sleep)
    end_after_upload._end_when_stored(node, LaunchSpec("r-1", sink=SinkSpec(str(tmp_path))), str(tmp_path))
    assert len(waits) == 1
    assert end_after_upload.end_reason(node) == f"its results are safe in {tmp_path}"


def test_all_are_safe_when_each_has_said_so(tmp_path: Path) -> None:
    for index in (0, 2):
        (tmp_path / f"node{index}").mkdir()
        (tmp_path / f"node{index}" / "safe.json").touch()
    assert not all_safe(str(tmp_path), 3)
    assert all_safe(str(tmp_path), 1)


def test_a_bucket_that_answers_now_and_then_is_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / presigned_urls.FILE).write_text(json.dumps({"heads": ["h0", "h1"], "states": ["s0", "s1"]}))
    monkeypatch.setattr(bucket_sink, "OTHERS_CHECK_INTERVAL_S", 0.0)
    answers = {"s0": "a", "s1": "b"}
    monkeypatch.setattr(bucket_sink, "_fetch_etag", lambda url: answers.get(url, ""))
    seen, waited = bucket_sink.StoredArchives(str(tmp_path)), StallTimer()
    assert waited.seconds(seen.alive(), 0.0) == 0.0
    answers["s1"] = ""
    assert waited.seconds(seen.alive(), 300.0) == 300.0
    answers["s1"] = "b"
    assert waited.seconds(seen.alive(), 600.0) == 600.0
    answers["s1"] = "c"
    assert waited.seconds(seen.alive(), 601.0) == 0.0, "it has said something"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Stored(3, 9, 1, [], ["out/a.pt"]), "1 file cannot be read: out/a.pt"),
        (Stored(3, 9, 2, [], ["out/a.pt"]), "only 3 files could be sent before this machine is taken, and 2 not"),
    ],
)
def test_what_is_not_all_there_is_not_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Stored, why: str
) -> None:
    monkeypatch.setattr(bucket_sink, "upload_results", lambda *_: found)
    spec = LaunchSpec("r-1", sink=SinkSpec(bucket="s3://results/r-1"))
    sink._store(Node(str(tmp_path)), str(tmp_path), spec, "s3://results/r-1", None)
    noted = json.loads((tmp_path / sink.STATE).read_text())
    assert (noted["state"], noted["why"]) == ("failed", why)


@pytest.mark.parametrize("farewell_s", [0.0, watchdog.FAREWELL_LIMIT_S])
def test_who_ends_a_node_says_how_long_it_is_waited_for(monkeypatch: pytest.MonkeyPatch, farewell_s: float) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(watchdog, "ask", lambda verb, wish, limit_s: asked.update(wish, verb=verb, limit_s=limit_s))
    monkeypatch.setattr(watchdog.Watchdog, "_end_all", lambda *_: 0)
    watchdog.Watchdog._end_processes(
        object.__new__(watchdog.Watchdog), "lease", "its lease ended", "graceful", farewell_s
    )
    assert asked["verb"] == "leave"
    assert watchdog.LEAVE_LIMIT_S / 2 < asked["within_s"] < asked["limit_s"]


def test_a_life_that_is_over_ends_at_once_but_under_no_run() -> None:
    noted = renewed_lease(NOW, 3600.0, None)
    assert next_end(noted, NOW, 0.0, False, None, "its results are safe") == (0.0, "its results are safe")
    assert next_end(noted, NOW, 0.0, True, None, "its results are safe") == (3600.0, "its lease ended")


def test_only_a_touch_after_the_first_look_is_somebodys() -> None:
    used = LastActivity(10.0)
    assert not used.within(10.0, 5.0, 120.0)
    assert used.within(11.0, 6.0, 120.0)
    assert used.within(11.0, 125.0, 120.0)
    assert not used.within(11.0, 126.0, 120.0)


@pytest.mark.parametrize(
    ("connected", "silent_s", "there"),
    [(1, 0.0, True), (1, 119.0, True), (1, 120.0, False), (0, 19.0, True), (0, 20.0, False), (0, float("inf"), False)],
)
def test_a_connection_alone_is_nobody(connected: int, silent_s: float, there: bool) -> None:
    assert is_attended(connected, silent_s) is there


def test_who_talks_is_heard_of() -> None:
    note_heard()
    assert silent_for_s() < 60.0


def test_a_node_that_goes_on_is_not_waited_for_in_vain(tmp_path: Path) -> None:
    other = tmp_path / "node1" / "run.json"
    other.parent.mkdir()
    other.touch()
    others = StallTimer()
    assert others.seconds(last_progress_times(str(tmp_path), 2), 100.0) == 0.0
    assert others.seconds(last_progress_times(str(tmp_path), 2), 650.0) == 550.0
    os.utime(other, (1.0, 1.0))
    assert others.seconds(last_progress_times(str(tmp_path), 2), 680.0) == 0.0, "whatever its clock says"
    assert others.seconds(last_progress_times(str(tmp_path), 2), 690.0) == 10.0


def test_a_node_shows_that_it_goes_on_until_it_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "ALIVE_INTERVAL_S", 0.01)
    node = Node(str(tmp_path / "n0"))
    folder = tmp_path / "n0" / "runs" / "r-1"
    folder.mkdir(parents=True)
    (folder / "sink.json").write_text(json.dumps({"state": "claimed", "folder": str(tmp_path)}))
    mark = tmp_path / "node0" / "run.json"
    mark.parent.mkdir()
    mark.touch()
    os.utime(mark, (1.0, 1.0))
    done = threading.Event()
    sink.start_heartbeat(node, LaunchSpec("r-1", sink=SinkSpec(str(tmp_path))), done)
    until(lambda: mark.stat().st_mtime > 1.0, "a beat")
    (folder / "sink.json").write_text(json.dumps({"state": "failed", "folder": str(tmp_path)}))
    done.set()
    assert sink.is_unsafe(node, "r-1")
    os.utime(mark, (1.0, 1.0))
    until(lambda: mark.stat().st_mtime > 1.0, "it goes on while what it has is nowhere else")
    (folder / "home.json").touch()
    assert not sink.is_unsafe(node, "r-1")
    until(lambda: not [one for one in threading.enumerate() if one.name == "beat r-1"], "and no longer")


def test_what_an_agent_before_left_is_waited_for_also_before_it_is_begun(tmp_path: Path) -> None:
    sink.announce_resume()
    waiting = threading.Thread(target=sink.wait_until_stored, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "nobody has looked yet what there is to be done"
    sink.resume_storing(Node(str(tmp_path)))
    until(lambda: not waiting.is_alive(), "there was nothing")
