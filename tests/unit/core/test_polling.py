"""The one loop that waits: pauses, deadline, and what a provider asks for."""

from __future__ import annotations

from gpuops.core.polling import LONGEST_S, Clock, Poller


class Paused(Clock):
    """Time passes only in a pause."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds


def test_pauses_grow_and_the_last_attempt_starts_at_the_deadline() -> None:
    clock = Paused()
    attempts = list(Poller(clock, 110.0, 1.0, 3.0, factor=2.0))
    assert clock.pauses == [1.0, 2.0, 3.0, 3.0, 1.0]
    assert [one.started for one in attempts] == [100.0, 101.0, 103.0, 106.0, 109.0, 110.0]
    assert [one.is_last for one in attempts] == [False] * 5 + [True]


def test_what_an_attempt_has_done_is_looked_at_again_however_long_it_took() -> None:
    clock = Paused()
    started = []
    for attempt in Poller(clock, 110.0, 1.0, 3.0):
        started.append((attempt.started, attempt.is_last))
        clock.seconds += 50.0
    assert started == [(100.0, False), (150.0, True)]


def test_a_pause_that_a_provider_asks_for_counts_once() -> None:
    clock = Paused()
    poller = Poller(clock, 1000.0, 1.0, 1.0)
    for number, _ in enumerate(poller):
        poller.retry_after({0: 7.0, 1: 0.0, 3: 10 * LONGEST_S}.get(number))
        if number == 4:
            break
    assert clock.pauses == [7.0, 1.0, 1.0, LONGEST_S]


def test_a_deadline_that_has_passed_leaves_one_attempt() -> None:
    assert [one.is_last for one in Poller(Paused(), 99.0, 1.0, 1.0)] == [True]


def test_given_pauses_are_made_in_order_and_the_last_one_repeats() -> None:
    clock = Paused()
    poller = Poller.with_pauses(clock, 120.0, (1.0, 1.0, 5.0))
    announced = [poller.next_pause_s for _ in poller]
    assert clock.pauses == [1.0, 1.0, 5.0, 5.0, 5.0, 3.0]
    assert announced == [*clock.pauses, 0.0]
