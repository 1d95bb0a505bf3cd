"""All ranks learn in the same step that one of them was asked to stop, however seldom they ask each other."""

from __future__ import annotations


def learnt(world, asked_in: int, sleep: float) -> tuple[int, int]:
    """The step in which they learnt of it, the same for all, and how many exchanges there were."""
    ranks = world("asking.py", str(asked_in), str(sleep), ranks=3).succeed()
    told = {tuple(map(int, ranks.out(rank)[0].split())) for rank in range(3)}
    assert len(told) == 1, told
    return told.pop()


def test_in_long_steps_they_learn_of_it_at_once(world) -> None:
    assert learnt(world, 7, 0.03) == (7, 7)


def test_in_short_steps_they_ask_seldom(world) -> None:
    step, exchanges = learnt(world, 300, 0.0)
    assert 300 < step <= 300 + 16
    assert exchanges < step / 2
