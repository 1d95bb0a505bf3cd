"""The same work on several items at once: results, failures, nesting, and that its threads are used again."""

from __future__ import annotations

import threading

import pytest

from gpuops.core.parallel import on_each


def test_results_come_in_the_order_of_the_items_whatever_ended_first() -> None:
    ended = [threading.Event() for _ in range(3)]

    def work(index: int) -> int:
        if index < 2:
            assert ended[index + 1].wait(20)
        ended[index].set()
        return index * 10

    assert on_each(work, range(3)) == [0, 10, 20]
    assert on_each(work, []) == []


def test_the_first_items_failure_is_raised_once_all_have_ended() -> None:
    done: list[int] = []

    def work(index: int) -> None:
        done.append(index)
        if index != 1:
            raise ValueError(index)

    with pytest.raises(ValueError, match="0"):
        on_each(work, range(3))
    assert sorted(done) == [0, 1, 2]


def test_it_may_be_called_within_itself() -> None:
    assert on_each(lambda row: on_each(lambda column: row * column, range(4)), range(4)) == [
        [row * column for column in range(4)] for row in range(4)
    ]


def test_a_second_call_uses_the_threads_of_the_first() -> None:
    together = threading.Barrier(3)

    def thread(_item: int) -> threading.Thread:
        together.wait(20)  # each in a thread of its own
        return threading.current_thread()

    first, second = set(on_each(thread, range(3))), set(on_each(thread, range(3)))
    assert len(first) == 3
    assert first == second
