"""What a signal means at each moment of a story; real signals, sent to this process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from gpuops.core.errors import GpuopsError, Interrupted, NoCapacity
from gpuops.core.signals import HandOver, Signals

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def former() -> Iterator[None]:
    """Handlers are as before, whatever a test did."""
    before = [signal.getsignal(number) for number in ALL]
    yield
    assert [signal.getsignal(number) for number in ALL] == before


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_one_interrupts_once(number: int) -> None:
    said: list[str] = []
    with Signals(lambda: said.append("first"), lambda: said.append("second")) as signals:
        with pytest.raises(Interrupted):
            send(number)
        assert not signals.hurry
        send(number)
        assert signals.hurry
        send(number)
    assert said == ["first", "second"]


@pytest.mark.parametrize("number", ALL)
def test_no_failure_that_is_borne_swallows_it(number: int) -> None:
    def bears() -> None:
        try:
            send(number)
        except GpuopsError:
            pass

    with Signals(), pytest.raises(Interrupted):
        bears()


def test_an_end_is_left_by_the_second_one_only() -> None:
    said: list[str] = []
    with Signals() as signals:
        signals.insist(lambda: said.append("first"))
        send(signal.SIGINT)
        send(signal.SIGHUP)
        with pytest.raises(Interrupted):
            send(signal.SIGTERM)
        send(signal.SIGINT)
    assert said == ["first"]


def test_a_lost_terminal_hands_over_and_counts_as_no_interrupt() -> None:
    with Signals() as signals:
        with pytest.raises(HandOver):
            send(signal.SIGHUP)
        send(signal.SIGHUP)
        assert signals.count == 0


def test_inside_a_shield_it_waits() -> None:
    reached = []
    with Signals() as signals, pytest.raises(Interrupted), signals.shielded():  # noqa: PT012
        with signals.shielded():
            send(signal.SIGINT)
            reached.append("inner")
        reached.append("outer")
    assert reached == ["inner", "outer"], "the outer shield holds as well"


def test_after_a_shield_in_which_something_failed_it_is_not_forgotten() -> None:
    """Else the next offer would be tried, and paid for, before anybody notices that the user has had enough."""
    with Signals() as signals:
        with pytest.raises(Interrupted) as caught, signals.shielded():  # noqa: PT012
            send(signal.SIGINT)
            raise NoCapacity("none to be had")
        assert isinstance(caught.value.__context__, NoCapacity)


def test_backward_it_only_hurries() -> None:
    with Signals() as signals:
        signals.backward()
        for number in ALL:
            send(number)
        assert signals.hurry
        with signals.shielded():
            send(signal.SIGINT)


@pytest.mark.parametrize("number", ALL)
def test_what_is_ignored_on_entry_stays_so(number: int) -> None:
    """`nohup gpuops run …` goes on when its terminal is closed."""
    former = signal.signal(number, signal.SIG_IGN)
    try:
        with Signals() as signals:
            send(number)
            assert signals.count == 0
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, former)


def test_what_is_relayed_to_a_thread_is_raised_there_once() -> None:
    with Signals() as signals:
        signals.check()
        signals.relay(1, Interrupted("interrupted", ""))
        with pytest.raises(Interrupted):
            signals.check()
        signals.relay(2, Interrupted("interrupted", ""))
        signals.check()
        assert signals.hurry


def test_what_is_relayed_waits_for_the_end_of_a_shield() -> None:
    done = []

    def work(signals: Signals) -> None:
        with signals.shielded():
            signals.relay(0, HandOver("gone", ""))
            signals.check()
            done.append(1)

    with Signals() as signals, pytest.raises(HandOver):
        work(signals)
    assert done == [1]


def test_in_another_thread_nothing_is_installed() -> None:
    before = signal.getsignal(signal.SIGINT)
    inside = []

    def work() -> None:
        with Signals():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]
