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
START = threading.Thread.start


class Watch:
    """Stops the test that is under way at the first forbidden event, in its own thread or in one that it started.

    Threads that tests before it have left behind do not count, nor what these start.
    """

    def __init__(self) -> None:
        self.active = False
        self.threads: set[int] = set()
        """The test's own, by `id` of the Thread; kept alive by `started`."""
        self.started: list[threading.Thread] = []
        self.broken: list[str] = []

    def begin(self) -> None:
        self.started = [threading.current_thread()]
        self.threads = {id(self.started[0])}
        self.broken, self.active = [], True

    def start(self, thread: threading.Thread) -> None:
        """What `Thread.start` is while a test runs."""
        if id(threading.current_thread()) in self.threads:
            self.started.append(thread)
            self.threads.add(id(thread))
        START(thread)

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.active or event not in FORBIDDEN or id(threading.current_thread()) not in self.threads:
            return
        self.broken.append(f"a unit test {FORBIDDEN[event]} ({event} {arguments[:2]}); move it to tests/integration")
        pytest.fail(self.broken[-1])


def no_sleep(seconds: float) -> None:
    """What `time.sleep` is in a unit test: other threads get their turn, and no time passes for the test's own."""
    SLEEP(0 if id(threading.current_thread()) in watch.threads else seconds)


watch = Watch()
sys.addaudithook(watch.hook)


@pytest.fixture(autouse=True)
def _pure(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test below this folder is watched, its other fixtures included; an error that was swallowed counts too."""
    watch.begin()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: watch.start(thread))
    monkeypatch.setattr(time, "sleep", no_sleep)
    yield
    watch.active = False
    if watch.broken:
        pytest.fail(watch.broken[0])
