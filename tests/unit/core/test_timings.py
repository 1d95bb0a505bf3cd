"""Where a command's time goes: each moment belongs to one piece of work."""

from __future__ import annotations

from gpuops.core.timings import Spent, Timings, Whose, document, lines


class Seconds:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_moment_belongs_to_the_innermost_work() -> None:
    clock = Seconds()
    timings = Timings(clock, began=98.0)
    with timings.during("waiting for lab", Whose.PROVIDER):
        clock.now += 3
        with timings.during("reaching lab", Whose.NETWORK):
            clock.now += 1
        clock.now += 2
        timings.turn_to("sending 2 files", Whose.NETWORK)
        clock.now += 4
    clock.now += 0.5
    assert timings.spent() == [
        Spent(Whose.GPUOPS, "everything else", 2.5),
        Spent(Whose.PROVIDER, "waiting for lab", 5.0),
        Spent(Whose.NETWORK, "reaching lab", 1.0),
        Spent(Whose.NETWORK, "sending 2 files", 4.0),
    ]


def test_work_that_is_under_way_counts_until_now() -> None:
    clock = Seconds()
    timings = Timings(clock)
    timings.turn_to("sending", Whose.NETWORK)
    clock.now += 7
    assert timings.spent()[-1] == Spent(Whose.NETWORK, "sending", 7.0)
    clock.now += 1
    assert timings.spent()[-1] == Spent(Whose.NETWORK, "sending", 8.0)


def test_an_owners_work_is_on_one_line_and_the_longest_comes_first() -> None:
    spent = [
        Spent(Whose.GPUOPS, "everything else", 0.01),
        Spent(Whose.PROVIDER, "waiting for lab", 31.23),
        Spent(Whose.NETWORK, "reaching lab", 0.4),
        Spent(Whose.NETWORK, "sending 2 files", 9.0),
        Spent(Whose.NETWORK, "trying the network", 0.02),
    ]
    assert lines(spent) == [
        "where 40.7 s went:",
        "  provider   31.2 s  waiting for lab: 31.2 s",
        "  network     9.4 s  sending 2 files: 9.0 s; reaching lab: 0.4 s",
    ]
    assert document(spent)[1] == {"whose": "provider", "work": "waiting for lab", "seconds": 31.23}
