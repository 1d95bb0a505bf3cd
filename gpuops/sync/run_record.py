"""The record of a run: what `run.json` holds, `--json` prints, and the receipt is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from gpuops.core.format import SCHEMA
from gpuops.core.models import MachineEnd, Payer
from gpuops.core.run_models import Verdict
from gpuops.ledger.rows import RunFacts

MAX_NUMBER = 1e15
"""A larger number in a record is damaged."""


@dataclass(frozen=True)
class RunRecord:
    """Times are UTC seconds by this computer's clock. None, or empty: not known, as after a damaged `run.json`."""

    run: str = ""
    verdict: Verdict | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    """As `RunRequest.document` gives it."""
    cluster: str = ""
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    duration_s: float | None = None
    before_s: float | None = None
    """Seconds that were billed before `started`, the launch."""
    cost: float | None = None
    """In $: an estimate until the provider bills."""
    payer: Payer | None = None
    is_rented: bool = False
    home: str = ""
    report: str = ""
    """The page about the run; empty where it was not made."""
    missing: str | None = None
    """A sentence on what was not brought home; empty where everything was."""
    facts: RunFacts = field(default_factory=RunFacts)
    """The ledger's facts, and whatever else is in `run.json`: keys that this gpuops does not know survive."""
    nodes_ended: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By a node's index: `outcome` and `reason` of its result, as it sent them."""
    kept: str = ""
    """A sentence on where else results are."""
    left_behind: str = ""
    """Large files on the nodes that no pattern names."""
    progress: Mapping[str, int] = field(default_factory=dict)
    """How far the program says it got (`verdict.read_progress`)."""
    in_bucket: Sequence[int] | None = None
    """Nodes whose results could only be in the bucket when the run was judged once more."""

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "verdict": self.verdict and self.verdict.document(),
            "request": dict(self.request),
            "cluster": self.cluster,
            "created": self.created,
            "started": self.started,
            "ended": self.ended,
            "duration_s": self.duration_s,
            "before_s": self.before_s,
            "cost": self.cost,
            "payer": self.payer and asdict(self.payer),
            "rented": self.is_rented,
            "home": self.home,
            "report": self.report,
            "missing": self.missing,
            **self.facts,
            "nodes_ended": self.nodes_ended,
            "kept": self.kept,
            "left_behind": self.left_behind,
            "progress": self.progress,
            **({} if self.in_bucket is None else {"in_bucket": self.in_bucket}),
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> RunRecord:
        """The record of a JSON form. What is not as it should be counts as not known."""

        def text(name: str) -> str:
            return str(document.get(name) or "")

        def number(name: str) -> float | None:
            value: float | None = read_number(document.get(name))
            return value

        def mapping(name: str) -> Mapping[str, Any]:
            value = document.get(name)
            return value if isinstance(value, Mapping) else {}

        missing, in_bucket = document.get("missing"), document.get("in_bucket")
        return cls(
            run=text("run"),
            verdict=_parse_verdict(document.get("verdict")),
            request=mapping("request"),
            cluster=text("cluster"),
            created=number("created"),
            started=number("started"),
            ended=number("ended"),
            duration_s=number("duration_s"),
            before_s=number("before_s"),
            cost=number("cost"),
            payer=Payer.parse(document.get("payer")),
            is_rented=bool(document.get("rented")),
            home=text("home"),
            report=text("report"),
            missing=missing if isinstance(missing, str) else None,
            facts=_parse_facts(document),
            nodes_ended={index: one for index, one in mapping("nodes_ended").items() if isinstance(one, Mapping)},
            kept=text("kept"),
            left_behind=text("left_behind"),
            progress={name: step for name, step in mapping("progress").items() if read_number(step) is not None},
            in_bucket=in_bucket if isinstance(in_bucket, list) else None,
        )

    def with_retries(self, losses: Sequence[Mapping[str, Any]]) -> RunRecord:
        """The same with what is known of the preemptions before it."""
        return replace(self, facts=RunFacts({**self.facts, "retries": losses}))

    def machine_end(self, node: int) -> MachineEnd:
        """Whether a node was preempted, as the first judgement knew it; its provider cannot be asked any more."""
        reason = self.nodes_ended.get(str(node), {}).get("reason")
        known = reason if isinstance(reason, Mapping) else {}
        return MachineEnd(preempted=bool(known.get("reclaimed")), by=str(known.get("by") or ""))


KEYS = {"schema", "rented", *(one.name for one in fields(RunRecord))} - {"is_rented", "facts"}
"""Keys of `run.json` that are no facts of the ledger."""


def read_number(value: Any) -> Any:
    """A number that can be shown; None for anything else, and for one that is infinite, or none."""
    return value if isinstance(value, int | float) and abs(value) < MAX_NUMBER else None


def _parse_facts(document: Mapping[str, Any]) -> RunFacts:
    facts = RunFacts({name: value for name, value in document.items() if name not in KEYS})
    if read_number(facts.get("nodes")) is None:
        facts.pop("nodes", None)
    if (losses := facts.pop("retries", None)) and isinstance(losses, list):
        facts["retries"] = [loss for loss in losses if isinstance(loss, Mapping)]
    return facts


def _parse_verdict(document: object) -> Verdict | None:
    try:
        return Verdict.parse(document)
    except (KeyError, TypeError, ValueError):
        return None
