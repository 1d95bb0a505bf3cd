"""Data from servers as they are: fetched once, gone on with, checked, and refused in a sentence."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from late import late_import
from mirror import Mirror

from tests.certificate import certificate_in

if TYPE_CHECKING:
    from ddp.world import World

downloads = late_import("ddp.downloads")

LARGE, SMALL = "large.bin", "small.txt.gz"
CONTENTS = {LARGE: random.Random(5).randbytes(300_000), SMALL: gzip.compress(b"a few words", mtime=0)}
HANG_S = 600.0


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with Mirror(dict(CONTENTS)) as mirror:
        yield mirror


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pauses; and whatever proxy this machine has, loopback is not behind it."""
    monkeypatch.setattr("ddp.downloads.PAUSE_S", 0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    urllib.request.install_opener(None)  # it looks at the environment when it is first used, and never again


class Got:
    """What came of a download into a folder, and what it told."""

    def __init__(self, folder: Path, address: str) -> None:
        self.told: list[str] = []
        files = [
            downloads.File(
                name, f"{address}/{name}", len(content), hashlib.sha256(content).hexdigest(), name[: -len(".gz")]
            )
            for name, content in CONTENTS.items()
        ]
        alone = SimpleNamespace(local_rank=0, stop=SimpleNamespace(signalled=False), check=self._check)
        self.problem: str | None = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ddp.downloads.tell", self.told.append)
            patch.setattr(downloads.dist, "new_group", lambda **_: None)
            patch.setattr(downloads.os.path, "isdir", lambda _: True)
            downloads.fetch(cast("World", alone), str(folder), "", files)
        self.there = {path.name: path.read_bytes() for path in folder.glob("[!.]*")} if folder.is_dir() else {}

    def _check(self, problem: str | None, _group: object = None) -> None:
        self.problem = self.problem or problem


@pytest.fixture
def get(mirror: Mirror, tmp_path: Path) -> Callable[[], Got]:
    return lambda: Got(tmp_path / "data", mirror.address)


@pytest.fixture
def fetching(world, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., object]:
    """programs/fetching.py in a world, with the mirror for its official source."""
    truth = tmp_path_factory.mktemp("truth")
    for name, content in CONTENTS.items():
        (truth / name).write_bytes(content)
    common = {"SMALL": str(truth), "SOURCE": mirror.address, "no_proxy": "127.0.0.1"}

    def start(*arguments: str, numbers: dict[str, float] | None = None, **options):
        env = {**common, "DOWNLOADS": json.dumps({"PAUSE_S": 0, **(numbers or {})})}
        return world("small.py", "fetching.py", *arguments, **{**env, **options})

    return start


def wait_until(condition: Callable[[], object]) -> None:
    guard = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < guard
        time.sleep(0.01)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


# ---- once ------------------------------------------------------------------------------------------------------------


def test_four_ranks_fetch_once_and_a_second_start_nothing(fetching, mirror: Mirror, tmp_path: Path) -> None:
    sums = " ".join(hashlib.sha256(content).hexdigest() for content in CONTENTS.values())
    for _ in range(2):
        ranks = fetching(ranks=4).succeed()
        assert [ranks.out(rank) for rank in range(4)] == [[f"data/fetching: {sums}"]] * 4
    assert mirror.asked() == [(LARGE, 0), (SMALL, 0)]
    assert {path.name for path in (tmp_path / "data" / "fetching").iterdir()} == {LARGE, SMALL, ".lock"}


def test_two_worlds_that_share_a_folder_fetch_once(fetching, mirror: Mirror, tmp_path: Path) -> None:
    mirror.hold_at = 100_000
    first = fetching("--data", str(tmp_path))
    wait_until(lambda: mirror.requests)
    second = fetching("--data", str(tmp_path))
    wait_until(lambda: f"another process downloads to {tmp_path}; waiting for it" in second.err())
    mirror.go_on.set()
    first.succeed()
    second.succeed()
    assert mirror.asked() == [(LARGE, 0), (SMALL, 0)]


# ---- broken off ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
def test_killed_in_the_middle_it_goes_on(fetching, mirror: Mirror, tmp_path: Path, ranges: bool) -> None:
    """With the rest, where the server knows parts."""
    mirror.ranges, mirror.hold_at = ranges, 204_800
    part = tmp_path / "data" / "fetching" / f"{LARGE}.part"
    killed = fetching(ranks=2)
    wait_until(lambda: size(part) == 204_800)
    os.kill(killed.pids[0], signal.SIGKILL)
    killed.die()
    mirror.hold_at = None
    fetching(ranks=2).succeed()
    rest = 300_000 - 204_800 if ranges else 300_000
    # That it went out is noted after it did, and a program may be done with it before.
    wait_until(lambda: [r.sent for r in mirror.requests[1:]] == [rest, len(CONTENTS[SMALL])])
    assert [r.begin for r in mirror.requests[1:]] == [204_800, 0]


@pytest.mark.parametrize(("resets", "lengths"), [(False, True), (True, True), (False, False)])
def test_a_connection_that_ends_early_is_taken_up(get, mirror: Mirror, resets: bool, lengths: bool) -> None:
    mirror.cuts, mirror.resets, mirror.lengths = [100_000, 50_000], resets, lengths
    got = get()
    assert (got.problem, got.there) == (None, CONTENTS)
    begins = [request.begin for request in mirror.requests if request.name == LARGE]
    assert len(begins) == 3
    assert begins == sorted(begins)
    if not resets:  # a reset takes with it what has not been read yet
        assert begins == [0, 106_496, 163_840]
    why = "Connection reset by peer" if resets else "the connection ended early"
    assert [line for line in got.told if "trying" in line] == [f"{LARGE}: {why}, trying again"] * 2


def test_one_that_always_ends_early_is_given_up_and_kept(get, mirror: Mirror) -> None:
    mirror.cuts = [8192] * 9
    got = get()
    assert got.problem.startswith(
        f"{LARGE} could not be downloaded from {mirror.address}/{LARGE}: the connection ended early; "
    )
    assert len(mirror.requests) == downloads.TRIES
    assert len(got.there[f"{LARGE}.part"]) == 8192 * downloads.TRIES


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(get, mirror: Mirror, status: int) -> None:
    mirror.answers = [status, status]
    assert get().there == CONTENTS
    assert mirror.asked() == [(LARGE, 0)] * 3 + [(SMALL, 0)]


def test_a_server_that_says_no_is_asked_once(get, mirror: Mirror, tmp_path: Path) -> None:
    del mirror.contents[LARGE]
    assert get().problem == (
        f"{LARGE} could not be downloaded from {mirror.address}/{LARGE}: 404 Not Found; "
        f"put it into {tmp_path}/data by hand, or name a mirror with --data"
    )
    assert len(mirror.requests) == 1


def test_a_silent_server_is_not_waited_for_for_ever(get, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp.downloads.TIMEOUT_S", 0.1)
    mirror.hold_at = 100_000
    assert f"{LARGE}: timed out, trying again" in get().told


def test_a_slow_one_is_told_of(get, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp.downloads.PROGRESS_S", 0)
    told = get().told
    assert told[0] == f"{LARGE}: 0.3 MB from {mirror.address}/{LARGE}"
    assert re.fullmatch(rf"{LARGE}: 0\.\d MB of 0\.3 MB", told[1])


def test_asked_to_stop_all_leave_and_the_next_start_goes_on(fetching, mirror: Mirror, tmp_path: Path) -> None:
    mirror.hold_at = 204_800
    stopped = fetching(ranks=2, numbers={"PROGRESS_S": HANG_S})
    wait_until(lambda: size(tmp_path / "data" / "fetching" / f"{LARGE}.part") == 204_800)
    for rank in range(2):
        stopped.tell(rank, signal.SIGTERM)
    mirror.go_on.set()
    assert set(stopped.finish().codes) == {1}
    assert stopped.err().splitlines()[1:] == [
        "error: stopped before the data were there; the same command resumes the download"
    ]
    assert stopped.err(1) == ""
    fetching(ranks=2).succeed()
    again = [request.begin for request in mirror.requests[1:] if request.name == LARGE]
    assert all(begin > 204_800 for begin in again), "none, where the rest had come in one piece before the stop"


# ---- what is not what it should be -----------------------------------------------------------------------------------


def test_another_content_is_refused_and_removed(get, mirror: Mirror) -> None:
    mirror.contents[LARGE] = CONTENTS[LARGE][:-1] + b"?"
    got = get()
    assert got.there == {}
    theirs, ours = (hashlib.sha256(each[LARGE]).hexdigest()[:12] for each in (mirror.contents, CONTENTS))
    assert got.problem == (
        f"{mirror.address}/{LARGE} is not the published {LARGE}: "
        f"its SHA-256 is {theirs}… and not {ours}…; name another mirror with --data"
    )
    mirror.contents[LARGE] = CONTENTS[LARGE]
    assert get().there == CONTENTS


@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize("other", [b"<html>please log in</html>", CONTENTS[LARGE] + b"and more"])
def test_another_length_is_refused(get, mirror: Mirror, other: bytes, lengths: bool) -> None:
    mirror.contents[LARGE], mirror.lengths = other, lengths
    got = get()
    if lengths:  # known before a byte of it is written
        assert got.problem == (
            f"{mirror.address}/{LARGE} is not the published {LARGE}: "
            f"it has {len(other)} bytes and not 300000; name another mirror with --data"
        )
        assert got.there == {}
    elif len(other) < 300_000:
        assert "the connection ended early" in got.problem
    else:  # what it has beyond the file's end is not looked at
        assert got.there == CONTENTS


def leave(folder: Path, content: bytes) -> None:
    (folder / "data").mkdir()
    (folder / "data" / f"{LARGE}.part").write_bytes(content)


@pytest.mark.parametrize("before", [b"x" * 1000, b"x" * 300_000, b"x" * 300_001])
def test_the_beginning_of_another_file_is_noticed(get, mirror: Mirror, tmp_path: Path, before: bytes) -> None:
    """Of another mirror, say; as long as ours, or longer."""
    leave(tmp_path, before)
    got = get()
    assert (got.problem, got.there) == (None, CONTENTS)
    assert mirror.asked()[-2:] == [(LARGE, 0), (SMALL, 0)]


def test_killed_before_it_was_checked_it_is_not_fetched_again(get, mirror: Mirror, tmp_path: Path) -> None:
    leave(tmp_path, CONTENTS[LARGE])
    assert get().there == CONTENTS
    assert mirror.asked() == [(SMALL, 0)]


def test_a_server_that_has_less_than_is_here(get, mirror: Mirror, tmp_path: Path) -> None:
    """It answers 416."""
    leave(tmp_path, CONTENTS[LARGE][:2000])
    mirror.contents[LARGE] = b"short"
    assert "it has 5 bytes and not 300000" in get().problem
    mirror.contents[LARGE] = CONTENTS[LARGE]
    assert get().there == CONTENTS
    assert mirror.asked() == [(LARGE, 2000), (LARGE, 0), (LARGE, 0), (SMALL, 0)]


# ---- where to -------------------------------------------------------------------------------------------------------


def mount(folder: Path, *options: str) -> None:
    """A file system of its own; only root may."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Of one megabyte."""
    folder = tmp_path / "data"
    mount(folder, "-o", "size=1m")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_meanwhile_is_not_taken_for_a_bad_connection(fetching, mirror: Mirror, disk: Path) -> None:
    mirror.hold_at = 204_800
    ranks = fetching("--data", str(disk), ranks=2)
    wait_until(lambda: size(disk / f"{LARGE}.part") == 204_800)
    with contextlib.suppress(OSError), open(disk / "theirs", "wb", buffering=0) as theirs:
        while theirs.write(bytes(4096)):
            pass
    mirror.go_on.set()
    assert set(ranks.finish().codes) == {1}
    assert ranks.err().splitlines()[1:] == [
        f"error: no data can be kept in {disk}: No space left on device; name another folder with --data"
    ]
    assert len(mirror.requests) == 1


def test_a_complete_folder_that_cannot_be_written_will_do(fetching, mirror: Mirror, disk: Path) -> None:
    (disk / LARGE).write_bytes(CONTENTS[LARGE])
    (disk / "small.txt").write_bytes(b"a few words")  # unpacked
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    fetching("--data", str(disk), ranks=2).succeed()
    assert mirror.requests == []


def test_an_incomplete_one_is_said(get, disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert get().problem == f"no data can be kept in {disk}: Read-only file system; name another folder with --data"


def test_a_file_in_the_folders_place_is_said(get, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert get().problem == f"no data can be kept in {tmp_path}/data: File exists; name another folder with --data"


# ---- where from -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_mirror_serves_instead_of_the_source(fetching, tmp_path: Path, by_variable: bool) -> None:
    with Mirror(CONTENTS) as other:
        where = {"GPUOPS_DATA": f"{other.address}/"} if by_variable else {}
        arguments = () if by_variable else ("--data", f"{other.address}/")
        fetching(*arguments, SOURCE="http://127.0.0.1:9", **where).succeed()
        assert other.asked() == [(LARGE, 0), (SMALL, 0)]
    assert (tmp_path / "data" / "fetching" / LARGE).exists()


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_folder_that_has_all_serves_as_well(fetching, mirror: Mirror, tmp_path: Path, by_variable: bool) -> None:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    where = {"GPUOPS_DATA": str(tmp_path)} if by_variable else {}
    fetching(*(() if by_variable else ("--data", str(tmp_path))), **where).succeed()
    assert mirror.requests == []
    assert {path.name for path in tmp_path.iterdir()} == {LARGE, SMALL}


def test_a_folder_that_one_machine_lacks(fetching, tmp_path: Path) -> None:
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    for node in nodes:
        node.mkdir()
    (nodes[0] / "mine").mkdir()
    refused = fetching("--data", "mine", ranks=2, cwds=nodes).refusal()
    assert refused == "error: mine is not a folder; --data names one, or the http address of a mirror (rank 1)"


def test_through_a_proxy(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the machine's environment names it; the mirror plays one for a host that is nowhere."""
    monkeypatch.setenv("http_proxy", mirror.address.removesuffix("/data"))
    assert Got(tmp_path / "data", "http://data.invalid/sets").there == CONTENTS


@pytest.mark.parametrize("address", ["http:", "http://", "http://[", "http://127.0.0.1:port", "http://a b/"])
def test_an_address_that_is_none(tmp_path: Path, address: str) -> None:
    got = Got(tmp_path / "data", address)
    assert got.problem.startswith(f"{LARGE} could not be downloaded from {address}/{LARGE}: ")
    assert got.told == []


def test_nobody_at_the_address(tmp_path: Path, free_port: int) -> None:
    got = Got(tmp_path / "data", f"http://127.0.0.1:{free_port}")
    assert ": Connection refused; put it into " in got.problem
    assert got.told == []


def test_a_certificate_that_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the variable that makes it so, as for every Python program."""
    certificate = certificate_in(tmp_path)
    with Mirror(CONTENTS, certificate) as mirror:
        got = Got(tmp_path / "data", mirror.address)
        assert "certificate verify failed: self-signed certificate" in got.problem
        assert got.told == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert Got(tmp_path / "data", mirror.address).there == CONTENTS
