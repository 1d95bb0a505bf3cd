"""`doctor`: what would keep a run from going well, on this computer, at a provider, on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.context import Needs, make_context
from gpuops.cli.flags import Json
from gpuops.cli.help import NamesProvider, example_help
from gpuops.core.errors import UsageError

DOCTOR_HELP = example_help(
    "Say what would keep a run from going well, and what to do about it.\n\n"
    "Looks at this computer; at a provider's set-up, and at the hosts named; or at every node of a cluster, and "
    "at what is unlike between them. Changes nothing and leaves nothing behind.",
    "gpuops doctor",
    "gpuops doctor --python ~/env/bin/python",
    "gpuops doctor ssh --host alice@10.0.0.5 --host alice@10.0.0.6",
    "gpuops doctor slurm --host alice@login.hpc.example",
    "gpuops doctor lab --json",
)


def register(app: typer.Typer) -> None:
    their_own = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("doctor", cls=NamesProvider, help=DOCTOR_HELP, context_settings=their_own)(doctor)


def doctor(
    context: typer.Context,
    where: Annotated[
        str | None,
        typer.Argument(metavar="PROVIDER|NAME", help="A provider or a live cluster; without, this computer."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Examine this live cluster.", show_default=False)
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Judge this Python there.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    from gpuops.cli.request import count_named_machines, parse_provider_options
    from gpuops.commands.doctor import doctor as checks
    from gpuops.core.models import Request
    from provisioners import registry

    if cluster is not None and where is not None:
        raise UsageError("--cluster and a name exclude each other", f"leave out {where}, or --cluster")
    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK)
    if where is not None and where in registry.provider_names():
        options = parse_provider_options(ctx, where, context.args, "doctor")
        request = Request(where, nodes=count_named_machines(ctx, where, options), options=options)
        report = checks.check_provider(ctx, request, python or "")
    elif where is not None and where.startswith("-"):  # what nobody knows as an option counts as the first word
        raise UsageError(f"there is no option {where}", "a provider's own options follow its name: see --help")
    elif context.args:
        raise UsageError(f"'{context.args[0]}' is more than gpuops doctor takes", "see: gpuops doctor --help")
    elif (name := where if cluster is None else cluster) is None:
        report = checks.check_computer(ctx, python or "")
    else:
        report = checks.check_cluster(ctx, checks.find_live_cluster(ctx, name), python or "")
    ctx.out.result("doctor", report.document(), report.lines())
    if report.exit_code:
        raise typer.Exit(report.exit_code)
