"""gpuops' own folder: made for one user alone, with one mark for all that this user rents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.core.home import can_write, home, owner


def test_home_is_made_for_this_user_alone(tmp_path: Path) -> None:
    assert home({"HOME": str(tmp_path)}) == tmp_path / ".gpuops"
    assert (tmp_path / ".gpuops").stat().st_mode & 0o777 == 0o700
    chosen = tmp_path / "deep" / "er"
    assert home({"HOME": str(tmp_path), "GPUOPS_HOME": str(chosen)}) == chosen
    assert chosen.is_dir()


def test_who_only_looks_makes_neither_home_nor_owner(tmp_path: Path) -> None:
    path = home({"HOME": str(tmp_path)}, make=False)
    assert (path, owner(path, make=False), can_write(path)) == (tmp_path / ".gpuops", "", False)
    assert list(tmp_path.iterdir()) == []
    made = home({"HOME": str(tmp_path)})
    assert owner(made, make=False) == ""
    assert owner(made) == owner(made, make=False) != ""
    assert can_write(made)


def test_a_home_that_cannot_be_seen_is_no_new_one(tmp_path: Path) -> None:
    """What is up may be noted there."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=r"gpuops cannot look into its folder .*/loop/\.gpuops: Too many levels"):
        home({"HOME": str(tmp_path / "loop")}, make=False)


def test_a_home_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for given, say in (
        ("some/folder", "GPUOPS_HOME is 'some/folder', which is not an absolute path"),
        (str(tmp_path / "file"), "gpuops cannot make its folder DIR/file: File exists"),
        (str(tmp_path / "file" / "x"), "gpuops cannot make its folder DIR/file/x: Not a directory"),
    ):
        with pytest.raises(UsageError) as caught:
            home({"GPUOPS_HOME": given})
        assert caught.value.message.replace(str(tmp_path), "DIR") == say


def test_the_owner_is_chosen_once(tmp_path: Path) -> None:
    first = owner(tmp_path)
    assert re.fullmatch("[0-9a-f]{8}", first)
    assert owner(tmp_path, lambda: "00000000") == first
    assert [path.name for path in tmp_path.iterdir()] == ["owner"]


def test_a_damaged_owner_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "owner").write_text("garbage\n")
    with pytest.raises(UsageError, match="is damaged"):
        owner(tmp_path)
    assert (tmp_path / "owner").read_text() == "garbage\n"
