"""`prove`: the contract of a provisioner, run against the real thing."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from gpuops.cli.context import make_context, report_news
from gpuops.cli.flags import Json, MachineFlags, Yes, with_flags
from gpuops.cli.help import NamesProvider, example_help
from gpuops.core.errors import LocalDisk, UsageError, worst_exit_code
from gpuops.core.typed_paths import typed_path

PROVE_HELP = example_help(
    "Show with real machines that a provider keeps what gpuops promises.\n\nIt makes, loses, kills and ends "
    "machines of the cheapest kind, says beforehand what that costs, and ends everything it made.",
    "gpuops prove local --nodes 2",
    "gpuops prove ssh --host alice@10.0.0.5",
    "gpuops prove local --record local.json",
)


def register(app: typer.Typer) -> None:
    their_own = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("prove", cls=NamesProvider, help=PROVE_HELP, context_settings=their_own)(prove)


LEASE_FLAGS = ("max_hours", "max_cost", "idle")
"""Nothing is kept, so that there is no lease to shape."""
HINTS = get_type_hints(MachineFlags, include_extras=True)
ProveFlags = make_dataclass("Wanted", [(name, hint, None) for name, hint in HINTS.items() if name not in LEASE_FLAGS])


@with_flags(ProveFlags)
def prove(
    wanted: Any,
    context: typer.Context,
    provider: Annotated[str, typer.Argument(metavar="PROVIDER", help="Who rents or owns the machines.")],
    spend: Annotated[float, typer.Option(metavar="$", help="What it may cost in all.")] = 0.10,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the record there.", show_default=False)
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    from gpuops.cli.request import count_named_machines, machine_request, parse_provider_options
    from gpuops.commands.prove import proof_record
    from gpuops.commands.prove.prove import prove as run_proof

    if not 0 < spend < float("inf"):
        raise UsageError(f"--spend {spend:g} is no limit that can be kept", "--spend takes a number above 0")
    named = {word.partition("=")[0] for word in context.args}
    for flag in (f"--{name.replace('_', '-')}" for name in LEASE_FLAGS):
        if flag in named:
            raise UsageError(f"{flag} has no meaning here: nothing is kept", f"leave out {flag}; --spend is the limit")
    if record is not None:
        typed_path("--record", str(record), Path())  # refused before anything is rented
        record = record.expanduser()
        proof_record.check_free(record)
    ctx, _ = make_context(as_json=as_json, yes=yes, strict=True)
    options = parse_provider_options(ctx, provider, context.args, "prove")
    request = machine_request(
        provider, MachineFlags(**vars(wanted)), options, count_named_machines(ctx, provider, options)
    )
    report_news(ctx)
    with ctx.signals:
        proof = run_proof(ctx, request, spend)
    ctx.out.result(proof_record.KIND, proof.record.document(), [])
    for line in proof.last:
        ctx.out.say(line)
    code = proof.exit_code
    if record is not None:
        try:
            proof_record.save(record, proof.record)
            ctx.out.say(f"the record is in {record}")
        except LocalDisk as error:  # told here: with --json it would be a second document
            ctx.out.say(f"error: {error.message}\nhint: {error.hint}")
            code = worst_exit_code(code, error.exit_code)
    if code:
        raise typer.Exit(code)
