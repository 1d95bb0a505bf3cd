"""A run from its start to its end on every node, shown as it goes; Ctrl-C stops it in good order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

from gpuops.errors import Interrupted
from gpuops.follow import Follower
from gpuops.halt import halt, stopping
from gpuops.ledger import RunRow
from gpuops.live import Live
from gpuops.livefetch import LiveFetch
from gpuops.show import HomeTail
from gpuops.signals import HandOver
from gpuops.watch import awaited, ending, followed
from gpuops.world import World

LOOK_S = 0.2
PATIENCE_S = 30.0
"""How long after a second signal nodes that cannot be reached are still sought."""


def attend(world: World, live: Live, row: RunRow, tail: HomeTail) -> Follower:
    """Show a run until it has ended everywhere. A first signal stops it in good order, a second at once."""

    def show(lines: Iterator[str]) -> None:
        for line in lines:
            world.out.line(line)

    following, remarks = followed(world, live, row)
    try:
        fetching = LiveFetch(live, row)
        with awaited(world, row) as first:
            while not following.watch(LOOK_S):
                show(ending(first, tail.new()))
                fetching.look()
                remarks.look()
    except HandOver:
        following.quit()
        raise
    except Interrupted:
        with stopping(world.progress, row):
            _stop(world, live, row, following, lambda: show(tail.new()))
    show(tail.rest())
    remarks.news()
    return following


def _stop(world: World, live: Live, row: RunRow, following: Follower, show: Callable[[], None]) -> None:
    """Stop a run and wait until no node has anything left of it; in a hurry, not for ever for one that is away."""
    _ask(live, row, "graceful", "interrupted")
    hurried: float | None = None
    while not following.wait(LOOK_S):
        show()
        if world.signals.hurry and hurried is None:
            hurried = time.monotonic()
            _ask(live, row, "now", "interrupted twice")
        if hurried is not None and time.monotonic() - hurried > PATIENCE_S:
            following.abandon()


def _ask(live: Live, row: RunRow, how: Literal["graceful", "now"], why: str) -> None:
    """Without waiting for the answers: a node that does not give one must not keep a second signal unheard."""
    threading.Thread(target=halt, args=(live, row.name, how, why), daemon=True, name=f"stop {row.name}").start()
