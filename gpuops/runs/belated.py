"""Results of a run that was concluded without them: its nodes were gone, and a bucket could not be asked then."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import NodeError
from gpuops.core.format import plural
from gpuops.core.reporting import Progress
from gpuops.ledger.store import RunRow
from gpuops.runs.finish import request_of
from gpuops.runs.follow import lost
from gpuops.runs.verdict import judge, node_result, resume_hint
from gpuops.sync import RunHome, archive, sinks
from gpuops.sync.restore import outputs
from gpuops.sync.run_folder import read_json

SAFE = {"state": "safe"}


def is_awaited(row: RunRow) -> bool:
    """Whether something of a concluded run can only be in its bucket."""
    return row.state == "home" and bool(row.facts.get("in_bucket")) and archive.is_kept(row)


def fetch(ctx: Context, row: RunRow, progress: Progress) -> None:
    """Bring home what is in the bucket, and judge the run by it. Raises NodeError, ProviderError, LocalDisk."""
    request = request_of(row)
    place = str(row.facts["bucket"]["place"])
    told = {int(index): result for index, result in (row.facts.get("told") or {}).items()}
    asked = [index for index in range(request.nodes) if index not in told]
    brought, errors = archive.bring(ctx, row, asked, progress)
    results = {**told, **{index: _with_sink(one.result, one) for index, one in brought.items() if one.result}}
    if errors and brought:
        ctx.ledger.set_run(row.id, facts={**row.facts, **_known(results, request.nodes)})
    for error in errors:
        raise error
    silent = [index for index in range(request.nodes) if index not in results]
    if not results:
        raise NodeError(
            f"nothing that {row.name} left is in {place}", "its nodes ended before they had sent it: see its logs"
        )
    gone = {index: lost(index, f"node{index} kept nothing", "gone", _taken(row, index)) for index in silent}
    _judge(ctx, row, {**gone, **results}, missing=archive.lacking(brought), silent=silent)


def before_resuming(ctx: Context, row: RunRow) -> None:
    """The same for a run that goes on from it: from what is home, where there is nothing more to be had.

    Raises ProviderError, and NodeError where nothing is home either.
    """
    try:
        fetch(ctx, row, ctx.progress)
    except NodeError as error:
        if not outputs(RunHome(row.home)):
            raise
        ctx.out.say(f"note: {error.say}; going on from what is home")


def _with_sink(result: Mapping[str, Any], one: archive.Brought) -> Mapping[str, Any]:
    """What a node told, and what its archive tells: not all may be in it, also when it is not fetched once more."""
    why = f"{plural(one.missing, 'file')} could not be kept"
    return {**result, "sink": {"state": "failed", "why": why} if one.missing else SAFE}


def _taken(row: RunRow, index: int) -> dict[str, Any]:
    """That a node's provider took it back, as was known when the run was judged first: nobody can ask it any more."""
    ends = read_json(RunHome(row.home).path / "run.json").get("nodes_ended") or {}
    reason = (ends.get(str(index)) or {}).get("reason") or {}
    return {name: reason[name] for name in ("reclaimed", "by") if name in reason}


def _known(results: Mapping[int, Mapping[str, Any]], nodes: int) -> dict[str, Any]:
    """For the next time: what need not be fetched again."""
    silent = [index for index in range(nodes) if index not in results]
    told = {str(index): {"sink": SAFE, **result} for index, result in results.items()}
    return {"in_bucket": silent, "told": told if silent else {}}


def _judge(
    ctx: Context, row: RunRow, results: Mapping[int, Mapping[str, Any]], missing: str, silent: list[int]
) -> None:
    request, home = request_of(row), RunHome(row.home)
    skews = row.facts.get("skews") or [0.0] * request.nodes
    nodes = [node_result(index, dict(results[index]), skews[index]) for index in sorted(results)]
    again = resume_hint(row.name, saved=bool(outputs(home)))
    verdict = judge(request, int(row.facts.get("world", 0)), nodes, again, row.name)
    names = ", ".join(f"node{index}" for index in silent)
    states = {index: result.get("sink") or SAFE for index, result in results.items() if index not in silent}
    home.write_record(
        {
            **read_json(home.path / "run.json"),
            "verdict": dataclasses.asdict(verdict),
            "missing": "; ".join(filter(None, [f"{names} kept nothing" if names else "", missing])),
            "kept": sinks.outcome(request, row.name, states, range(request.nodes), str(row.facts["bucket"]["place"])),
            "in_bucket": silent,
            "nodes_ended": {
                str(index): {key: result[key] for key in ("outcome", "reason")} for index, result in results.items()
            },
        }
    )
    known = {index: result for index, result in results.items() if index not in silent}
    facts = {**row.facts, **_known(known, request.nodes)}
    ctx.ledger.set_run(row.id, verdict=dataclasses.asdict(verdict), facts=facts)
    ctx.out.say(f"{row.name}: {verdict.say}")
