"""The receipt: what is printed when a run is over and its machines are gone, a line for each thing that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuops.core.format import first_few, money, plural, span
from gpuops.core.run_models import VerdictOutcome
from gpuops.sync.run_record import RunRecord, read_number

SHORT_HASH_CHARS = 10
MAX_HOSTS = 4
"""How many hosts a receipt names."""


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
    was_reclaimed: bool
    """Whether machines were taken back; otherwise they failed, or their time was over."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> RetryLoss:
        return cls(
            run=str(document.get("run") or ""),
            cluster=str(document.get("cluster") or ""),
            place=str(document.get("place") or ""),
            step=read_number(document.get("step")),
            steps_lost=read_number(document.get("steps_lost")),
            gap_s=read_number(document.get("gap_s")),
            cost=read_number(document.get("cost")) or 0.0,
            was_warned=bool(document.get("warned", True)),
            was_started=bool(document.get("started", True)),
            was_reclaimed=bool(document.get("reclaimed", True)),
        )


def format_receipt(record: RunRecord, bill: str = "") -> list[str]:
    """Lines for people. `bill`: what a cluster that stays up costs."""
    return [f"{label:<9}{text}" for label, text in receipt_rows(record, bill)]


def receipt_rows(record: RunRecord, bill: str = "") -> list[tuple[str, str]]:
    """What there is to say of a run, each with its label."""
    rows = [
        ("run", record.run),
        ("code", _format_code(record)),
        ("where", _format_place(record)),
        ("with", _format_versions(record)),
        ("time", _format_duration(record)),
        ("lost", _format_lost_steps(record)),
        ("cost", _format_cost(record)),
        ("bills", bill),
        ("results", record.home),
        ("report", record.report),
        ("kept", record.kept),
        ("not home", record.missing or ""),
        ("left", _format_left_behind(record)),
        *(("before", _format_loss(loss)) for loss in _losses(record)),
    ]
    return [(label, text) for label, text in rows if text]


def format_cost_without_run(cost: float) -> str:
    """The only line for a job that never had a run: its machines ended before."""
    return f"{'cost':<9}about {money(cost)}, for machines that went before there was a run"


def _losses(record: RunRecord) -> list[RetryLoss]:
    return [RetryLoss.parse(loss) for loss in record.facts.retries]


def _format_left_behind(record: RunRecord) -> str:
    names = record.left_behind
    return f"still on {record.cluster}: {names}; `gpuops down` brings them home" if names else ""


def _format_code(record: RunRecord) -> str:
    facts, version = record.facts, record.facts.text("gpuops")
    if workload := record.request.get("workload"):
        return (f"gpuops {version}, " if version else "") + f"workload {workload}"
    if not facts.text("commit"):
        return "no git commit"
    return f"commit {facts.text('commit')[:SHORT_HASH_CHARS]}" + (" with uncommitted changes" if facts.is_dirty else "")


def _format_place(record: RunRecord) -> str:
    """`2 nodes on runpod`; of hosts with names of their own, these."""
    count = plural(record.facts.nodes, "node") if record.facts.nodes else ""
    where = first_few(record.facts.hosts, MAX_HOSTS) or record.facts.text("provider")
    return " on ".join(filter(None, (count, where)))


def _format_versions(record: RunRecord) -> str:
    versions = ((name, record.facts.text(name)) for name in ("image", "torch", "driver"))
    return ", ".join(f"{name} {version}" for name, version in versions if version)


def _format_duration(record: RunRecord) -> str:
    parts = [span(record.duration_s)] if record.duration_s is not None else []
    if record.before_s is not None and record.is_rented:
        parts.append(f"{span(record.before_s)} billed before its launch")
    return "; ".join(parts)


def _format_lost_steps(record: RunRecord) -> str:
    """The steps that a preempted run lost since its newest snapshot."""
    progress = record.progress
    is_preempted = record.verdict is not None and record.verdict.outcome is VerdictOutcome.PREEMPTED
    if not is_preempted or not {"step", "saved"} <= set(progress):
        return ""
    saved, step = progress["saved"], progress["step"]
    if step <= saved:
        return f"nothing: its newest snapshot is of step {saved}"
    return f"{plural(step - saved, 'step')}: from {saved}, its newest snapshot's, to {step}"


def _format_cost(record: RunRecord) -> str:
    if not record.is_rented:
        return "free: this machine" if record.facts.text("provider") == "local" else ""
    if record.cost is None:
        return "not known"
    before = sum(loss.cost for loss in _losses(record))
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
        f"{loss.run} {'was reclaimed' if loss.was_reclaimed else 'lost its machines'}{place}{step}"
        if loss.was_started
        else (f"{loss.cluster} was lost{place} before its run began")
    )
    return what + (f": {', '.join(parts)}" if parts else "")
