"""Locks between processes: one holder, whoever wrote the lock; and where a file system has none."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from gpuops.core.file_lock import LockTimeout, file_lock


def test_one_holder_at_a_time_and_the_lock_is_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.lock"
    with file_lock(path, 0), pytest.raises(LockTimeout), file_lock(path, 0):
        pass
    with file_lock(path, 0):
        pass
    assert path.stat().st_mode & 0o777 == 0o600


def test_earlier_versions_lock_the_same_file_with_filelock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with FileLock(path), pytest.raises(LockTimeout), file_lock(path, 0):
        pass
    with file_lock(path, 0), pytest.raises(Timeout):
        FileLock(path).acquire(timeout=0)


def test_who_waits_gets_it_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    got = threading.Event()

    def wait() -> None:
        with file_lock(path, 60):
            got.set()

    waiting = threading.Thread(target=wait)
    with file_lock(path, 0):
        waiting.start()
        assert not got.wait(0.2)
    waiting.join(60)
    assert got.is_set()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    program = "from pathlib import Path; from gpuops.core.file_lock import file_lock\n"
    program += f"with file_lock(Path({str(path)!r}), 0): print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(LockTimeout), file_lock(path, 0):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with file_lock(path, 0):
        pass


def test_a_file_that_is_removed_while_it_is_being_locked_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.lock"
    flock, calls = fcntl.flock, []

    def removed_before(fd: int, how: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            path.unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with file_lock(path, 0), pytest.raises(LockTimeout), file_lock(path, 0):
        pass
    assert len(calls) == 3


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)), file_lock(tmp_path / "a.lock", 0):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_without_flock_is_locked_by_filelock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_none(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", has_none)
    path = tmp_path / "a.lock"
    with file_lock(path, 0), pytest.raises(LockTimeout), file_lock(path, 0):
        pass
    with file_lock(path, 0):
        pass
