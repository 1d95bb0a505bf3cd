"""An archive that is nowhere: read in any pieces it is one archive, whatever its files are called and become."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.agent.result_storage.stored_files import newest_first
from gpuops.agent.result_storage.streamed_archive import (
    BLOCK_BYTES,
    END_OF_ARCHIVE,
    Archive,
    Item,
    is_unchanged,
    member_bytes,
    part_boundaries,
)

NAMES = st.lists(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0/"), min_size=1, max_size=140).filter(
        lambda name: name not in (".", "..")
    ),
    max_size=5,
    unique=True,
)
SIZES = st.sampled_from([0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3000])


def item(folder: Path, number: int, name: str, content: bytes) -> Item:
    path = folder / str(number)
    path.write_bytes(content)
    return Item(os.fsencode(path), name, len(content), path.stat().st_mtime_ns)


def read(archive: Archive, start: int, stop: int) -> bytes:
    return b"".join(block for _, _, block in archive.read(start, stop))


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


@settings(max_examples=150, deadline=None)
@given(NAMES, st.lists(SIZES, min_size=5, max_size=5), st.lists(st.floats(0, 1), max_size=6))
def test_read_in_any_pieces_it_is_one_archive(names: list[str], sizes: list[int], where: list[float]) -> None:
    with tempfile.TemporaryDirectory() as text:
        made = {f"out/{name}": os.urandom(size) for name, size in zip(names, sizes, strict=False)}
        archive = Archive([item(Path(text), at, name, made[name]) for at, name in enumerate(made)])
        marks = sorted({0, archive.size, *(int(part * archive.size) for part in where)})
        data = b"".join(read(archive, start, stop) for start, stop in pairwise(marks))
        assert len(data) == archive.size
        assert members(data + END_OF_ARCHIVE) == made
        for number, end in enumerate(archive.ends):
            assert len(members(read(archive, 0, end))) == number + 1, "cut between members it is one as well"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"out/\xff\xfe.pt")
    archive = Archive([item(tmp_path, 0, name, b"x"), item(tmp_path, 1, "out/" + "d/" * 200 + "ü", b"y")])
    assert members(read(archive, 0, archive.size) + member_bytes("safe.json", b"{}", 0) + END_OF_ARCHIVE) == {
        name: b"x", "out/" + "d/" * 200 + "ü": b"y", "safe.json": b"{}"
    }  # fmt: skip


def test_a_file_that_changes_keeps_its_length(tmp_path: Path) -> None:
    items = [item(tmp_path, number, f"out/{number}", b"abc" * 1000) for number in range(4)]
    archive = Archive(items)
    for number, action in enumerate([lambda p: p.write_bytes(b"longer" * 1000), lambda p: p.write_bytes(b"short"),
                                     Path.unlink, lambda p: (p.unlink(), os.mkfifo(p))]):  # fmt: skip
        action(tmp_path / str(number))  # type: ignore[operator]
    found = members(read(archive, 0, archive.size) + END_OF_ARCHIVE)
    assert found == {
        "out/0": (b"longer" * 1000)[:3000],
        "out/1": b"short" + bytes(2995),
        "out/2": bytes(3000),
        "out/3": bytes(3000),
    }
    assert not any(map(is_unchanged, items))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=60), st.integers(3, 40), st.integers(1, 100))
def test_parts_are_few_long_enough_and_end_with_members(lengths: list[int], parts: int, least: int) -> None:
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    found = part_boundaries(ends, parts, least)
    pieces = [stop - start for start, stop in pairwise([0, *found])]
    total = ends[-1] if ends else 0
    target = max(least, -(-total // (parts - 1)))
    assert len(found) <= parts
    assert all(least <= piece < 2 * target + max(1, target) for piece in pieces)
    assert total - (found[-1] if found else 0) < least, "what is left fits into the last part"
    between = [0, *(cut for cut in found if cut in ends)]
    for end in ends:
        assert end - max(cut for cut in between if cut <= end) < target, "never long until the next end of a member"


def test_what_says_most_comes_first() -> None:
    names = [("logs/a", 5, 9), ("out/old", 1, 1), ("logs/huge", 1 << 40, 9), ("result.json", 1, 9), ("out/new", 1, 5)]
    found = newest_first([Item(b"", name, size, mtime_ns) for name, size, mtime_ns in names])
    assert [one.name for one in found] == ["result.json", "out/new", "logs/a", "out/old", "logs/huge"]
