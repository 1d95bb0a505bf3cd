"""The receipt: what is printed when a run is over and its machines are gone.

`RunRecord.parse` reads the fields of `run.json` once; `format_receipt` makes a line of each that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.format import money, plural, span
from gpuops.core.models import Payer
from gpuops.core.run_models import VerdictOutcome

SHORT_HASH_CHARS = 10


@dataclass(frozen=True)
class RetryLoss:
    """A preemption in the record of a job that was retried (`retries.Loss`)."""

    run: str
    cluster: str
    place: str
    step: int | None
    steps_lost: int | None
    gap_s: float | None
    """Seconds from the notice, or without one from the end, to the first new step."""
    cost: float
    """In $."""
    was_warned: bool
    was_started: bool
    """Whether there was a run."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> RetryLoss:
        return cls(
            run=str(document.get("run") or ""),
            cluster=str(document.get("cluster") or ""),
            place=str(document.get("place") or ""),
            step=document.get("step"),
            steps_lost=document.get("steps_lost"),
            gap_s=document.get("gap_s"),
            cost=float(document.get("cost") or 0.0),
            was_warned=bool(document.get("warned", True)),
            was_started=bool(document.get("started", True)),
        )


@dataclass(frozen=True)
class RunRecord:
    """What a receipt shows of `run.json`; empty or None: not known. How the run ended is for the verdict to say."""

    run: str
    workload: str
    version: str
    """Of gpuops."""
    commit: str
    """A git hash."""
    is_dirty: bool
    provider: str
    nodes: int
    image: str
    torch: str
    driver: str
    duration_s: float | None
    before_s: float | None
    """Seconds that were billed before the first step."""
    is_rented: bool
    payer: Payer | None
    cost: float | None
    """In $: an estimate until the provider bills."""
    home: str
    missing: str
    """A sentence on what was not brought home."""
    kept: str
    """A sentence on where else results are."""
    left_behind: str
    """Large files on the nodes that no pattern names."""
    cluster: str
    lost_steps: tuple[int, int] | None
    """The steps of the newest snapshot and of the end of a preempted run."""
    losses: Sequence[RetryLoss]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> RunRecord:
        def text(name: str) -> str:
            return str(document.get(name) or "")

        return cls(
            run=text("run"),
            workload=str((document.get("request") or {}).get("workload") or ""),
            version=text("gpuops"),
            commit=text("commit"),
            is_dirty=bool(document.get("dirty")),
            provider=text("provider"),
            nodes=document.get("nodes") or 0,
            image=text("image"),
            torch=text("torch"),
            driver=text("driver"),
            duration_s=document.get("duration_s"),
            before_s=document.get("before_s"),
            is_rented=bool(document.get("rented")),
            payer=_parse_payer(document.get("payer")),
            cost=document.get("cost"),
            home=text("home"),
            missing=text("missing"),
            kept=text("kept"),
            left_behind=text("left_behind"),
            cluster=text("cluster"),
            lost_steps=_parse_lost_steps(document),
            losses=[RetryLoss.parse(loss) for loss in document.get("retries") or ()],
        )


def _parse_payer(document: object) -> Payer | None:
    known = isinstance(document, Mapping) and {*document} == {"account", "source"}
    return Payer(**document) if known and isinstance(document, Mapping) else None


def _parse_lost_steps(document: Mapping[str, Any]) -> tuple[int, int] | None:
    progress = document.get("progress") or {}
    if (document.get("verdict") or {}).get("outcome") != VerdictOutcome.PREEMPTED or not {"step", "saved"} <= set(
        progress
    ):
        return None
    return progress["saved"], progress["step"]


def format_receipt(document: Mapping[str, Any]) -> list[str]:
    """Lines for people, from the document that `run.json` keeps and `--json` prints."""
    record = RunRecord.parse(document)
    rows = [
        ("run", record.run),
        ("code", _format_code(record)),
        ("where", _format_place(record)),
        ("with", _format_versions(record)),
        ("time", _format_duration(record)),
        ("lost", _format_lost_steps(record)),
        ("cost", _format_cost(record)),
        ("results", record.home),
        ("kept", record.kept),
        ("not home", record.missing),
        ("left", _format_left_behind(record)),
        *(("before", _format_loss(loss)) for loss in record.losses),
    ]
    return [f"{label:<9}{text}" for label, text in rows if text]


def format_cost_without_run(cost: float) -> str:
    """The only line for a job that never had a run: its machines ended before."""
    return f"{'cost':<9}about {money(cost)}, for machines that went before there was a run"


def _format_left_behind(record: RunRecord) -> str:
    names = record.left_behind
    return f"still on {record.cluster}: {names}; `gpuops down` brings them home" if names else ""


def _format_code(record: RunRecord) -> str:
    if record.workload:
        return (f"gpuops {record.version}, " if record.version else "") + f"workload {record.workload}"
    if not record.commit:
        return "no git commit"
    return f"commit {record.commit[:SHORT_HASH_CHARS]}" + (" with uncommitted changes" if record.is_dirty else "")


def _format_place(record: RunRecord) -> str:
    count = plural(record.nodes, "node") if record.nodes else ""
    return " on ".join(filter(None, (count, record.provider)))


def _format_versions(record: RunRecord) -> str:
    versions = (("image", record.image), ("torch", record.torch), ("driver", record.driver))
    return ", ".join(f"{name} {version}" for name, version in versions if version)


def _format_duration(record: RunRecord) -> str:
    parts = [span(record.duration_s)] if record.duration_s is not None else []
    if record.before_s is not None and record.is_rented:
        parts.append(f"{span(record.before_s)} billed before the first step")
    return "; ".join(parts)


def _format_lost_steps(record: RunRecord) -> str:
    """The steps that a preempted run lost since its newest snapshot."""
    if record.lost_steps is None:
        return ""
    saved, step = record.lost_steps
    if step <= saved:
        return f"nothing: its newest snapshot is of step {saved}"
    return f"{plural(step - saved, 'step')}: from {saved}, its newest snapshot's, to {step}"


def _format_cost(record: RunRecord) -> str:
    if not record.is_rented:
        return "free: this machine" if record.provider == "local" else ""
    if record.cost is None:
        return "not known"
    before = sum(loss.cost for loss in record.losses)
    more = f", {money(record.cost + before)} with what was reclaimed before" if before else ""
    return f"about {money(record.cost)}{more}" + (f", {record.payer}" if record.payer else "")


def _format_loss(loss: RetryLoss) -> str:
    """What a preemption cost: `toy-1 was reclaimed at step 120: 20 steps lost, 5:40 min …`."""
    parts = [] if loss.steps_lost is None else [f"{plural(loss.steps_lost, 'step')} lost"]
    if loss.gap_s is not None:
        since = "the notice" if loss.was_warned else "its end"
        parts.append(f"{span(loss.gap_s)} from {since} to the first new step")
    place = f" in {loss.place}" if loss.place else ""
    step = "" if loss.step is None else f" at step {loss.step}"
    what = (
        f"{loss.run} was reclaimed{place}{step}"
        if loss.was_started
        else (f"{loss.cluster} was lost{place} before its run began")
    )
    return what + (f": {', '.join(parts)}" if parts else "")
