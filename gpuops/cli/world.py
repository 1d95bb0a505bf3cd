"""Builds the surroundings of a command."""

from __future__ import annotations

import os
from pathlib import Path

from gpuops.output import Output, ago
from gpuops.settings import Settings, Tables, home, load, load_leniently, owner
from gpuops.signals import Signals
from gpuops.world import World


def make_world(*, as_json: bool = False, yes: bool = False, strict: bool = False) -> tuple[World, Settings]:
    """This command's world: its folder, home, environment joined with `.env`, voice.

    `strict`: what is wrong in the folder's files raises UsageError. It is for commands that bring something
    up; looking and ending go on with what can be read, and say what cannot.
    """
    folder = Path.cwd()
    out = Output(as_json=as_json)
    known = tables() if (folder / "gpuops.toml").exists() else {}
    if strict:
        settings = load(folder, os.environ, known)
    else:
        settings, wrong = load_leniently(folder, os.environ, known)
        for sentence in wrong:
            out.say(f"note: {sentence}")
    ours = home(os.environ)
    signals = Signals(
        on_first=lambda: out.say("\ninterrupted: stopping in good order (again to hurry)"),
        on_second=lambda: out.say("\nhurrying: ending everything now"),
    )
    world = World(
        home=ours,
        owner=owner(ours),
        folder=folder,
        env={**settings.env_values, **os.environ},
        out=out,
        signals=signals,
        yes=yes,
    )
    return world, settings


def tables() -> Tables:
    """What `gpuops.toml` may hold."""
    from gpuops.cli.flags import LaunchFlags, MachineFlags, keys

    launch = keys(MachineFlags, LaunchFlags)
    return {"up": keys(MachineFlags), "train": launch, "run": launch}


def greet(world: World) -> None:
    """Say what happened while nobody looked, and see that a guard is there for what is unfinished.

    A full disk or a ledger that another command holds is said, and keeps no command from its own work. Raises
    LedgerTooNew.
    """
    from gpuops.ledger import LedgerUnwritable

    if not (world.home / "ledger.db").exists():
        return
    said = set()
    for step in (_tell, _see_to_guard):
        try:
            step(world)
        except LedgerUnwritable as error:
            said.add(error.say)
        except OSError as error:
            said.add(f"the guard cannot be started: {error.strerror or error}")
    for sentence in sorted(said):
        world.out.say(f"note: {sentence}")


def _tell(world: World) -> None:
    for at, say in world.ledger.take_notices():
        world.out.say(f"{ago(at)}: {say}")


def _see_to_guard(world: World) -> None:
    from gpuops import guard

    if any(guard.wants_guard(world.ledger, row) for row in world.ledger.clusters()):
        guard.ensure(world.home)
