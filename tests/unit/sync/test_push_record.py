"""The record of pushes, where another process holds its lock."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from gpuops.core.errors import LocalDisk
from gpuops.sync import push_record
from gpuops.sync.push_record import RECORD_FOLDER, PushRecord


def test_a_suspended_gpuops_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_record, "LOCK_TIMEOUT_S", 0.2)
    record = PushRecord(tmp_path, "token", "project")
    (tmp_path / RECORD_FOLDER).mkdir()
    held = FileLock(tmp_path / RECORD_FOLDER / ".lock")
    with held, pytest.raises(LocalDisk, match="another gpuops has been writing"):
        record.begin_push("n0", "[]")
    assert record.begin_push("n0", "[]")
