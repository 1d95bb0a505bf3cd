"""Threads that are used again: what runs where, what is never queued, and what an exception does."""

from __future__ import annotations

import threading

import pytest

from gpuops.agent.workers import IDLE_NAME, Workers

LIMIT_S = 20.0


def test_work_runs_in_a_thread_that_the_next_work_uses_again() -> None:
    workers, seen = Workers(), []
    for name in ("one", "two", "three"):
        job = workers.start(lambda: seen.append(threading.current_thread()), name)
        assert job.join(LIMIT_S)
        assert not job.is_alive()
    assert len(set(seen)) == 1
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon


def test_work_that_waits_for_other_work_never_waits_for_a_thread() -> None:
    workers = Workers()
    depths: list[int] = []

    def nested(depth: int) -> None:
        if depth:
            assert workers.start(lambda: nested(depth - 1), "inner").join(LIMIT_S)
        depths.append(depth)

    assert workers.start(lambda: nested(20), "outer").join(LIMIT_S)
    assert depths == list(range(21))


def test_a_thread_has_the_name_of_its_work_while_that_runs() -> None:
    workers, go_on = Workers(), threading.Event()
    threads: list[threading.Thread] = []
    begun = threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        begun.set()
        go_on.wait(LIMIT_S)

    job = workers.start(work, "reader")
    assert begun.wait(LIMIT_S)
    assert threads[0].name == "reader"
    assert job.is_alive()
    assert not job.join(0)
    go_on.set()
    assert job.join(LIMIT_S)
    assert threads[0].name == IDLE_NAME


def test_an_exception_is_reported_as_a_threads_and_the_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, reported, seen = Workers(), [], []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append((args.exc_type, args.thread)))

    def fail() -> None:
        seen.append(threading.current_thread())
        raise KeyError("x")

    assert workers.start(fail, "fails").join(LIMIT_S)
    assert workers.start(lambda: seen.append(threading.current_thread()), "goes on").join(LIMIT_S)
    assert reported == [(KeyError, seen[0])]
    assert seen[0] is seen[1]


def test_an_exception_that_cannot_be_reported_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_args: object) -> None:
        raise BrokenPipeError

    workers, done = Workers(), []
    monkeypatch.setattr(threading, "excepthook", broken)
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    assert workers.start(lambda: 1 / 0, "fails").join(LIMIT_S)
    assert workers.start(lambda: done.append(1), "goes on").join(LIMIT_S)
    assert done == [1]


def test_a_thread_without_work_ends_after_a_while_and_another_one_begins() -> None:
    workers, seen = Workers(idle_s=0.0), []
    for _ in range(2):
        assert workers.start(lambda: seen.append(threading.current_thread()), "work").join(LIMIT_S)
        seen[-1].join(LIMIT_S)
        assert not seen[-1].is_alive()
    assert seen[0] is not seen[1]


def test_work_given_to_a_thread_that_is_about_to_end_is_done() -> None:
    workers, done = Workers(idle_s=0.0), []
    for number in range(300):
        assert workers.start(lambda number=number: done.append(number), "work").join(LIMIT_S)  # type: ignore[misc]
    assert done == list(range(300))
