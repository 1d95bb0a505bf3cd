"""Builds the surroundings of a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuops.cli.terminal.output import Output
from gpuops.cli.terminal.progress import progress_on
from gpuops.core.context import Context
from gpuops.core.errors import UsageError
from gpuops.core.format import ago
from gpuops.core.platform import obey_escapes, pass_over_current_folder
from gpuops.core.settings import Settings, Tables, home, load, load_leniently, owner, surroundings
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES


def make_context(*, as_json: bool = False, yes: bool = False, strict: bool = False) -> tuple[Context, Settings]:
    """This command's world: its folder, home, environment joined with `.env`, voice.

    `strict`: what is wrong in the folder's files raises UsageError. It is for commands that bring something
    up; looking and ending go on with what can be read, and say what cannot.
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
    ours = home(os.environ)
    signals = Signals(
        on_first=lambda: out.say("\ninterrupted: stopping in good order (again to hurry)"),
        on_second=lambda: out.say("\nhurrying: ending everything now"),
    )
    ctx = Context(
        home=ours,
        owner=owner(ours),
        folder=folder,
        env=surroundings(settings, os.environ),
        out=out,
        signals=signals,
        services=SERVICES,
        yes=yes,
        dotenv=settings.dotenv,
        progress=progress_on(out, os.environ),
    )
    return ctx, settings


def _here() -> Path:
    """The current folder. Raises UsageError where somebody has removed it."""
    try:
        return Path.cwd()
    except OSError:
        raise UsageError("the current folder is not there any more", "go to your project's folder: cd …") from None


def tables() -> Tables:
    """What `gpuops.toml` may hold."""
    from gpuops.cli.flags import LaunchFlags, MachineFlags, keys

    launch = keys(MachineFlags, LaunchFlags)
    return {"up": keys(MachineFlags), "train": launch, "run": launch}


def report_news(ctx: Context, *, lost: bool = True) -> None:
    """Say what happened while nobody looked, and see that a guard is there for what is unfinished.

    A full disk or a ledger that another command holds is said, and keeps no command from its own work. Raises
    LedgerTooNew.
    """
    if not (ctx.home / "ledger.db").exists():  # nothing was ever brought up, or somebody removed it
        return _tell_lost(ctx, lambda: ()) if lost else None
    from gpuops.ledger.store import LedgerUnwritable

    said = set()
    for step in (_tell, _see_to_guard, *([_tell_lost_of_ledger] * lost)):
        try:
            step(ctx)
        except LedgerUnwritable as error:
            said.add(error.say)
        except OSError as error:
            said.add(f"the guard cannot be started: {error.strerror or error}")
    for sentence in sorted(said):
        ctx.out.say(f"note: {sentence}")
    return None


def _tell(ctx: Context) -> None:
    for at, say in ctx.ledger.take_notices():
        ctx.out.say(f"{ago(at)}: {say}")


def _see_to_guard(ctx: Context) -> None:
    if ctx.ledger.is_guard_wanted():
        ctx.ensure_guard()


def _tell_lost_of_ledger(ctx: Context) -> None:
    _tell_lost(ctx, lambda: [row.name for row in ctx.ledger.clusters()])


def _tell_lost(ctx: Context, live: Callable[[], Iterable[str]]) -> None:
    """What this computer has names or nodes of, and its ledger does not know."""
    from gpuops.clusters.orphans import orphans

    if names := orphans(ctx.home, live):
        ctx.out.say(
            f"note: {', '.join(names)} may still live, and the ledger does not know of it: "
            "`gpuops reap --adopt` takes back what does, `gpuops reap` ends it"
        )
