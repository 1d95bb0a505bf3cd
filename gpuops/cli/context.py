"""Builds the Context of a command, and prints the news that a command begins with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import Enum, auto
from pathlib import Path

from gpuops import ledger
from gpuops.cli.terminal.output import Output
from gpuops.cli.terminal.progress import progress_on
from gpuops.core import timings
from gpuops.core.context import Context
from gpuops.core.errors import LocalDisk, UsageError
from gpuops.core.format import ago
from gpuops.core.home import can_write, home, owner
from gpuops.core.platform import obey_escapes, pass_over_current_folder
from gpuops.core.settings import Settings, Tables, load, load_leniently, surroundings
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES


class Needs(Enum):
    """What a command needs of gpuops' own folder."""

    CREATE = auto()
    """To write to it; it is made where it is absent."""
    LOOK = auto()
    """To read what is there: the folder may be absent or closed to writing."""


def make_context(
    *, as_json: bool = False, yes: bool = False, strict: bool = False, needs: Needs = Needs.CREATE
) -> tuple[Context, Settings]:
    """The Context of this command and the folder's settings.

    `strict`: an error in the folder's files raises UsageError. Commands that create something are strict; commands
    that look or end something print what cannot be read and go on.
    """
    folder = _here()
    obey_escapes()
    pass_over_current_folder(os.environ)
    out = Output(as_json=as_json)
    known = tables() if os.path.exists(folder / "gpuops.toml") else {}
    if strict:
        settings = load(folder, os.environ, known)
    else:
        settings, wrong = load_leniently(folder, os.environ, known)
        for sentence in wrong:
            out.say(f"note: {' '.join(sentence.splitlines())}")
    makes = needs is Needs.CREATE
    ours = home(os.environ, make=makes)
    signals = Signals(
        on_first=lambda: out.say("\ninterrupted: stopping in good order (again to hurry)"),
        on_second=lambda: out.say("\nhurrying: ending everything now"),
    )
    ctx = Context(
        home=ours,
        owner=owner(ours, make=makes),
        folder=folder,
        env=surroundings(settings, os.environ),
        out=out,
        signals=signals,
        services=SERVICES,
        read_only=not can_write(ours),
        yes=yes,
        dotenv=settings.dotenv,
        progress=progress_on(out, os.environ),
    )
    return ctx, settings


def _here() -> Path:
    """The current folder. Raises UsageError where it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        raise UsageError("the current folder does not exist any more", "go to your project's folder: cd …") from None


def tables() -> Tables:
    """The tables of `gpuops.toml`, and the name and type of each option in them."""
    from gpuops.cli.flags import LaunchFlags, MachineFlags, flag_types

    launch = flag_types(MachineFlags, LaunchFlags)
    return {"up": flag_types(MachineFlags), "train": launch, "run": launch}


def timings_result(ctx: Context, *, wanted: bool) -> tuple[dict[str, object], list[str]]:
    """Where the time went, for --json and for people; both empty unless --timings was typed."""
    if not wanted:
        return {}, []
    spent = ctx.progress.timings.spent()
    return {"timings": timings.document(spent)}, timings.lines(spent)


def report_news(ctx: Context, *, orphans: bool = True) -> None:
    """Print the ledger's notices and orphaned clusters, and start the guard where it is needed.

    A full disk or a ledger that another command holds is printed as a note; the command goes on. Where the home cannot
    be written, that is printed, and notices stay unread. `orphans`: whether to look for clusters that the ledger does
    not know. Raises LedgerTooNew.
    """
    if ctx.read_only and ctx.home.exists():
        ctx.out.say(f"note: {ctx.home} cannot be written: no guard is started, and what happens now is not noted there")
    if not (ctx.home / ledger.FILE).exists():  # no cluster was ever created, or the ledger was deleted
        if orphans:
            _report_orphans(ctx, lambda: ())
        return
    from gpuops.ledger.store import LedgerUnwritable

    steps = [] if ctx.read_only else [_report_notices, _ensure_guards]
    if orphans:
        steps.append(_report_unknown_to_ledger)
    problems = set()
    for step in steps:
        try:
            step(ctx)
        except (LedgerUnwritable, LocalDisk) as error:
            problems.add(error.message)
    for sentence in sorted(problems):
        ctx.out.say(f"note: {sentence}")


def report_new_home(ctx: Context) -> None:
    """Say so where nothing was ever brought up from this home: what is up may be another one's, or a lost one's."""
    if not ctx.owner:
        ctx.out.say(
            f"note: {ctx.home} is a new home, and knows of nothing that another one brought up: gpuops status --cloud"
        )


def _report_notices(ctx: Context) -> None:
    for at, say in ctx.ledger.take_notices():
        ctx.out.say(f"{ago(at)}: {say}")


def _ensure_guards(ctx: Context) -> None:
    for row in ctx.ledger.list_guarded():
        ctx.ensure_guard(row, waits=False)


def _report_unknown_to_ledger(ctx: Context) -> None:
    _report_orphans(ctx, lambda: [row.name for row in ctx.ledger.clusters()])


def _report_orphans(ctx: Context, live: Callable[[], Iterable[str]]) -> None:
    """Print the clusters that this computer has files of, and that are not among the `live` ones of the ledger."""
    from gpuops.clusters.home_files import find_unrecorded_clusters

    if names := find_unrecorded_clusters(ctx.home, live):
        ctx.out.say(
            f"note: {', '.join(names)} may still live, and the ledger does not know of it: "
            "`gpuops reap --adopt` takes back what does, `gpuops reap` ends it"
        )
