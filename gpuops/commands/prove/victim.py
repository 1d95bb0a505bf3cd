"""A command that is killed on purpose: it creates what the ledger intends, and dies before it can tell of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.commands.prove.faults import Fatal
from gpuops.commands.prove.sandbox import Bench
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError
from gpuops.core.models import Request
from gpuops.core.reporting import LogReporter
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES
from gpuops.ledger.store import LedgerJournal


def main(question: Mapping[str, Any]) -> int:
    """`{"home", "owner", "cluster"}`: the ledger's, owned by this process. Returns where it was not killed."""
    ctx = Context(home=Path(question["home"]), owner=question["owner"], folder=Path.cwd(), env=os.environ,
                  out=LogReporter(sys.stderr), signals=Signals(), services=SERVICES)  # fmt: skip
    row = ctx.ledger.cluster(question["cluster"])
    bench = Bench(ctx, Request(**row.request))
    try:
        bench.ask("preflight", bench.request)
        bench.create(bench.offers()[0], bench.intent(row), Fatal(LedgerJournal(ctx.ledger, row.id)))
    except GpuopsError as error:
        ctx.out.say(f"{error.say}; {error.hint}")
        return error.exit_code
    ctx.out.say("create told of no machine")
    return 1


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
