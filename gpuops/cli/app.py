"""The command tree as typer reads it. The module of a command, and its story, are imported when it is called."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import typer

from gpuops.cli.commands import COMMANDS, HEAD


def build(names: Iterable[str]) -> typer.Typer:
    """The tree with these commands alone: making all of them takes longer than most commands do."""
    app = typer.Typer(
        name="gpuops",
        help=HEAD,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    wanted = list(names)
    for module in dict.fromkeys(COMMANDS[name].module for name in wanted):
        import_module(f"gpuops.cli.{module}").register(app)
    app.registered_commands = [command for command in app.registered_commands if command.name in wanted]
    return app


def _root() -> None:
    pass  # `gpuops` alone, its help and its version are answered before typer is imported
