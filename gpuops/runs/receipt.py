"""What is printed when a run is over and its machines are gone: what it ran, its time, its cost and its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.core.format import money, plural, span
from gpuops.core.models import Payer

SHORT_HASH_CHARS = 10


def format_receipt(record: Mapping[str, Any]) -> list[str]:
    """Lines for people, from the record that `--json` prints as it is; what is not known is left out.

    Read are: `run`, `request` (with `workload`), `gpuops` (its version), `commit` (a git hash), `dirty`,
    `provider`, `nodes`, `image`, `torch`, `driver`, `duration_s` and `before_s` (seconds billed before the
    first step), `rented`, `payer` (`account` and `source`), `cost` ($, an estimate until the provider bills), `home` (a
    path), `missing` (a sentence about what was not brought home), `kept` (one about where else results are), and of a
    reclaimed run `progress`.
    How the run ended is for the verdict to say.
    """
    rows = [
        ("run", str(record.get("run") or "")),
        ("code", _format_code(record)),
        ("where", _format_place(record)),
        ("with", _format_versions(record)),
        ("time", _format_time(record)),
        ("lost", _format_lost_steps(record)),
        ("cost", _format_cost(record)),
        ("results", str(record.get("home") or "")),
        ("kept", str(record.get("kept") or "")),
        ("not home", str(record.get("missing") or "")),
        ("left", _format_left_behind(record)),
        *(("before", line) for line in _format_retries(record)),
    ]
    return [f"{label:<9}{text}" for label, text in rows if text]


def format_cost_without_run(cost: float) -> str:
    """The only line for a job that never had a run: its machines ended before."""
    return f"{'cost':<9}about {money(cost)}, for machines that went before there was a run"


def _format_left_behind(record: Mapping[str, Any]) -> str:
    """Large files that no pattern names, on a cluster that stays."""
    names = record.get("left_behind")
    return f"still on {record.get('cluster')}: {names}; `gpuops down` brings them home" if names else ""


def _format_code(record: Mapping[str, Any]) -> str:
    workload, commit = (record.get("request") or {}).get("workload"), record.get("commit")
    if workload:
        version = record.get("gpuops")
        return (f"gpuops {version}, " if version else "") + f"workload {workload}"
    if not commit:
        return "no git commit"
    return f"commit {commit[:SHORT_HASH_CHARS]}" + (" with uncommitted changes" if record.get("dirty") else "")


def _format_place(record: Mapping[str, Any]) -> str:
    nodes, provider = record.get("nodes"), record.get("provider")
    count = plural(nodes, "node") if nodes else ""
    return " on ".join(part for part in (count, provider) if part)


def _format_versions(record: Mapping[str, Any]) -> str:
    known = [(name, record.get(name)) for name in ("image", "torch", "driver")]
    return ", ".join(f"{name} {value}" for name, value in known if value)


def _format_time(record: Mapping[str, Any]) -> str:
    duration, before = record.get("duration_s"), record.get("before_s")
    parts = [span(duration)] if duration is not None else []
    if before is not None and record.get("rented"):
        parts.append(f"{span(before)} billed before the first step")
    return "; ".join(parts)


def _format_lost_steps(record: Mapping[str, Any]) -> str:
    """The steps that a preempted run lost since its newest snapshot."""
    got = record.get("progress") or {}
    if (record.get("verdict") or {}).get("outcome") != "reclaimed" or not {"step", "saved"} <= set(got):
        return ""
    steps = max(0, got["step"] - got["saved"])
    if not steps:
        return f"nothing: its newest snapshot is of step {got['saved']}"
    return f"{plural(steps, 'step')}: from {got['saved']}, its newest snapshot's, to {got['step']}"


def _format_cost(record: Mapping[str, Any]) -> str:
    if not record.get("rented"):
        return "free: this machine" if record.get("provider") == "local" else ""
    cost = record.get("cost")
    if cost is None:
        return "not known"
    before = sum(float(one.get("cost") or 0.0) for one in record.get("retries") or ())
    more = f", {money(cost + before)} with what was reclaimed before" if before else ""
    return f"about {money(cost)}{more}{_format_payer(record)}"


def _format_payer(record: Mapping[str, Any]) -> str:
    payer = record.get("payer")
    return f", {Payer(**payer)}" if isinstance(payer, Mapping) and {*payer} == {"account", "source"} else ""


def _format_retries(record: Mapping[str, Any]) -> list[str]:
    """What each retry cost: `toy-1 was reclaimed at step 120: 20 steps lost, 5:40 min …`."""
    lines = []
    for loss in record.get("retries") or ():
        lost, gap = loss.get("steps_lost"), loss.get("gap_s")
        parts = [] if lost is None else [f"{plural(lost, 'step')} lost"]
        since = "the notice" if loss.get("warned", True) else "its end"
        parts += [] if gap is None else [f"{span(gap)} from {since} to the first new step"]
        at = "" if loss.get("step") is None else f" at step {loss['step']}"
        place = f" in {loss['place']}" if loss.get("place") else ""
        began = loss.get("started", True)
        what = f"{loss['run']} was reclaimed" if began else f"{loss['cluster']} was lost"
        at = at if began else " before its run began"
        lines.append(f"{what}{place}{at}" + (f": {', '.join(parts)}" if parts else ""))
    return lines
