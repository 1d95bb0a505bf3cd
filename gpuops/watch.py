"""`logs`: a run's output from its files at home, fetched first where nodes still have more."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from gpuops import cluster as clusters
from gpuops.conclude import follower, request_of
from gpuops.down import pick_run
from gpuops.errors import GpuopsError, Interrupted, UsageError
from gpuops.ledger import RunRow
from gpuops.logs import LineMerger
from gpuops.logtimes import LogTimes
from gpuops.output import ago
from gpuops.remarks import Remarks, how_to_look
from gpuops.results import RunHome, mirror
from gpuops.show import HomeTail
from gpuops.signals import Signals
from gpuops.world import World

LOOK_S = 0.2
VERDICT_S = 30.0
"""How long the end of `logs -f` waits for whoever concludes the run."""


@dataclass(frozen=True)
class Filter:
    """Which lines: of one node, of one rank, only the last so many, torchrun's own as well, those in which `grep` is
    found, those written after `since` (UTC seconds)."""

    node: int | None = None
    rank: int | None = None
    tail: int | None = None
    launcher: bool = False
    grep: re.Pattern[str] | None = None
    since: float | None = None


def watch(world: World, name: str | None, wanted: Filter, *, follow: bool) -> None:
    """Print a run's lines; with `follow`, until it ends."""
    row = pick_run(world, name, running=False)
    if follow and row.state == "starting":
        waited = _wait_for_start(world, row)
        if waited is None:
            return
        row = waited
    check(row, wanted)
    if row.state == "running" and world.ledger.cluster(row.cluster).state == "up":
        _live(world, row, wanted, follow)
        return
    _print_all(world, row, wanted)
    if follow:
        _say_verdict(world, row)


def _wait_for_start(world: World, row: RunRow) -> RunRow | None:
    """The row once the run is no longer being prepared; None where somebody has seen enough."""
    world.out.say(f"{row.name} is still being prepared")
    try:
        with Signals():
            while row.state == "starting":
                time.sleep(LOOK_S)
                row = world.ledger.run(row.id)
    except Interrupted:
        world.out.say(f"detached; {row.name} goes on")
        return None
    return row


def check(row: RunRow, wanted: Filter) -> None:
    """Raises UsageError for a node or rank that the run never had: nothing shown would look like nothing said."""
    nodes, ranks = request_of(row).nodes, int(row.facts.get("world") or 0)
    for what, asked, count in (("node", wanted.node, nodes), ("rank", wanted.rank, ranks)):
        if asked is not None and not 0 <= asked < count:
            there = f"{what}s 0 to {count - 1}" if count > 1 else f"{what} 0 alone" if count else f"no {what}s"
            raise UsageError(f"{row.name} has {there}, not {what} {asked}", f"gpuops logs {row.name} shows all of them")


def _tail(world: World, row: RunRow, wanted: Filter) -> HomeTail:
    """What is home by now, and what comes. Raises UsageError where nobody noted when it was written."""
    home = RunHome(row.home)
    times = LogTimes(home, row.facts.get("skews") or ())
    if wanted.since is not None and not times and (row.started or 0.0) < wanted.since:
        raise UsageError(
            f"nobody noted when {row.name} wrote what: an older gpuops started it", "leave out --since; --tail 50 works"
        )
    return HomeTail(home, merger_for(world, row, wanted), times=times, since=wanted.since)


def merger_for(world: World, row: RunRow, wanted: Filter) -> LineMerger:
    """How this run's lines look: prefixed where there are several ranks, with the filters asked for."""
    request = request_of(row)
    return LineMerger(
        nodes=request.nodes,
        ranks=int(row.facts.get("world") or 1),
        kind=request.kind,
        node=wanted.node,
        rank=wanted.rank,
        colour=world.out.colour,
        launcher=wanted.launcher,
        grep=wanted.grep,
    )


def _print(world: World, lines: Iterator[str], last: int | None = None) -> int:
    """Lines, or the last so many; how many there were."""
    count = 0
    for line in lines if last is None else deque(lines, last):
        count += 1
        if world.out.as_json:
            world.out.result("log", {"line": line}, [])
        else:
            world.out.line(line)
    return count


def _print_all(world: World, row: RunRow, wanted: Filter) -> None:
    """What is home; a word where a filter lets nothing of it through, which looks like nothing said."""
    shown = _print(world, _tail(world, row, wanted).rest(), wanted.tail)
    if shown or (wanted.grep is None and wanted.since is None):
        return
    latest = LogTimes(RunHome(row.home), row.facts.get("skews") or ()).latest()
    last = f"; its last line is from {ago(latest)}" if latest is not None else ""
    world.out.say(f"no line of {row.name} fits{last}")


def _live(world: World, row: RunRow, wanted: Filter, follow: bool) -> None:
    """With signals of its own: here they only mean that somebody has seen enough."""
    try:
        with Signals():
            _look(world, row, wanted, follow)
    except Interrupted:
        world.out.say(f"detached; {row.name} goes on")


def _look(world: World, row: RunRow, wanted: Filter, follow: bool) -> None:
    try:
        live = clusters.open_live(world, world.ledger.cluster(row.cluster), some=True)
    except GpuopsError as error:
        return _at_home(world, row, wanted, follow, error)
    try:
        for index in range(request_of(row).nodes):
            try:
                mirror(live.clients[index], row.name, index, RunHome(row.home), False, lambda *_: None)
            except GpuopsError as error:
                world.out.say(f"note: {error.say}; its lines so far are those at home")
        if not follow:
            return _print_all(world, row, wanted)
        tail = _tail(world, row, wanted)
        _print(world, tail.new(), wanted.tail)
        _follow(world, live, row, tail)
    finally:
        live.close()


def _at_home(world: World, row: RunRow, wanted: Filter, follow: bool, error: GpuopsError) -> None:
    """No node can be asked from here: what is home is shown, and what whoever keeps the run brings."""
    world.out.say(f"note: {error.say}; its lines so far are those at home")
    if not follow:
        return _print_all(world, row, wanted)
    tail = _tail(world, row, wanted)
    _print(world, tail.new(), wanted.tail)
    while world.ledger.run(row.id).state == "running":
        time.sleep(LOOK_S)
        _print(world, tail.new())
    _print(world, tail.rest())
    _say_verdict(world, row)
    return None


def _follow(world: World, live: clusters.Live, row: RunRow, tail: HomeTail) -> None:
    look = how_to_look(live.row.name, gpus=any(facts.get("gpus") for facts in live.facts))
    remarks = Remarks(world.out.say, RunHome(row.home), world.folder, look)
    following = follower(world, live, row, remarks.heard, world.out.say)
    following.start()
    while not following.watch(LOOK_S):
        _print(world, tail.new())
        remarks.look()
        if world.ledger.run(row.id).state == "home":  # somebody else saw it to its end
            following.quit()
            break
    _print(world, tail.rest())
    _say_verdict(world, row)


def _say_verdict(world: World, row: RunRow) -> None:
    """The verdict is written by whoever concludes the run: its own command, or the guard."""
    deadline = time.monotonic() + VERDICT_S
    while time.monotonic() < deadline:
        verdict = world.ledger.run(row.id).verdict
        if verdict:
            world.out.say(str(verdict["say"]))
            return
        time.sleep(LOOK_S)
    world.out.say(f"{row.name} has ended on its nodes; `gpuops runs` shows what came of it")
