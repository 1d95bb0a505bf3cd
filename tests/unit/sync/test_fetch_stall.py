"""A node that only says that it lives while it fetches."""

from __future__ import annotations

import pytest

from gpuops.sync.fetch_stall import CHECKED_BYTES_PER_S, MAX_CHECK_S, STALL_S, TOLD_S, Stalled, StallWatch
from gpuops.transport.program_schemas import FetchLine, Sentence
from tests.fakes.provider import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def seconds_believed(clock: FakeClock, watch: StallWatch, line: FetchLine) -> float:
    """How long the same line is taken."""
    began = clock.monotonic()

    def tell_for_ever() -> None:
        while True:
            clock.sleep(10.0)
            watch.note(line)

    with pytest.raises(Stalled, match="node0 fetches, and nothing has come for"):
        tell_for_ever()
    return clock.monotonic() - began


@pytest.mark.parametrize(
    ("total", "more_s"), [(0, 0.0), (int(600 * CHECKED_BYTES_PER_S), 600.0), (1 << 60, MAX_CHECK_S)]
)
def test_a_node_that_brings_nothing_is_given_up(clock: FakeClock, total: int, more_s: float) -> None:
    """What it has is read again first; a size that no disk has buys no more time."""
    took_s = seconds_believed(clock, StallWatch(clock, "node0"), FetchLine(at=0, total=total))
    assert took_s == pytest.approx(STALL_S + more_s, abs=20.0)


def test_each_byte_counts_and_a_file_that_begins_again_too(clock: FakeClock) -> None:
    watch = StallWatch(clock, "node0")
    for at in (1, 2, 0, 1):
        clock.sleep(STALL_S * 0.6)
        if at:
            assert watch.note(FetchLine(at=at)) == ""
        else:
            watch.note(FetchLine(at=at))
    assert seconds_believed(clock, watch, FetchLine(at=1)) == pytest.approx(STALL_S, abs=20.0)


def test_it_is_told_meanwhile_with_the_nodes_own_reason(clock: FakeClock) -> None:
    watch = StallWatch(clock, "node0")
    assert watch.note(FetchLine(waits=Sentence("it answers 503"))) == "it answers 503"
    clock.sleep(TOLD_S + 60.0)
    assert watch.note(FetchLine(waits=Sentence("it answers 503"))) == "it answers 503; nothing has come for 6 min"
    watch.restart()
    assert watch.note(FetchLine()) == ""
