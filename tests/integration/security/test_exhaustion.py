"""A node fills neither the memory nor the disk of this computer: over a real cluster whose agent lies, and by the
reader of its streams with headers of any kind. What else there is still comes home."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.agent.result_storage.streamed_archive import END_OF_ARCHIVE, member_header
from gpuops.core.safe_folder import DISK_RESERVE_BYTES
from gpuops.sync import archive
from gpuops.sync.download_plan import split_by_room
from gpuops.transport.tar_reader import MAX_FILES, MAX_HEADER_BYTES, TarError, members
from tests.conftest import Shell
from tests.integration.security.hostile import a_file, tar_of
from tests.unit.sync.test_archive import Kept, bring, packed

LIES = """
import io, os, sys, tarfile
def answer(node, verb, args, message):
    if node == 1 and verb == "outs" and "ok" in message:
        message["ok"]["files"] += {rows!r}
    return message
def bulk(node, mode, arguments, stdin):
    if node != 1 or mode != "send" or "--run" not in arguments:
        return None
{bulk}
"""
JOB = "import os\nopen('made.pt', 'w').write('by ' + os.environ['GPUOPS_NODE'])\n"


def run(shell: Shell, lie: Callable[[str], None], rows: list[Any], bulk: str) -> str:
    """A run on two nodes, of which node1 lies; what was said. The honest one's result is home."""
    lie(LIES.format(rows=rows, bulk="".join(f"    {line}\n" for line in bulk.splitlines())))
    shell.write("job.py", JOB)
    assert shell.run("up", "local", "--name", "lab", "--nodes", "2").returncode == 0
    done = shell.run("run", "--all-nodes", "--", "python3", "job.py")
    assert "Traceback" not in done.stderr
    (out,) = shell.folder.glob("runs/*/out")
    assert (out / "made.pt").read_text() == "by 0"
    assert sum(path.stat().st_blocks * 512 for path in out.rglob("*")) < 1_000_000
    return done.stderr


def test_a_sparse_file_is_refused_and_the_others_results_come_home(shell: Shell, lie: Callable[[str], None]) -> None:
    """3 KB on the wire that Python's tarfile makes 2 GB of."""
    said = run(
        shell,
        lie,
        [["big.pt", 2 << 30, 1]],
        """
member = tarfile.TarInfo("big.pt")
member.size = 512
member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "big.pt",
                      "GNU.sparse.realsize": str(2 << 30)}
return member.tobuf(tarfile.PAX_FORMAT) + b"0\\n".ljust(512, b"\\0") + bytes(10240)
""",
    )
    assert "node1 answers nonsense (a header of it has 'GNU.sparse.major'" in said


def test_a_header_without_end_is_refused(shell: Shell, lie: Callable[[str], None]) -> None:
    said = run(
        shell,
        lie,
        [["big.pt", 1, 1]],
        """
member = tarfile.TarInfo("x")
member.type, member.size = b"x", 300_000_000
return member.tobuf(tarfile.USTAR_FORMAT) + bytes(100_000)
""",
    )
    assert "node1 answers nonsense (a header of it has 300,000,000 bytes" in said


def test_what_finds_no_room_is_said_and_the_rest_comes_home(shell: Shell, lie: Callable[[str], None]) -> None:
    said = run(shell, lie, [[f"big{index}.pt", 1 << 60, 1] for index in range(3)], "return None\n")
    assert "this computer's disk has no room for 3 files of python3-1" in said or "no room for 3 files" in said
    assert (next(shell.folder.glob("runs/*/out")) / "node1" / "made.pt").read_text() == "by 1"


# --- the reader ----------------------------------------------------------------------------------


class Counting(io.BytesIO):
    """How much was read at once, at most."""

    most = 0

    def read(self, count: int | None = -1, /) -> bytes:
        assert count is not None
        assert count >= 0, "never to the end"
        self.most = max(self.most, count)
        return super().read(count)


def read_all(data: bytes) -> list[tuple[str, int, str | None]]:
    found = []
    source = Counting(data)
    for member, content in members(source):
        size = 0
        while block := content.read(1 << 16):
            size += len(block)
        assert size == member.size
        found.append((member.name, size, member.link))
    assert source.most <= 1 << 20
    return found


