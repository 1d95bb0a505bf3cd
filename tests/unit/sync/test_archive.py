"""What comes home of archives that nodes have kept in a bucket, whatever is in them."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.errors import GpuopsError, LocalDisk, Unknown
from gpuops.core.reporting import Silent
from gpuops.core.signals import Signals
from gpuops.ledger.rows import RunFacts
from gpuops.sync import archive
from gpuops.sync.archive import FetchedNode, unpack
from gpuops.sync.run_folder import RunHome


class Kept:
    """An archive as it is read from a bucket."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self.size = len(data)
        self.position = 0

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        self.position += len(data)
        return data


def packed(files: Mapping[str, bytes], safe: str | None = None, missing: int = 0) -> Kept:
    rows = [[name, len(data), hashlib.sha256(data).hexdigest(), 0] for name, data in files.items()]
    safe = json.dumps({"files": rows, "missing": missing}) if safe is None else safe
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in {**files, "safe.json": safe.encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return Kept(out.getvalue())


def bring(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kept: Mapping[int, Kept | GpuopsError | None]
) -> tuple[dict[int, FetchedNode], list[str], dict[str, str]]:
    """What came, the sentences of what did not, and the files that are home."""

    def opened(_world: Any, _sink: Any, _place: str, node: int) -> Kept | None:
        one = kept[node]
        if isinstance(one, GpuopsError):
            raise one
        return one

    monkeypatch.setattr("gpuops.sync.bucket.open_archive", opened)
    home = RunHome(folder / "runs" / "r-1")
    facts, request = {"bucket": {"place": "s3://results/r-1"}}, {"sink": {"bucket": "results"}}
    row = SimpleNamespace(home=home.path, name="r-1", facts=RunFacts(facts), request=request)
    world = SimpleNamespace(signals=Signals())
    brought, errors = archive.fetch_archives(cast("Any", world), cast("Any", row), kept, Silent())
    files = [path for path in home.path.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return brought, [one.message for one in errors], {str(one.relative_to(home.path)): one.read_text() for one in files}


BAD = packed({"out/b.pt": b"b"}, json.dumps({"files": [["out/b.pt", 1, "0" * 64, 0]]}))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (BAD, ["what node1 kept could not be verified: out/b.pt"]),
        (Kept(b"no archive"), ["what node1 kept is no whole archive of gpuops: it ends early"]),
        (Kept(b"no archive" * 100), ["what node1 kept is no whole archive of gpuops: it is no tar archive"]),
        (Unknown("the bucket results answers SlowDown", "try again"), ["the bucket results answers SlowDown"]),
        (None, []),
    ],
)
def test_one_nodes_trouble_keeps_no_others_results_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Any, said: list[str]
) -> None:
    good = packed({"out/a.pt": b"a", "logs/launcher.out": b"line"})
    brought, errors, files = bring(tmp_path, monkeypatch, {1: other, 0: good})
    assert errors == said
    assert brought == {0: FetchedNode(None, 0)}
    assert files == {"out/a.pt": "a", "logs/node0/launcher.out": "line"}


@pytest.mark.parametrize("name", ["logs/../../x", "logs/a/b", "out/.git/config", "out/sub/.GIT", "/etc/x", "out//x"])
def test_what_has_no_place_here_is_counted_and_keeps_nothing_else_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    brought, errors, files = bring(tmp_path, monkeypatch, {0: packed({name: b"x", "out/a.pt": b"a"})})
    assert (brought, errors, files) == ({0: FetchedNode(None, 1)}, [], {"out/a.pt": "a"})


@pytest.mark.parametrize(
    "safe", ["", "[]", '{"files": 3}', '{"files": [["out/a", 1e999, null, 0]]}', '{"files": [[1]]}', "[" * 100_000]
)
def test_what_says_nothing_of_use_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safe: str) -> None:
    brought, [said], files = bring(tmp_path, monkeypatch, {0: packed({"out/a": b"a"}, safe)})
    assert said.startswith("what node0 kept is no whole archive of gpuops: safe.json is none of ours")
    assert (brought, files) == ({}, {})


def test_a_disk_that_is_too_small_for_all_gets_those_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest first; which are left, where, and how they come home later is one sentence."""
    kept = {node: packed({f"out/{node}.pt": b"x" * size}) for node, size in enumerate([900_000, 10, 300_000, 500_000])}
    free = archive.DISK_RESERVE_BYTES + 400_000
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    brought, errors, files = bring(tmp_path, monkeypatch, kept)
    assert sorted(brought) == [1, 2]
    assert sorted(files) == ["out/1.pt", "out/2.pt"]
    room = "17.2 MB are free on this computer's disk"
    assert errors == [f"what node0 (911.4 kB) and node3 (512.0 kB) kept stays in s3://results/r-1: {room}"]
    assert (kept[0].position, kept[3].position) == (0, 0), "nothing of them was fetched in vain"


def test_a_disk_that_fills_meanwhile_keeps_what_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's bytes, or a quota that nobody tells: what came of the one in hand goes."""
    kept = {node: packed({f"out/{node}.pt": b"x" * size}) for node, size in enumerate([10, 300_000, 500_000])}

    def filled(source: Any, node: int, folder: Any, told: Any) -> Any:
        assert not [name for name in folder.names() if name.startswith("3-")], "what is of no use takes no room"
        found = unpack(source, node, folder, told)
        if node == 1:
            raise LocalDisk("this computer's disk is full", "free space") from OSError(errno.ENOSPC, "full")
        return found

    monkeypatch.setattr("gpuops.sync.archive.unpack", filled)
    bad = packed({"out/b.pt": b"b"}, json.dumps({"files": [["out/b.pt", 1, "0" * 64, 0]]}))
    brought, errors, files = bring(tmp_path, monkeypatch, {**kept, 3: bad})
    assert (sorted(brought), sorted(files)) == ([0], ["out/0.pt"])
    assert errors[0].startswith("what node1 (307.2 kB) and node2 (512.0 kB) kept stays in s3://results/r-1: ")
    assert errors[1:] == ["what node3 kept could not be verified: out/b.pt"]


def test_a_second_signal_ends_the_wait_for_what_is_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Signals, "hurry", True)
    brought, errors, files = bring(tmp_path, monkeypatch, {0: packed({"out/a.pt": b"a"})})
    assert (brought, errors, files) == ({}, ["what node0 kept was not waited for any longer"], {})


def test_a_folder_where_a_log_belongs_is_this_computers_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "r-1" / "logs").mkdir(parents=True)
    (tmp_path / "runs" / "r-1" / "logs" / "node0").write_text("somebody's")
    with pytest.raises(LocalDisk, match="cannot write to"):
        bring(tmp_path, monkeypatch, {0: packed({"logs/launcher.out": b"line"})})
