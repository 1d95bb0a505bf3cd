"""From the command to the script on hosts that are far away, beside what a user would type by hand.

On one machine every question costs nothing but work; 100 ms away each one that waits for an answer costs a tenth of a
second, whatever the machines can do. Both ways go to the same hosts through the same delay (`programs/delay.py`).
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from benchmarks import first_step
from benchmarks.first_step import WAYS, Told
from benchmarks.hosts import Desk, Place, desk
from benchmarks.measure import PYTHON, ROOT, Options, Table

HOSTS = 2
ROUND_TRIP_MS = 100
PARTS = {"script": "script starts", "line": "seen here", "whole": "its end"}
NOTES = (
    f"Seconds from the command, medians. {ROUND_TRIP_MS} ms to each host and back, none between them; a plain Python.",
    "Round trips: how many times the delay it takes longer to its end than without one.",
)


def tables(options: Options) -> Iterator[Table]:
    with desk(HOSTS) as one:
        first_step.make_project(one.project)
        near, far = (_measured(one, delay_ms, options) for delay_ms in (0, ROUND_TRIP_MS // 2))
    by_hand = _median(far[WAYS[0]], "whole")
    rows = []
    for way in WAYS:
        parts = [f"{_median(far[way], part):.2f}" for part in PARTS]
        here, there = _median(near[way], "whole"), _median(far[way], "whole")
        ratio = "" if way == WAYS[0] else f"{there / by_hand:.2f} ×"
        rows.append([way, *parts, ratio, f"{(there - here) / ROUND_TRIP_MS * 1000:.0f}", f"{here:.2f}"])
    heads = ("way", *PARTS.values(), "of by hand", "round trips", "its end, without delay")
    yield Table(f"A command on {HOSTS} hosts, {ROUND_TRIP_MS} ms away", heads, rows, NOTES)


def _median(taken: list[Told], part: str) -> float:
    return statistics.median(told[part] for told in taken)


def _measured(one: Desk, delay_ms: int, options: Options) -> dict[str, list[Told]]:
    with _away(one, delay_ms) as far:
        times = options.times(3)
        taken: dict[str, list[Told]] = {WAYS[0]: [], WAYS[2]: []}
        works = {WAYS[0]: first_step.by_hand_once, WAYS[2]: first_step.from_nothing_once}
        for round_ in range(times + 1):
            for way, work in works.items():
                told = work(far, False)
                if round_:  # the first one warms up
                    taken[way].append(told)
        far.type("up", "ssh", "--name", "bench", *far.hosts)
        on_cluster = [first_step.on_cluster_once(far, False) for _ in range(times + 1)]
        far.type("down", "bench")
        return {**taken, WAYS[1]: on_cluster[1:]}


@contextmanager
def _away(one: Desk, delay_ms: int) -> Iterator[Desk]:
    """The same desk with its hosts behind a delay of so many ms in each direction."""
    near = list(zip(range(20_100 + delay_ms, 30_000), one.places, strict=False))
    known = one.known_hosts.with_name(f"known_hosts-{delay_ms}")
    known.write_text("".join(_known_as(one, place, port) for port, place in near))
    places = [replace(place, address="127.0.0.1", port=port) for port, place in near]
    ways = [f"{port}={place.address}:{place.port}" for port, place in near]
    argv = [*one.enter, PYTHON, ROOT / "benchmarks/programs/delay.py", delay_ms, *ways]
    process = subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        yield replace(one, known_hosts=known, places=places)
    finally:
        process.kill()
        process.wait()


def _known_as(one: Desk, place: Place, port: int) -> str:
    """The host's key under its new address."""
    keys = [line.split(" ", 1) for line in one.known_hosts.read_text().splitlines()]
    return "".join(f"[127.0.0.1]:{port} {key}\n" for names, key in keys if place.address in names)
