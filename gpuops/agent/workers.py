"""Threads for work beside the caller's, which take the next work when theirs has ended.

A launch starts a hundred pieces of work that wait for something, few of them at the same time: a thread for each would
be begun and ended a hundred times. Work is never queued. Where no thread is idle, another one begins, so that work that
waits for other work (`on_each` within `on_each`) cannot block itself. The threads are daemons: none keeps this process
from ending.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from typing import Callable

IDLE_S = 10.0
"""How long a thread waits for more work before it ends."""
IDLE_NAME = "idle worker"


class Job:
    """Work that runs in a thread, or has run."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work = work
        self._name = name
        self._ended = threading.Event()

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return not self._ended.is_set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for its end, at most `timeout` seconds. Returns whether it has ended."""
        return self._ended.wait(timeout)

    def run(self) -> None:
        """Run it in this thread. What it raises is reported as a thread's exception is, and never raised here."""
        thread = threading.current_thread()
        thread.name = self._name
        try:
            self._work()
        except BaseException:
            with contextlib.suppress(BaseException):  # nobody reads stderr any more, say: others wait for the end
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
        finally:
            thread.name = IDLE_NAME
            del self._work  # with all that it holds

    def end(self) -> None:
        """Let those go on that wait for it."""
        self._ended.set()


class Workers:
    """Thread-safe."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._idle: list[queue.SimpleQueue[Job]] = []
        """Where each idle thread waits for its next work."""
        self._lock = threading.Lock()

    def start(self, work: Callable[[], object], name: str) -> Job:
        """Begin work in an idle thread, or in a new one. `name` is the thread's meanwhile.

        Raises RuntimeError where the system allows no more threads.
        """
        job = Job(work, name)
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.put(job)
        else:
            threading.Thread(target=self._serve, args=(job,), name=name, daemon=True).start()
        return job

    def _serve(self, first: Job) -> None:
        inbox: queue.SimpleQueue[Job] = queue.SimpleQueue()
        job: Job | None = first
        del first
        while job is not None:
            job.run()
            with self._lock:  # idle first: whoever waits for the end may begin other work at once
                self._idle.append(inbox)
            job.end()
            job = None  # while idle, nothing of it is kept
            job = self._next_job(inbox)

    def _next_job(self, inbox: queue.SimpleQueue[Job]) -> Job | None:
        """The next work; None after a while without any."""
        try:
            return inbox.get(timeout=self._idle_s)
        except queue.Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        return inbox.get()  # it was chosen in this moment


WORKERS = Workers()
"""Those of this process."""
