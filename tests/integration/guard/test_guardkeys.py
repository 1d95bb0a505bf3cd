"""What tests/unit/guard/test_guardkeys.py leaves to real processes or sockets."""

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
from tests.unit.guard.test_guardkeys import AWS, A


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
