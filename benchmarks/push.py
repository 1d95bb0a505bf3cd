"""A project of many small files to its nodes, the first time and again, beside plain rsync to the same hosts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.hosts import Desk, desk, make_tree, together
from benchmarks.measure import Options, Skip, Table, alternate, compared, seconds, timed
from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.home import owner
from gpuops.core.reporting import Silent
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES
from gpuops.ledger.store import Ledger
from gpuops.nodes.session import open_session
from gpuops.sync import scan, upload

FILES, SIZE = 10_000, 4050
COPY = "copy"
"""Where rsync puts the project, in the home of a host's user."""
NOTES = (
    "`rsync -a --delete` over the system's `ssh`, one process per host, all at once.",
    "A login per host and the start of Python are in every row, but for those with an open login.",
    "Those are of a process that converses with the node, and of rsync through a ControlMaster.",
)
HEADS = ("what", "hosts", "median, s", "least, s", "of rsync's")


def tables(options: Options) -> Iterator[Table | Skip]:
    files = 200 if options.tiny else FILES
    rows: list[list[str]] = []
    left_out: list[Skip] = []
    for count in (1, 2) if options.tiny else (1, 8):
        try:
            with desk(count) as one:
                make_tree(one.project, files, SIZE)
                rows += _measured(one, options)
        except Skip as why:
            left_out.append(why)
    yield Table(f"Push of {files:,} files, {files * SIZE / 1e6:.0f} MB", HEADS, rows, NOTES)
    yield from left_out


def _measured(one: Desk, options: Options) -> list[list[str]]:
    count = len(one.places)
    first = alternate(
        {"gpuops": partial(_first, one), "rsync": partial(_first_by_rsync, one)}, options.times(3), warm=False
    )
    again = alternate(
        {"gpuops": lambda: one.type("push"), "rsync": lambda: _rsync(one)}, options.times(5), warm=not options.tiny
    )
    pairs = [("gpuops push", "first", first), ("gpuops push", "unchanged", again)]
    if not one.enter:  # in the network of a lab this very process has no place
        pairs.append(("the push alone", "unchanged, login open", _logged_in(one, options)))
    one.type("down", "bench")
    rows = []
    for ours, what, taken in pairs:
        rows.append([f"{ours}, {what}", str(count), *seconds(taken["gpuops"]), compared(*taken.values())])
        rows.append([f"rsync, {what}", str(count), *seconds(taken["rsync"]), ""])
    return rows


def _first(one: Desk) -> float:
    """To nodes that have just been made."""
    if (one.home / "ledger.db").exists():
        one.type("down", "--all")
    one.type("up", "ssh", "--name", "bench", *one.hosts)
    return timed(lambda: one.type("push"))


def _first_by_rsync(one: Desk) -> float:
    for index in range(len(one.places)):
        one.do([*one.ssh(index), "rm", "-rf", COPY])
    return timed(lambda: _rsync(one))


def _rsync(one: Desk, *more: str) -> None:
    commands = [one.rsync(index, one.project, COPY, *more) for index in range(len(one.places))]
    together([partial(one.do, command) for command in commands])


def _logged_in(one: Desk, options: Options) -> dict[str, list[float]]:
    """The push alone, by a process that converses with the nodes, beside rsync through a login that its first
    call opens and the next ones find."""
    world = Context(one.home, owner(one.home), one.project, one.env, Output(), Signals(), SERVICES)
    (row,) = Ledger.open(one.home).clusters()
    live = open_session(world, row)
    master = ("-o", "ControlMaster=auto", "-o", f"ControlPath={one.home}/%h-%p", "-o", "ControlPersist=15")

    def alone() -> None:
        upload.push_many(live.clients, "project", scan.scan(one.project, one.home / "cache"), progress=Silent())

    try:
        return alternate({"gpuops": alone, "rsync": lambda: _rsync(one, *master)}, options.times(5))
    finally:
        live.close()