NAMES = ["a.pt", "dir/" * 60 + "x", "é" * 90, "raw\udcff", "x" * 255, "new\nline", "q'\"\\", "d" * 99 + "/" + "f" * 150]


def test_what_our_agent_writes_is_read_as_it_was() -> None:
    """Both of its writers, with names of every kind, sizes over 8 GiB in the header, and times before 1970."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|", bufsize=1 << 18, format=tarfile.PAX_FORMAT, encoding="utf-8",
                      errors="surrogateescape") as tar:  # fmt: skip
        for number, name in enumerate(NAMES):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = number * 300, -number
            tar.addfile(member, io.BytesIO(bytes(member.size)))
        link = tarfile.TarInfo("latest" * 30)
        link.type, link.linkname = tarfile.SYMTYPE, "é/" * 90
        tar.addfile(link)
    expected: list[tuple[str, int, str | None]] = [(name, number * 300, None) for number, name in enumerate(NAMES)]
    assert read_all(buffer.getvalue()) == [*expected, ("latest" * 30, 0, "é/" * 90)]
    virtual = b"".join(member_header(name, 3, 1) + b"abc" + bytes(509) for name in NAMES) + END_OF_ARCHIVE
    assert read_all(virtual) == [(name, 3, None) for name in NAMES]
    huge, _ = next(members(io.BytesIO(member_header("huge", 1 << 50, 1))))
    assert huge.size == 1 << 50


def special(kind: bytes, **fields: Any) -> bytes:
    member = tarfile.TarInfo("a.pt")
    member.type = kind
    for name, value in fields.items():
        setattr(member, name, value)
    return member.tobuf(tarfile.GNU_FORMAT)


def extended(records: bytes, size: int | None = None) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = b"x", len(records) if size is None else size
    return member.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)


PLAIN = tar_of([a_file("a.pt", b"abc")])
STRANGE = {
    "sparse of GNU": special(b"S", size=512) + bytes(2048),
    "long name of GNU": special(b"L", size=1 << 33),
    "long link of GNU": special(b"K", size=1 << 33),
    "global header": special(b"g", size=1 << 33),
    "folder": special(b"5"),
    "hard link": special(b"1", linkname="/etc/passwd"),
    "device": special(b"3"),
    "pipe": special(b"6"),
    "a size in base 256": special(b"0", size=1 << 40),
    "a negative size": extended(b"12 size=-99\n") + PLAIN,
    "a size of letters": extended(b"12 size=abc\n") + PLAIN,
    "a size of many digits": extended(b"40 size=" + b"9" * 31 + b"\n") + PLAIN,
    "a header that is too long": extended(b"", MAX_HEADER_BYTES + 1),
    "two extended headers": extended(b"12 path=abc\n") + extended(b"12 path=abc\n") + PLAIN,
    "a record that is too long": extended(b"99999 path=x\n") + PLAIN,
    "a record without a length": extended(b"path=x\n") + PLAIN,
    "a record of no length": extended(b"0 path=x\n") + PLAIN,
    "a key of GNU's": extended(b"22 GNU.sparse.major=1\n") + PLAIN,
    "a link with bytes": special(b"2", linkname="x", size=512),
    "what goes on after its end": PLAIN + b"x",
    "zeros without end": PLAIN + bytes(3 << 20),
    "nothing": b"",
    "words": b"Welcome to this host!\n" * 100,
    "half a header": PLAIN[:300],
    "half a file": tar_of([a_file("a.pt", bytes(5000))])[:2000],
    "no end": PLAIN[:1024],
}


def test_streams_that_are_none_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    for what, data in STRANGE.items():
        with pytest.raises(TarError):
            pytest.fail(f"{what}: {read_all(data)}")
    with capsys.disabled():
        print(f"\n{len(STRANGE)} kinds of hostile members refused")


def test_any_change_of_a_stream_is_a_stream_or_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes turned, cut out, put in; headers whose checksum is right again. Nothing but TarError, in little memory."""
    whole = tar_of([a_file("a.pt", b"abc"), a_file("é" * 90, bytes(700)), a_file("dir/" * 60 + "b", b"x" * 600)])
    counts = {"tried": 0, "refused": 0}

    def check(flips: list[tuple[int, bytes]], cut: int, mended: bool) -> None:
        data = bytearray(whole)
        for at, put in flips:
            data[at % len(data) : at % len(data) + len(put)] = put
        if mended:
            for at in range(0, len(data) - 512, 512):
                if data[at + 257 : at + 262] == b"ustar":
                    data[at + 148 : at + 156] = b" " * 8
                    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
        counts["tried"] += 1
        _only_tar_errors(bytes(data[: len(data) - cut]), counts)

    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    flips = st.lists(st.tuples(st.integers(0, 4096), st.binary(min_size=1, max_size=12)), max_size=4)
    given(flips=flips, cut=st.just(0) | st.integers(0, 3000), mended=st.booleans())(
        settings(max_examples=500, derandomize=True, deadline=None, database=None, suppress_health_check=quiet)(check)
    )()
    given(st.binary(max_size=2000))(settings(max_examples=200, derandomize=True, deadline=None, database=None)(
        lambda data: _only_tar_errors(data, counts)))()  # fmt: skip
    assert counts["refused"] > 300
    with capsys.disabled():
        print(f"\n{counts['tried']} streams with changed headers, {counts['refused']} refused")


