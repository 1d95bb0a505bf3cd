"""`gpuops status`: live clusters by the ledger, or resources by the providers (`--cloud`): documents and tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError
from gpuops.core.format import money, plural, span, table
from gpuops.core.models import COSTLESS, Resource
from gpuops.core.parallel import on_each
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.gpu_shares import owner, with_virtual
from gpuops.offers.lease import describe_lease, money_spent
from gpuops.runs.logs.view import last_output_time

if TYPE_CHECKING:
    from gpuops.clusters.orphans import UncheckedProvider

NARROW_DROPS = ("$/H", "PROVIDER", "AGE")
"""Columns that a narrow terminal leaves out, in this order; names are typed again, so they are never cut."""
NARROW_DROPS_CLOUD = ("$/H", "KIND", "PROVIDER", "STATE")
"""The same for `--cloud`."""


def describe_clusters(ctx: Context) -> list[dict[str, Any]]:
    """One document per live cluster: the ledger's facts, and the state of its machines by their provider."""
    with ctx.progress.during("asking the nodes how they are"):
        return [_describe_cluster(ctx, row) for row in ctx.ledger.clusters()]


def _describe_cluster(ctx: Context, row: ClusterRow) -> dict[str, Any]:
    machines = [machine for machine in ctx.ledger.resources(row.id) if machine.kind == "machine"]
    seen = _describe_machines(ctx, row, machines)
    states = [one.state if one else "unknown" for one in seen]
    nodes = [states[owner(one, index)] for index, one in enumerate(with_virtual(machines))] if machines else []
    runs = [run for run in ctx.ledger.runs(cluster=row.id) if run.state in ("starting", "running")]
    now = time.time()
    per_hour = sum(machine.per_hour for machine in machines if machine.bills)
    return {
        "name": row.name,
        "provider": row.provider,
        "state": _cluster_state(row, nodes),
        "nodes": nodes,
        "virtual": len(nodes) - len(machines),
        "why_ended": {f"node{index}": say for index, one in enumerate(seen) if one and (say := _why_ended(one))},
        "urls": {
            f"node{index}": list(found)
            for index, one in enumerate(machines)
            if (found := one.data.get("urls")) and states[index] not in COSTLESS
        },
        "run": runs[-1].name if runs else None,
        "folder": str(row.folder),
        "created": row.created,
        "age_s": now - row.created,
        "ephemeral": row.ephemeral,
        "per_hour": per_hour,
        "spent": money_spent(per_hour, row.created, now),
        "hard_end": row.lease.end,
        "idle_s": row.lease.idle_s,
        "lease": describe_lease(row.lease, now, ephemeral=row.ephemeral),
        "doing": _describe_run(runs[-1], now) if runs else None,
    }


def _describe_run(run: RunRow, now: float) -> dict[str, Any]:
    """State of a live run. `silent_s`: seconds since its last byte was downloaded; None where there was none."""
    heard = last_output_time(run.home)
    return {
        "run": run.name,
        "state": run.state,
        "ranks": run.facts.get("world") if run.request["kind"] == "torchrun" else None,
        "for_s": now - (run.started or run.created),
        "silent_s": None if heard is None else max(0.0, now - heard),
    }


def _why_ended(machine: Resource) -> str:
    return machine.why_ended if machine.status.has_ended else ""


