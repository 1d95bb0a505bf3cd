"""`quota`: how much an account may have at once, whether a request fits, and asking for more."""

from __future__ import annotations

from dataclasses import make_dataclass, replace
from typing import Annotated, Any, get_type_hints

import typer

from gpuops.cli import completion
from gpuops.cli.context import make_context
from gpuops.cli.flags import Json, MachineFlags, Yes, with_flags
from gpuops.cli.help import NamesProvider, example_help
from gpuops.core.errors import UsageError

QUOTA_HELP = example_help(
    "Show what an account may have at once, whether a request fits, and ask for more.\n\n"
    "Says what runs today, where there is room, and the smallest increase that would do. Exit code 3 where what is "
    "asked for does not fit; a quota that may not be read counts as unknown, and refuses nothing.",
    "gpuops quota aws",
    "gpuops quota aws --gpus 4 --nodes 2 --spot",
    "gpuops quota aws --gpus 4 --spot --region all",
    "gpuops quota aws --gpus 4 --nodes 2 --spot --request 96",
    "gpuops quota aws --watch",
)
SIZE_FLAGS = ("nodes", "gpus", "gpu_type", "gpu_mem", "region")
HINTS = get_type_hints(MachineFlags, include_extras=True)
QuotaFlags = make_dataclass("Sought", [(name, HINTS[name], None) for name in SIZE_FLAGS])
QUOTA_MAX = 1_000_000


def register(app: typer.Typer) -> None:
    their_own = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("quota", cls=NamesProvider, help=QUOTA_HELP, context_settings=their_own)(quota)


@with_flags(QuotaFlags)
def quota(
    sought: Any,
    context: typer.Context,
    provider: Annotated[
        str, typer.Argument(metavar="PROVIDER", help="Whose account.", autocompletion=completion.providers)
    ],
    spot: Annotated[
        bool | None, typer.Option("--spot/--on-demand", help="Interruptible machines, or not.", show_default=False)
    ] = None,
    wanted: Annotated[
        int | None, typer.Option("--request", metavar="N", help="Ask for so much in all.", show_default=False)
    ] = None,
    code: Annotated[
        str | None, typer.Option(metavar="CODE", help="Of which quota, where several would do.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Report until open requests are decided.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    from gpuops.cli.request import machine_request, parse_provider_options
    from gpuops.offers import quota as quotas
    from gpuops.offers import quota_output

    if provider.startswith("-"):
        raise UsageError(f"there is no option {provider}", "the provider comes first: gpuops quota aws")
    if wanted is not None and not 0 < wanted <= QUOTA_MAX:
        raise UsageError(f"--request {wanted} is no quota", "--request takes the new total, a number above 0")
    if code is not None and wanted is None:
        raise UsageError("--code says of which quota more is asked for", "add --request N, or leave it out")
    ctx, _ = make_context(as_json=as_json, yes=yes)
    options = parse_provider_options(ctx, provider, context.args, "quota")
    request = machine_request(provider, MachineFlags(**vars(sought), spot=bool(spot)), options)
    report = quotas.read_quotas(ctx, request)
    for note in report.notes:
        ctx.out.say(f"note: {note}")
    outcome = quota_output.Outcome(report)
    if wanted is None:
        increases = quotas.open_increases(report)
    else:
        result = quotas.request_increase(ctx, request, report, wanted, code, market_given=spot is not None)
        outcome = replace(outcome, filed=result.filed, messages=result.messages)
        increases = result.open_increases
    if watch and increases:
        for line in outcome.messages:
            ctx.out.say(line)
        outcome = replace(outcome, watched=quotas.watch_increases(ctx, provider, increases))
    elif watch:
        ctx.out.say("no request for more is open")
    lines = quota_output.format_lines(outcome, ctx.clock.now(), ctx.out.columns(ctx.out.out))
    ctx.out.result(quota_output.KIND, quota_output.build_document(provider, outcome), lines)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)
