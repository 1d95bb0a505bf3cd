"""Actions at a time that may come: the earliest first, not after they were cancelled, and none held up by another."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpuops.agent.workers import Job, Workers
from gpuops.transport import deadlines as deadlines_module
from gpuops.transport.deadlines import Deadlines

LIMIT_S = 20.0


def test_one_that_is_due_sooner_does_not_wait_for_an_earlier_one() -> None:
    deadlines, late, soon = Deadlines(), threading.Event(), threading.Event()
    deadlines.after(3600.0, late.set)
    deadlines.after(0.01, soon.set)
    assert soon.wait(LIMIT_S)
    assert not late.is_set()


def test_what_was_cancelled_is_never_done() -> None:
    deadlines, done, last = Deadlines(), [], threading.Event()
    deadlines.after(0.02, lambda: done.append("cancelled")).cancel()
    deadlines.after(0.04, last.set)
    assert last.wait(LIMIT_S)
    assert done == []


def test_one_that_blocks_holds_up_no_other() -> None:
    deadlines, blocks, other = Deadlines(), threading.Event(), threading.Event()
    deadlines.after(0.0, lambda: blocks.wait(LIMIT_S))
    deadlines.after(0.01, other.set)
    assert other.wait(LIMIT_S)
    blocks.set()


def test_after_a_time_without_any_the_next_one_is_done_as_well() -> None:
    deadlines = Deadlines()
    for _ in range(3):
        done = threading.Event()
        deadlines.after(0.0, done.set)
        assert done.wait(LIMIT_S)


class Refusing(Workers):
    """No thread can be begun, so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
        super().__init__()
        self.name, self.times = name, times
        monkeypatch.setattr(deadlines_module, "WORKERS", self)

    def start(self, work: Callable[[], object], name: str) -> Job:
        if name == self.name and self.times:
            self.times -= 1
            raise RuntimeError("can't start new thread")
        return super().start(work, name)


def test_where_no_thread_could_begin_the_next_deadline_begins_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Refusing(monkeypatch, "deadlines", 1)
    deadlines, refused, done = Deadlines(), threading.Event(), threading.Event()
    with pytest.raises(RuntimeError):
        deadlines.after(0.0, refused.set)
    deadlines.after(0.0, done.set)
    assert done.wait(LIMIT_S)
    assert not refused.is_set()


def test_an_action_that_found_no_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Refusing(monkeypatch, "deadline", 2)
    monkeypatch.setattr(deadlines_module, "RETRY_S", 0.01)
    deadlines, first, second = Deadlines(), threading.Event(), threading.Event()
    deadlines.after(0.0, first.set)
    deadlines.after(0.02, second.set)
    assert first.wait(LIMIT_S)
    assert second.wait(LIMIT_S)