def _describe_machines(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> list[Resource | None]:
    """Each machine as its provider describes it; None where the provider does not answer."""
    try:
        provisioner = ctx.provisioner_of(row)
    except GpuopsError:  # the package that brings it is no longer installed
        return [None] * len(machines)

    def one(index: int) -> Resource | None:
        who = f"node{index} of {row.name}"
        ctx.progress.waits("no answer yet", who)
        try:
            return provisioner.describe(machines[index])
        except GpuopsError:
            return None
        finally:
            ctx.progress.waits("", who)

    return on_each(one, range(len(machines)))


def _cluster_state(row: ClusterRow, nodes: list[str]) -> str:
    """The ledger's state, corrected by the states of the machines."""
    if row.state == "up" and nodes and all(state in COSTLESS for state in nodes):
        return "ended"
    if row.state == "up" and nodes and all(state == "unknown" for state in nodes):
        return "out of reach"
    if row.state == "up" and any(state != "running" for state in nodes):
        return "partly up"
    return row.state


def cluster_lines(documents: list[dict[str, Any]], width: int | None = None) -> list[str]:
    """One table, and below it the live runs and the nodes that are not running; one sentence where nothing is up."""
    if not documents:
        return ["nothing is up"]
    rows = [_table_row(one) for one in documents]
    notes = [f"{one['name']}: {note}" for one in documents for note in _format_notes(one)]
    shown = [heading for heading in rows[0] if heading != "$/H" or any(one["per_hour"] for one in documents)]
    return [*table([shown, *([row[heading] for heading in shown] for row in rows)], width, spare=NARROW_DROPS), *notes]


def _table_row(document: dict[str, Any]) -> dict[str, str]:
    """One cluster's cells, by their headings."""
    per_hour = document["per_hour"]
    return {
        "NAME": document["name"],
        "PROVIDER": document["provider"],
        "NODES": str(len(document["nodes"])),
        "STATE": document["state"],
        "AGE": span(document["age_s"]),
        "$/H": money(per_hour) if per_hour else "-",
        "COST": money(document["spent"]) if per_hour else "free",
        "ENDS": _format_end(document),
    }


def _format_end(document: dict[str, Any]) -> str:
    """The next certain end, in a few words."""
    if document["hard_end"] is not None:
        return f"in {span(document['hard_end'] - document['created'] - document['age_s'])}"
    if document["idle_s"]:
        return f"{span(document['idle_s'])} idle"
    return "with its run" if document["ephemeral"] else "by hand"


def _format_notes(document: dict[str, Any]) -> Iterator[str]:
    """`digits-3 runs for 12:00 min on 4 ranks, last line 3 s ago`; `node1 does not answer`."""
    doing = document["doing"]
    if doing and doing["state"] == "starting":
        yield f"{doing['run']} is being prepared for {span(doing['for_s'])}"
    elif doing:
        ranks = f" on {plural(doing['ranks'], 'rank')}" if doing["ranks"] else ""
        silent = doing["silent_s"]
        last = "no line yet" if silent is None else f"last line {span(silent)} ago"
        yield f"{doing['run']} runs for {span(doing['for_s'])}{ranks}, {last}"
    if document["hard_end"] is not None and document["idle_s"]:
        yield f"ends after {span(document['idle_s'])} without use, too"
    if document["virtual"]:
        count, virtual = len(document["nodes"]), document["virtual"]
        machines = plural(count - virtual, "machine")
        yield f"{count} nodes on {machines}, {virtual} of them virtual"
    if document["state"] == "partly up":
        words = {"unknown": "does not answer", "ended": "has ended", "starting": "is starting", "leaving": "shuts down"}
        nodes = enumerate(document["nodes"])
        yield ", ".join(f"node{index} {words.get(state, state)}" for index, state in nodes if state != "running")
    for node, urls in (document.get("urls") or {}).items():
        yield from (f"{node} shows {url}" for url in urls)
    for node, why in (document.get("why_ended") or {}).items():
        yield f"{node} is gone: {why}"


def list_cloud(ctx: Context) -> tuple[list[dict[str, Any]], list[UncheckedProvider], list[UncheckedProvider]]:
    """Resources that the providers list with our mark, and whether the ledger knows each; providers that could not be
    asked; and providers that were not asked, being neither set up nor ever used. Works without a ledger."""
    from gpuops.clusters.orphans import find_resources, select_orphans

    idle: list[UncheckedProvider] = []
    found, unasked = find_resources(ctx, idle)
    strays = select_orphans(ctx, found)
    documents = [
        {
            "provider": stray.provider,
            "mark": stray.resource.name,
            "id": stray.resource.id,
            "kind": stray.resource.kind,
            "state": stray.resource.state,
            "per_hour": stray.resource.per_hour,
            "bills": stray.resource.bills,
            "known": stray not in strays,
        }
        for stray in found
    ]
    return documents, unasked, idle


def cloud_lines(
    documents: list[dict[str, Any]],
    width: int | None = None,
    unasked: Sequence[UncheckedProvider] = (),
    idle: Sequence[UncheckedProvider] = (),
) -> list[str]:
    """A table of the resources; where there is none, a sentence that tells which providers were asked."""
    if not documents:
        who = "no provider that is set up here" if idle else "no provider"
        return [*([] if unasked else [f"{who} lists anything of ours"]), *map(str, idle)]
    rows = [["MARK", "PROVIDER", "KIND", "STATE", "$/H", "IN THE LEDGER"]]
    for one in documents:
        rows.append(
            [
                one["mark"],
                one["provider"],
                one["kind"],
                one["state"],
                money(one["per_hour"]) if one["bills"] else "free",
                "yes" if one["known"] else "no",
            ]
        )
    lost = not all(one["known"] for one in documents)
    listed = table(rows, width, spare=NARROW_DROPS_CLOUD)
    return [*listed, *(["not in the ledger: `gpuops reap --adopt` takes it back, `gpuops reap` ends it"] * lost)]
