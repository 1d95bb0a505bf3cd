"""`policy`: the least that a provider must allow gpuops to do, to be pasted there."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import make_context
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help
from gpuops.core.errors import UsageError

POLICY_HELP = example_help(
    "Print the least that an account must allow for what gpuops does.\n\n"
    "Nobody is asked, and no credentials are needed.",
    "gpuops policy aws > policy.json",
    "gpuops policy aws --sink s3://my-bucket/runs",
)


def register(app: typer.Typer) -> None:
    app.command("policy", help=POLICY_HELP)(policy)


def policy(
    provider: Annotated[
        str, typer.Argument(metavar="PROVIDER", help="Whose account.", autocompletion=completion.providers)
    ],
    sink: Annotated[
        str, typer.Option(metavar="WHERE", help="Also for results that are kept there.", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    ctx, _ = make_context(as_json=as_json)
    document = ctx.provisioner(provider).policy(sink)
    if document is None:
        raise UsageError(f"{provider} grants access as a whole", "there is nothing to be allowed piece by piece")
    ctx.out.result("policy", {"provider": provider, "policy": document}, [json.dumps(document, indent=2)])
