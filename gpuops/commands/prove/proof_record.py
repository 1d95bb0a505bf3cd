"""The record of a proof: one dated JSON document. Each of docs/verified/ has its row in docs/verified.md."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuops import __version__
from gpuops.commands.prove.scenarios import SCENARIOS, Outcome, Result
from gpuops.core.errors import LocalDisk, UsageError
from gpuops.core.format import SCHEMA
from gpuops.core.models import Offer, Request

KIND = "proof"


@dataclass(frozen=True)
class ScenarioRecord:
    name: str
    says: str
    """The promise, in one clause."""
    outcome: Outcome
    said: str
    """What was seen, or why it was not run."""
    seconds: float
    cost: float
    """Dollars."""


@dataclass(frozen=True)
class BalanceRecord:
    """Dollars that the account had; None where the provider does not say."""

    before: float | None
    after: float | None


@dataclass(frozen=True)
class ProofRecord:
    """One proof. Its fields are the keys of the JSON document.

    Nothing in it names this computer, its user or a machine's address, unless the provider's own words for its offer
    do.
    """

    provider: str
    gpuops: str
    """The version."""
    date: str
    """When it began, in UTC."""
    client: str
    machine: str
    nodes: int
    per_hour: float
    """Dollars, all nodes together."""
    spend: float
    """The limit in dollars."""
    scenarios: list[ScenarioRecord]
    seconds: float
    cost: float
    """Dollars by our own count."""
    balance: BalanceRecord
    left: list[str]
    """Tags of what the provider still lists."""
    exit_code: int

    def document(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    def count_outcomes(self) -> str:
        """`15 proven, 1 not guaranteed`."""
        outcomes = [scenario.outcome for scenario in self.scenarios]
        return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in Outcome if outcome in outcomes)


def make_record(
    request: Request, offer: Offer, results: Sequence[Result], *, began: float, ended: float, spend: float,
    balance: BalanceRecord, left: Sequence[str], exit_code: int,
) -> ProofRecord:  # fmt: skip
    """The record of a proof that ran from `began` to `ended` (UTC seconds)."""
    says = {scenario.name: scenario.says for scenario in SCENARIOS}
    return ProofRecord(
        provider=request.provider,
        gpuops=__version__,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        client=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        machine=offer.say,
        nodes=request.nodes,
        per_hour=offer.per_hour,
        spend=spend,
        scenarios=[
            ScenarioRecord(
                result.name,
                says[result.name],
                result.outcome,
                result.said,
                seconds=round(result.seconds, 1),
                cost=round(result.cost, 6),
            )
            for result in results
        ],
        seconds=round(ended - began, 1),
        cost=round(sum(result.cost for result in results), 6),
        balance=balance,
        left=list(left),
        exit_code=exit_code,
    )


def check_free(path: Path) -> None:
    """Raises UsageError where a record could not be written, before anything is spent."""
    if path.exists():
        raise UsageError(f"{path} exists already", "name a new file with --record")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the record", f"make it: mkdir -p {path.parent}")


def save(path: Path, record: ProofRecord) -> None:
    """Write the record to a new file. Raises LocalDisk."""
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, "kind": KIND, **record.document()}, file, indent=1)
            file.write("\n")
    except OSError as error:
        raise LocalDisk(
            f"the record cannot be written to {path}: {error.strerror}", "it is printed with --json"
        ) from error
