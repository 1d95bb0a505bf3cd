"""Which keys the guard has, and when another must take over."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops import guardkeys

A, B = {"RUNPOD_API_KEY": "rpa_" + "A" * 40}, {"RUNPOD_API_KEY": "rpa_" + "B" * 40}
AWS = {"AWS_ACCESS_KEY_ID": "AKIAQ", "AWS_SECRET_ACCESS_KEY": "s3cret/of+somebody"}


def test_no_key_is_written_down(tmp_path: Path) -> None:
    guardkeys.note(tmp_path, {**A, **AWS, "PATH": "/bin", "AWS_SESSION_TOKEN": ""})
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert not [value for value in (*A.values(), *AWS.values()) if value in text]
    assert "SESSION" not in text
    assert [path.name for path in tmp_path.iterdir()] == [guardkeys.FILE]


@pytest.mark.parametrize(
    ("theirs", "environ", "used", "unfit"),
    [
        ({}, {}, None, False),
        (A, {}, None, False),
        ({}, A, None, True),
        (A, A, None, False),
        (A, B, None, False),  # it has one: that of whoever rented last
        (A, {**A, **AWS}, None, True),
        (A, A, A, False),
        (A, B, B, True),
        ({}, A, A, True),
        ({}, {}, A, False),  # the key is in the project's `.env`, which the guard reads
        (B, {}, A, True),  # but for the one that it has in its environment
        (A, {}, {}, False),
    ],
)
def test_when_another_takes_over(
    tmp_path: Path, theirs: dict[str, str], environ: dict[str, str], used: dict[str, str] | None, unfit: bool
) -> None:
    guardkeys.note(tmp_path, theirs)
    assert guardkeys.unfit(tmp_path, environ, used) is unfit


@pytest.mark.parametrize("text", [None, "", "{", "[1]"])
def test_a_guard_of_which_nothing_is_known(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / guardkeys.FILE).write_text(text)
    assert guardkeys.unfit(tmp_path, A)
    assert not guardkeys.unfit(tmp_path, {})


def test_who_takes_over_is_not_asked_to_leave(tmp_path: Path) -> None:
    guardkeys.ask_relief(tmp_path)
    assert guardkeys.relieved(tmp_path)
    guardkeys.note(tmp_path, A)
    assert not guardkeys.relieved(tmp_path)


def test_a_disk_that_cannot_be_written_stops_no_guard(tmp_path: Path) -> None:
    guardkeys.note(tmp_path / "no" / "folder", A)
    guardkeys.ask_relief(tmp_path / "no" / "folder")
