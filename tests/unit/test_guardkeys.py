"""Which keys the guard has, and when another must take over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, NodeError, StillBilling
from gpuops.core.models import Lease
from gpuops.core.signals import Signals
from gpuops.guard import daemon, guardkeys
from gpuops.guard import tend as keep
from gpuops.guard.services import SERVICES
from gpuops.ledger.store import ClusterRow
from tests.conftest import until

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


def test_a_guard_stays_until_somebody_waits_to_take_over(tmp_path: Path) -> None:
    """The command that asks for it may be killed before there is one, and that one before it is the guard."""
    waits = "import sys, pathlib; from gpuops.guard import guardkeys as k; k.wait_for_relief(pathlib.Path(sys.argv[1]))"
    guardkeys.ask_relief(tmp_path)
    assert not guardkeys.relieved(tmp_path)
    argv = [sys.executable, "-c", f"{waits}; print(flush=True); input()", tmp_path]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as successor:
        assert successor.stdout
        assert successor.stdout.readline()
        assert guardkeys.relieved(tmp_path)
        guardkeys.note(tmp_path, A)
        assert guardkeys.relieved(tmp_path), "who has only just become the guard is relieved as well"
        successor.kill()
        successor.wait(60)
        assert not guardkeys.relieved(tmp_path)
    assert guardkeys.relief_asked(tmp_path)


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


@pytest.mark.parametrize("alike", [True, False])
def test_of_two_that_begin_at_once_one_has_all_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    """Two commands, each of which found no guard; the one that waits in vain takes over where the other lacks keys."""
    theirs = {**AWS, **A} if alike else AWS
    monkeypatch.setattr("psutil.Process.environ", lambda _: theirs)
    monkeypatch.setattr(os, "environ", dict(A))
    there, over = threading.Event(), threading.Event()

    def first() -> None:
        with FileLock(tmp_path / daemon.LOCK):
            guardkeys.note(tmp_path, theirs)
            there.set()
            until(lambda: guardkeys.relieved(tmp_path) or over.is_set(), "its relief")

    other = threading.Thread(target=first, daemon=True)
    other.start()
    assert there.wait(60)
    lock = FileLock(tmp_path / daemon.LOCK, timeout=0.1)
    assert daemon._is_ours(lock, tmp_path) is not alike
    assert os.environ == (A if alike else {**AWS, **A})
    over.set()
    other.join(60)
    lock.release()


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


def test_a_guard_whose_keys_expired_says_so_and_unsays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it shows as what may still be there: then the refusal is behind it."""
    expired = AuthFailed("the session token has expired", "aws sso login")
    ends: list[BaseException | None] = []

    def tend(*_: object, **__: object) -> None:
        if (error := ends.pop(0)) is not None:
            raise StillBilling("lab-0 may still be there", "gpuops down lab") from error

    monkeypatch.setattr(keep, "tend", tend)
    monkeypatch.setattr(daemon, "pause", lambda _: 0.0)
    monkeypatch.setattr(
        daemon,
        "_context",
        lambda *_: Context(
            home=tmp_path, owner="", folder=tmp_path, env={}, out=Output(), signals=Signals(), services=SERVICES
        ),
    )
    row = ClusterRow(1, "lab", "aws", tmp_path, "up", False, "t", {}, {}, 0.0, Lease(), None, 0.0, None, None, "")
    for error, told in ((expired, "aws"), (NodeError("away"), "aws"), (None, "")):
        ends.append(error)
        daemon._Tending(tmp_path, row, 0, saving=True).run()
        assert [*guardkeys.refused(tmp_path)] == ([told] if told else [])
    assert "lab: lab-0 may still be there" in capsys.readouterr().err
