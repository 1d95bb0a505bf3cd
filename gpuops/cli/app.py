"""The command tree. Importing it imports typer and nothing heavier; each command imports its story when called."""

from __future__ import annotations

import typer

from gpuops.cli import clusters, files, launch, login, look

app = typer.Typer(
    name="gpuops",
    help="A PyTorch script to N rented GPU nodes, and everything home, with one command.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
) -> None:
    if version:
        from gpuops import __version__

        print(f"gpuops {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def command_names() -> list[str]:
    """Every command, as typed."""
    return [str(command.name) for command in app.registered_commands]


for module in (clusters, launch, look, files, login):
    module.register(app)
