"""A unit test starts no process and opens no socket: one that must belongs to tests/integration. It cannot sleep."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest
import urllib3.util.connection  # noqa: F401 - its first import binds a socket, to learn of IPv6

FORBIDDEN = {
    "subprocess.Popen": "starts no process",
    "os.fork": "starts no process",
    "os.forkpty": "starts no process",
    "os.posix_spawn": "starts no process",
    "os.exec": "starts no process",
    "os.system": "starts no process",
    "socket.bind": "opens no socket",
    "socket.connect": "opens no socket",
}
"""Python's audit events by what they break: the interpreter reports each, whatever name the code calls it by."""
SLEEP = time.sleep


class Watch:
    """Stops the test that is under way at the first forbidden event, whichever thread of the test it comes from."""

    def __init__(self) -> None:
        self.active = False
        self.others: set[int] = set()
        """Threads that were alive before the test: those of earlier tests do not count."""
        self.broken: list[str] = []

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.active or event not in FORBIDDEN or threading.get_ident() in self.others:
            return
        self.broken.append(f"a unit test {FORBIDDEN[event]} ({event} {arguments[:2]}); move it to tests/integration")
        pytest.fail(self.broken[-1])


def no_sleep(seconds: float) -> None:  # noqa: ARG001
    """What `time.sleep` is in a unit test: other threads get their turn, and no time passes."""
    SLEEP(0)


watch = Watch()
sys.addaudithook(watch.hook)


@pytest.fixture(autouse=True)
def _pure(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test below this folder is watched, its other fixtures included; an error that was swallowed counts too."""
    watch.others = {thread.ident or 0 for thread in threading.enumerate() if thread is not threading.current_thread()}
    watch.broken, watch.active = [], True
    monkeypatch.setattr(time, "sleep", no_sleep)
    yield
    watch.active = False
    if watch.broken:
        pytest.fail(watch.broken[0])
