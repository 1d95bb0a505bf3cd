"""`ssh` and `forward`: going to a node by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import make_context, report_news
from gpuops.cli.help import MayTakeCommand, example_help, passed_words
from gpuops.core.errors import UsageError

SSH_HELP = example_help(
    "Open a shell on a node, in the project's folder.\n\nOr run one command there: its exit code is passed on.",
    "gpuops ssh",
    "gpuops ssh lab --node 1",
    "gpuops ssh lab -- nvidia-smi",
    "gpuops ssh lab -- 'pwd; ls'",
    "gpuops ssh --all-nodes -- nvidia-smi",
)
FORWARD_HELP = example_help(
    "Open a port of a node on this computer.\n\nSuch as TensorBoard's or a notebook's; Ctrl-C ends it.",
    "gpuops forward 6006",
    "gpuops forward lab 8888 --node 1",
)
Node = Annotated[int, typer.Option(help="Which node.")]
NodeOrAll = Annotated[int | None, typer.Option(help="Which node; without, node0.", show_default=False)]
PORTS = range(1, 65536)


def register(app: typer.Typer) -> None:
    app.command("ssh", cls=MayTakeCommand, help=SSH_HELP)(ssh)
    app.command("forward", help=FORWARD_HELP)(forward)


def ssh(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Which cluster; without, this folder's.", autocompletion=completion.clusters
        ),
    ] = None,
    node: NodeOrAll = None,
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Run the command on every node, such as `-- nvidia-smi`.")
    ] = False,
) -> None:
    from gpuops.commands import ssh as ssh_command
    from gpuops.commands.ssh_all_nodes import run_on_all_nodes

    command = passed_words() or []
    if all_nodes and node is not None:
        raise UsageError("--all-nodes and --node exclude each other", "leave out one of them")
    if all_nodes and not command:
        raise UsageError(
            "there is no command for all nodes", "write it behind `--`: gpuops ssh --all-nodes -- nvidia-smi"
        )
    ctx, _ = make_context()
    report_news(ctx)
    if all_nodes:
        code = run_on_all_nodes(ctx, *ssh_command.pick_nodes(ctx, name, "ssh"), command)
    else:
        row, machine = ssh_command.pick_node(ctx, name, node or 0, "ssh")
        code = ssh_command.open_shell(ctx, row, machine, node or 0, command)
    if code:
        raise typer.Exit(code)


def forward(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] PORT",
            help="Which cluster (this folder's), and the port.",
            autocompletion=completion.clusters,
        ),
    ],
    node: Node = 0,
    local: Annotated[
        int | None, typer.Option("--local", metavar="PORT", help="Another port here.", show_default=False)
    ] = None,
) -> None:
    from gpuops.commands import ssh as ssh_command

    if len(words) > 2:
        raise UsageError(f"'{words[2]}' is more than gpuops forward takes", "write it like: gpuops forward lab 6006")
    name = words[0] if len(words) == 2 else None
    port = _port(words[-1])
    here = port if local is None else _port(str(local))
    ctx, _ = make_context()
    report_news(ctx)
    row, machine = ssh_command.pick_node(ctx, name, node, "forward")
    code = ssh_command.forward(ctx, row, machine, node, port, here)
    if code:
        raise typer.Exit(code)


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) not in PORTS:
        raise UsageError(f"'{text}' is no port", "write it like: gpuops forward 6006")
    return int(text)
