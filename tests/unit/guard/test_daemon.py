"""The guard's own rounds."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gpuops.guard.daemon import Guard
from tests.fakes.provider import FakeClock


class FullDisk(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_under_its_log_does_not_end_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[str] = []

    def fail_once(_: Guard) -> bool:
        rounds.append("round")
        if len(rounds) == 1:
            raise RuntimeError("a bug")
        return False

    monkeypatch.setattr(Guard, "round", fail_once)
    monkeypatch.setattr(sys, "stderr", FullDisk())
    Guard(tmp_path, 1, clock=FakeClock()).watch()
    assert len(rounds) == 2
