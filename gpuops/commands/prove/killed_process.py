"""The process that the scenario `killed` starts: it creates a cluster and is killed before the ledger knows of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.commands.prove.fault_injection import KillingJournal
from gpuops.commands.prove.sandbox import Sandbox
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError
from gpuops.core.models import Request
from gpuops.core.reporting import LogReporter
from gpuops.core.settings import load_leniently, surroundings
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES
from gpuops.ledger.store import LedgerJournal


def make_context(home: Path, owner: str) -> Context:
    """This process's Context, with the keys of the project's `.env` as every command has them."""
    folder = Path.cwd()
    settings, _ = load_leniently(folder, os.environ, {})
    return Context(
        home=home,
        owner=owner,
        folder=folder,
        env=surroundings(settings, os.environ),
        out=LogReporter(sys.stderr),
        signals=Signals(),
        services=SERVICES,
        dotenv=settings.dotenv,
    )


def main(question: Mapping[str, Any]) -> int:
    """`question`: `home` and `owner` of the ledger, and the `cluster` (its id) to create. Returns an exit code where
    the process was not killed."""
    ctx = make_context(Path(question["home"]), question["owner"])
    row = ctx.ledger.cluster(question["cluster"])
    sandbox = Sandbox(ctx, Request(**row.request))
    try:
        sandbox.ask("preflight", sandbox.request)
        sandbox.create_first(
            sandbox.list_offers()[0], sandbox.make_intent(row), KillingJournal(LedgerJournal(ctx.ledger, row.id))
        )
    except GpuopsError as error:
        ctx.out.say(f"{error.message}; {error.hint}")
        return error.exit_code
    ctx.out.say("create told of no machine")
    return 1


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
