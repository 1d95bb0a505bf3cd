"""The record of a proof: one dated JSON document, and its row in docs/verified.md."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuops import __version__
from gpuops.commands.prove.scenarios import SCENARIOS, Result
from gpuops.core.errors import LocalDisk, UsageError
from gpuops.core.format import SCHEMA
from gpuops.core.models import Offer, Request

KIND = "proof"


def make_document(
    request: Request, offer: Offer, results: Sequence[Result], *, began: float, ended: float, spend: float,
    balance: tuple[float | None, float | None], left: Sequence[str], exit_code: int,
) -> dict[str, Any]:  # fmt: skip
    """Times are UTC seconds. Nothing in it names this computer, its user or a machine's address, unless the
    provider's own words for its offer do."""
    says = {scenario.name: scenario.says for scenario in SCENARIOS}
    return {
        "provider": request.provider,
        "gpuops": __version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "client": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "machine": offer.say,
        "nodes": request.nodes,
        "per_hour": offer.per_hour,
        "spend": spend,
        "scenarios": [
            {
                "name": one.name,
                "says": says[one.name],
                "outcome": one.outcome,
                "said": one.said,
                "seconds": round(one.seconds, 1),
                "cost": round(one.cost, 6),
            }
            for one in results
        ],
        "seconds": round(ended - began, 1),
        "cost": round(sum(one.cost for one in results), 6),
        "balance": dict(zip(("before", "after"), balance, strict=True)),
        "left": list(left),
        "exit_code": exit_code,
    }


def check_free(path: Path) -> None:
    """Raises UsageError where a record could not be written, before anything is spent."""
    if path.exists():
        raise UsageError(f"{path} exists already", "name a new file with --record")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the record", f"make it: mkdir -p {path.parent}")


def save(path: Path, record: Mapping[str, Any]) -> None:
    """Raises LocalDisk."""
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, "kind": KIND, **record}, file, indent=1)
            file.write("\n")
    except OSError as error:
        raise LocalDisk(
            f"the record cannot be written to {path}: {error.strerror}", "it is printed with --json"
        ) from error


def count_outcomes(record: Mapping[str, Any]) -> str:
    """`15 proven, 1 not guaranteed`."""
    outcomes = [one["outcome"] for one in record["scenarios"]]
    kinds = ("proven", "not guaranteed", "failed", "skipped")
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in kinds if kind in outcomes)


def table_row(record: Mapping[str, Any], where: str, file: str) -> str:
    """A row of the table in docs/verified.md. `where`: on what, in the words of whoever ran it."""
    cost = f"${record['cost']:.4f}" if record["per_hour"] else "free"
    cells = [record["provider"], record["date"][:10], record["gpuops"], where, count_outcomes(record), cost]
    return f"| {' | '.join(cells)} | [{file}](verified/{file}) |"
