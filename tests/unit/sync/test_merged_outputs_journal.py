"""What is home, in a file that only grows: read on, cut off anywhere, rewritten, taken over from earlier versions."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import LocalDisk
from gpuops.core.safe_folder import SafeFolder
from gpuops.sync import merged_outputs, merged_outputs_journal
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_journal import DOCUMENT_FILE, JOURNAL_FILE
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.run_folder import RunHome


@pytest.fixture
def home(tmp_path: Path) -> RunHome:
    one = RunHome(tmp_path / "runs" / "r-1")
    one.create()
    return one


def publish(out: OutFolder, *paths: str, version: int = 1, node: int = 0) -> list[str]:
    with out.staging() as staging:
        arrivals = []
        for number, path in enumerate(paths):
            data = f"{path} {version}".encode()
            sha256 = staging.create(f"{number}", io.BytesIO(data), len(data), mtime_ns=version)
            arrivals.append(Arrival(node, path, (len(data), version), sha256, f"{number}"))
        return out.publish(arrivals, staging)


def lines(home: RunHome) -> list[Any]:
    return [json.loads(line) for line in (home.out / JOURNAL_FILE).read_bytes().splitlines()]


def test_each_file_is_written_down_twice_however_many_are_home(home: RunHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the record at each publication took minutes for some thousand files."""
    written = 0
    real_write, real_append = SafeFolder.write, SafeFolder.append

    def write(self: SafeFolder, path: str, content: io.BytesIO, *args: Any, **more: Any) -> None:
        nonlocal written
        written += len(content.getvalue())
        real_write(self, path, content, *args, **more)

    def append(self: SafeFolder, path: str, data: bytes) -> int:
        nonlocal written
        written += len(data)
        return real_append(self, path, data)

    monkeypatch.setattr(SafeFolder, "write", write)
    monkeypatch.setattr(SafeFolder, "append", append)
    out = OutFolder(home)
    for batch in range(40):
        publish(out, *(f"outputs/{batch}-{number}" for number in range(5)))
    line = max(map(len, (home.out / JOURNAL_FILE).read_bytes().splitlines()))
    assert written <= 2 * 200 * (line + 1) + 100
    assert len(out.memory().held) == 200


def test_a_reader_reads_on_what_another_process_has_added(home: RunHome, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = OutFolder(home), OutFolder(home)
    publish(ours, "a", "b")
    assert theirs.memory() == ours.memory()
    publish(theirs, "c")
    publish(ours, "a", version=2)
    publish(ours, "a", node=1)
    publish(theirs, "a", version=3)
    assert theirs.memory() == ours.memory() == OutFolder(home).memory()
    known, parsed = ours.memory(), list[str]()
    monkeypatch.setattr(
        merged_outputs_journal.json,
        "loads",
        lambda line: parsed.append(line) or json.JSONDecoder().decode(line.decode()),
    )
    publish(theirs, "d")
    parsed.clear()
    assert ours.memory() is known
    assert len(parsed) == 1 + 2, "the first line, and those that are new"


def test_a_line_that_was_cut_off_anywhere_was_not_written(home: RunHome) -> None:
    journal = home.out / JOURNAL_FILE
    publish(OutFolder(home), "a")
    before, size = OutFolder(home).memory(), journal.stat().st_size
    watching = OutFolder(home)
    publish(OutFolder(home), "b")
    whole = journal.read_bytes()
    one = whole.index(b"\n", size) + 1
    for cut in range(size, one):
        (home.out / "b").unlink(missing_ok=True)
        journal.write_bytes(whole[:cut])
        assert OutFolder(home).memory() == watching.memory() == before
        assert publish(watching, "c", version=2) == [], "behind the rest of that line"
        assert OutFolder(home).memory() == watching.memory()
        assert watching.memory().held.keys() == {"a", "c"}
        assert publish(OutFolder(home), "b") == []
        (home.out / "c").unlink()


def test_a_crash_behind_a_line_that_was_cut_off_makes_no_file_a_persons(
    home: RunHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is about to be renamed into place is on a line of its own, whatever the crash before has left."""
    journal = home.out / JOURNAL_FILE
    publish(OutFolder(home), "a")
    size = journal.stat().st_size
    publish(OutFolder(home), "b")
    journal.write_bytes(journal.read_bytes()[: size + 5])
    (home.out / "b").unlink()
    with monkeypatch.context() as killed:
        killed.setattr(merged_outputs, "record_moved", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            publish(OutFolder(home), "c")
    assert publish(OutFolder(home), "c", version=2) == []


def test_many_versions_take_no_more_room_than_one(home: RunHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is written again and again; who reads it meanwhile goes on with the new journal."""
    monkeypatch.setattr(merged_outputs_journal, "LINES_MIN", 20)
    out, watching = OutFolder(home), OutFolder(home)
    journals = set()
    for version in range(1, 60):
        assert publish(out, "snapshot.pt", version=version) == []
        assert watching.memory() == out.memory()
        assert len(lines(home)) <= 1 + 3 + 20
        journals.add(lines(home)[0]["journal"])
    assert len(journals) > 2


def test_what_an_earlier_version_wrote_is_taken_over(home: RunHome) -> None:
    publish(OutFolder(home), "a", "b")
    memory = OutFolder(home).memory()
    document = {
        "schema": 1,
        "held": {path: memory.describe(path)["held"] for path in memory.paths()},
        "written": {place: [one.path, one.sha256, one.stamps] for place, one in memory.written.items()},
    }
    (home.out / JOURNAL_FILE).unlink()
    (home.out / DOCUMENT_FILE).write_text(json.dumps(document))
    out = OutFolder(home)
    assert out.memory() == memory
    assert publish(out, "a", version=2) == [], "it is no person's"
    assert not (home.out / DOCUMENT_FILE).exists()
    assert OutFolder(home).memory().held.keys() == {"a", "b"}


def test_what_a_full_disk_did_not_take_is_not_known(home: RunHome, monkeypatch: pytest.MonkeyPatch) -> None:
    out = OutFolder(home)
    publish(out, "a")

    def full(self: SafeFolder, path: str, data: bytes) -> int:
        (self.path / path).open("ab").write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", path)

    with monkeypatch.context() as disk:
        disk.setattr(SafeFolder, "append", full)
        with pytest.raises(LocalDisk, match="disk is full"):
            publish(out, "a", version=2)
    assert out.memory() == OutFolder(home).memory()
    assert publish(out, "a", version=2) == []
    assert (home.out / "a").read_text() == "a 2"


@pytest.mark.parametrize("name", [JOURNAL_FILE, DOCUMENT_FILE, f"{JOURNAL_FILE}/x"])
def test_no_file_of_a_run_takes_its_place(home: RunHome, name: str) -> None:
    out = OutFolder(home)
    publish(out, name, "a")
    assert OutFolder(home).memory().held.keys() == {name, "a"}
    assert [path.read_text() for path in home.out.rglob("*") if path.is_file() and path.name != JOURNAL_FILE][:1]
