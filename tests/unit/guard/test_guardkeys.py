"""Which keys the guard has, and when another must take over."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.core.errors import AuthFailed
from gpuops.guard import guardkeys

A, B = {"RUNPOD_API_KEY": "rpa_" + "A" * 40}, {"RUNPOD_API_KEY": "rpa_" + "B" * 40}
AWS = {"AWS_ACCESS_KEY_ID": "AKIAQ", "AWS_SECRET_ACCESS_KEY": "s3cret/of+somebody"}


def test_no_key_is_written_down(tmp_path: Path) -> None:
    guardkeys.note(tmp_path, {**A, **AWS, "PATH": "/bin", "AWS_SESSION_TOKEN": ""})
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert not [value for value in (*A.values(), *AWS.values()) if value in text]
    assert "SESSION" not in text
    assert [path.name for path in tmp_path.iterdir()] == [guardkeys.FILE]


@pytest.mark.parametrize(
    ("theirs", "environ", "provider", "unfit"),
    [
        ({}, {}, None, False),
        (A, {}, None, False),
        ({}, A, None, True),
        (A, A, None, False),
        (A, B, None, False),  # it has one: that of whoever rented last
        (A, {**A, **AWS}, None, True),
        (A, A, "runpod", False),
        (A, B, "runpod", True),
        ({}, A, "runpod", True),
        ({}, {}, "runpod", False),  # a key in a file, the provider's own or the project's, the guard reads itself
        (B, {}, "runpod", True),  # but would use the one that it has in its environment
        (A, {}, "aws", False),
    ],
)
def test_when_another_takes_over(
    tmp_path: Path, theirs: dict[str, str], environ: dict[str, str], provider: str | None, unfit: bool
) -> None:
    guardkeys.note(tmp_path, theirs)
    assert guardkeys.unfit(tmp_path, environ, provider) is unfit


@pytest.mark.parametrize("text", [None, "", "{", "[1]"])
def test_a_guard_of_which_nothing_is_known(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / guardkeys.FILE).write_text(text)
    assert guardkeys.unfit(tmp_path, A)
    assert not guardkeys.unfit(tmp_path, {})


def test_who_takes_over_is_not_asked_to_leave(tmp_path: Path) -> None:
    guardkeys.ask_relief(tmp_path)
    guardkeys.wait_for_relief(tmp_path)
    assert guardkeys.relieved(tmp_path)
    guardkeys.note(tmp_path, A)
    assert not guardkeys.relieved(tmp_path)
    assert not guardkeys.relief_asked(tmp_path)


def test_a_disk_that_cannot_be_written_stops_no_guard(tmp_path: Path) -> None:
    guardkeys.note(tmp_path / "no" / "folder", A)
    guardkeys.ask_relief(tmp_path / "no" / "folder")
    guardkeys.wait_for_relief(tmp_path / "no" / "folder")


PROFILE = {"AWS_PROFILE": "work", "AWS_CONFIG_FILE": "/somewhere/config"}


@pytest.mark.parametrize(
    ("theirs", "environ", "provider", "unfit"),
    [
        ({**AWS, "AWS_REGION": "eu-west-1"}, AWS, "aws", True),  # as it was at renting: without that region
        (PROFILE, PROFILE, "aws", False),
        (PROFILE, {}, "aws", True),  # the default profile is another account than the guard's
        (AWS, PROFILE, "aws", True),
        (PROFILE, {}, None, False),  # nothing is rented: whoever has a profile keeps it
        ({}, {"AWS_REGION": "eu-west-1"}, None, False),  # where, but not who
        ({}, PROFILE, None, True),
        ({**AWS, **A}, AWS, "aws", False),  # another provider's key is nobody's business here
    ],
)
def test_one_account_is_never_mixed_with_another(
    tmp_path: Path, theirs: dict[str, str], environ: dict[str, str], provider: str | None, unfit: bool
) -> None:
    guardkeys.note(tmp_path, theirs)
    assert guardkeys.unfit(tmp_path, environ, provider) is unfit


def test_who_takes_over_keeps_the_other_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole accounts, from the environment of the guard that is there (here: this process)."""
    former = {**AWS, **PROFILE, "AWS_REGION": "eu-west-1", "OTHER": "x"}
    guardkeys.note(tmp_path, former)
    monkeypatch.setattr("psutil.Process.environ", lambda _: former)
    mine = {**A, "AWS_REGION": "us-east-1", "PATH": "/bin"}
    joined = {**AWS, **PROFILE, "AWS_REGION": "eu-west-1", **A, "PATH": "/bin"}
    assert guardkeys.joined(tmp_path, mine, "runpod") == joined, "its region goes with its keys"
    assert guardkeys.joined(tmp_path, mine, "aws") == mine, "what is rented there now has this command's account"
    theirs = {**mine, "AWS_PROFILE": "other"}
    assert guardkeys.joined(tmp_path, theirs, "runpod") == theirs, "one account from one place"
    monkeypatch.setattr("psutil.Process.environ", lambda _: {})
    assert guardkeys.joined(tmp_path, mine) == mine


def test_keys_that_are_refused(tmp_path: Path) -> None:
    """Expired ones, most often: said until the guard has others, which any command may bring."""
    old, new = {**AWS, "AWS_SESSION_TOKEN": "old"}, {**AWS, "AWS_SESSION_TOKEN": "new"}
    guardkeys.note(tmp_path, old)
    assert not guardkeys.unfit(tmp_path, new), "there is no need"
    guardkeys.refuse(tmp_path, "aws", AuthFailed("the session token has expired", "aws sso login"))
    assert guardkeys.refused(tmp_path) == {"aws": {"say": "the session token has expired", "hint": "aws sso login"}}
    assert not guardkeys.unfit(tmp_path, old), "the same would be refused again"
    assert not guardkeys.unfit(tmp_path, {})
    assert guardkeys.unfit(tmp_path, new)
    guardkeys.refuse(tmp_path, "aws", None)
    assert guardkeys.refused(tmp_path) == {}
    guardkeys.refuse(tmp_path, "aws", AuthFailed("no", "yes"))
    guardkeys.note(tmp_path, new)
    assert guardkeys.refused(tmp_path) == {}, "a new guard, new keys"