def _only_tar_errors(data: bytes, counts: dict[str, int]) -> None:
    counts["tried"] += 1
    try:
        read_all(data)
    except TarError:
        counts["refused"] += 1


def test_a_header_takes_no_memory() -> None:
    """It is refused by its announcement: not a byte of it is read."""
    source = Counting(extended(bytes(1 << 20), 300_000_000))
    with pytest.raises(TarError, match="a header of it has 300,000,000 bytes"):
        list(members(source))
    assert source.tell() == 512


def test_files_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.transport.tar_reader.MAX_FILES", 3)
    with pytest.raises(TarError, match="it has more than 3 files"):
        read_all(tar_of([a_file(f"{index}", b"") for index in range(4)]))
    assert MAX_FILES >= 500_000


# --- archives of a bucket ------------------------------------------------------------------------


@pytest.mark.parametrize("what", sorted(STRANGE))
def test_an_archive_that_is_none_keeps_no_others_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    good = packed({"out/a.pt": b"a"})
    brought, [said], files = bring(tmp_path, monkeypatch, {1: Kept(STRANGE[what]), 0: good})
    assert said.startswith("what node1 kept is no whole archive of gpuops: ")
    assert sorted(brought) == [0]
    assert files == {"out/a.pt": "a"}


def test_a_document_of_any_length_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.sync.archive.MAX_DOCUMENT_BYTES", 100)
    _, [said], _ = bring(tmp_path, monkeypatch, {0: packed({}, safe=json.dumps({"files": [], "more": "x" * 200}))})
    assert said.startswith("what node0 kept is no whole archive of gpuops: a document of it has ")


def test_a_member_larger_than_the_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive's own size fitted; a member of it announces more than is there."""
    lying = Kept(member_header("out/a.pt", 1 << 60, 1) + bytes(10_000))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=DISK_RESERVE_BYTES + 1_000_000))
    _, [said], files = bring(tmp_path, monkeypatch, {0: lying})
    assert said.startswith("what node0 (")
    assert files == {}
    assert archive.DISK_RESERVE_BYTES == DISK_RESERVE_BYTES


# --- who comes first where the disk is too small -------------------------------------------------


def test_who_offers_too_much_comes_last() -> None:
    todo = {"a": {0: (10, 1), 1: (1 << 60, 1)}, "b": {1: (5, 1)}, "c": {0: (10, 1)}}
    assert split_by_room(todo, 1 << 61) == [todo]
    honest, liar = split_by_room(todo, 100)
    assert (honest, liar) == ({"a": {0: (10, 1)}, "c": {0: (10, 1)}}, {"a": {1: (1 << 60, 1)}, "b": {1: (5, 1)}})
