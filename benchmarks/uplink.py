"""The first push of a project to several hosts over a line as slow as one from home, beside plain rsync to the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.hosts import Desk, desk, make_tree, together
from benchmarks.measure import Failed, Options, Skip, Table, alternate, compared, run, seconds, timed
from tests.system.lab.net import ENVIRON

FILES, SIZE = 600, 100_000
HOSTS = 8
MEGABITS = 100
COPY = "copy"
NOTES = (
    "`tc` (tbf) holds what leaves this computer to that, for all hosts together, and nothing between the hosts.",
    "`rsync -a --delete` over the system's `ssh`, one process per host, all at once.",
    "Of gpuops' time, the search for keys, the logins and the start of Python on every host are a part.",
)
HEADS = ("what", "hosts", "median, s", "least, s", "of rsync's to all")


def tables(options: Options) -> Iterator[Table]:
    files = 60 if options.tiny else FILES
    count = 2 if options.tiny else HOSTS
    with desk(count) as one:
        make_tree(one.project, files, SIZE)
        _slow_down(one)
        works = {
            ("gpuops push", count): partial(_push, one, count),
            ("gpuops push", 1): partial(_push, one, 1),
            ("rsync", count): partial(_rsync, one, count),
            ("rsync", 1): partial(_rsync, one, 1),
        }
        taken = alternate(
            {f"{what} {hosts}": work for (what, hosts), work in works.items()}, options.times(2), warm=False
        )
    rows = [
        [what, str(hosts), *seconds(times), compared(times, taken[f"rsync {count}"])]
        for (what, hosts), times in zip(works, taken.values(), strict=True)
    ]
    yield Table(f"First push of {files * SIZE / 1e6:.0f} MB over a line of {MEGABITS} Mbit/s", HEADS, rows, NOTES)


def _slow_down(one: Desk) -> None:
    """What the hosts send each other does not pass this queue. Raises Skip."""
    words = f"tc qdisc replace dev br0 root tbf rate {MEGABITS}mbit burst 64000 latency 200ms"
    try:
        run([*one.enter, *words.split()], env=ENVIRON)
    except Failed as why:
        raise Skip(f"no line can be slowed down here: {why}") from None


def _push(one: Desk, count: int) -> float:
    """To nodes that have just been made."""
    if (one.home / "ledger.db").exists():
        one.type("down", "--all")
    one.type("up", "ssh", "--name", "bench", *one.named(count))
    return timed(lambda: one.type("push"))


def _rsync(one: Desk, count: int) -> float:
    for index in range(count):
        one.do([*one.ssh(index), "rm", "-rf", COPY])
    commands = [one.rsync(index, one.project, COPY) for index in range(count)]
    return timed(lambda: together([partial(one.do, command) for command in commands]))
