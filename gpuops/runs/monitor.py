"""A run from its start to its end on every node, shown as it goes; Ctrl-C stops it in good order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal

from gpuops.core.context import World
from gpuops.core.errors import Interrupted
from gpuops.core.signals import HandOver
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import Live
from gpuops.runs.finish import follower, request_of
from gpuops.runs.follow import Follower
from gpuops.runs.livefetch import LiveFetch
from gpuops.runs.log_view import Filter, HomeTail
from gpuops.runs.remarks import Remarks, how_to_look
from gpuops.runs.renewal import Renewal
from gpuops.runs.stop import halt, stopping
from gpuops.sync import RunHome

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
        fetching, renewal = LiveFetch(live, row), Renewal(world, live, row)
        with awaited(world, row) as first:
            while not following.watch(LOOK_S):
                show(ending(first, tail.new()))
                fetching.look()
                renewal.look()
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


def awaited(world: World, row: RunRow, wanted: Filter | None = None) -> ExitStack:
    """Until it is closed: a word on a live line, and now and then in a log, that the run goes on without a line."""
    ranks = int(row.facts.get("world") or 0) if request_of(row).kind == "torchrun" else 0
    on = f" on {ranks} rank{'s' * (ranks != 1)}" if ranks else ""
    every = wanted is None or wanted == Filter(tail=wanted.tail, launcher=wanted.launcher)
    first = ExitStack()
    first.enter_context(world.progress.during(f"{row.name} runs{on}", aside=True))
    world.progress.waits("no line yet" if every else "no line that fits yet")
    return first


def ending(first: ExitStack, lines: Iterator[str]) -> Iterator[str]:
    """The lines, the first of which is no longer awaited."""
    for line in lines:
        first.close()
        yield line


def followed(world: World, live: Live, row: RunRow) -> tuple[Follower, Remarks]:
    """A run from now on followed to its end, and what is remarked beside it."""
    look = how_to_look(live.row.name, gpus=any(facts.get("gpus") for facts in live.facts))
    remarks = Remarks(world.out.say, RunHome(row.home), world.folder, look)
    following = follower(world, live, row, remarks.heard, world.out.say)
    following.start()
    return following, remarks
