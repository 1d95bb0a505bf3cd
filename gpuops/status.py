"""What is live, and until when: a table for people, a document for programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gpuops.errors import GpuopsError
from gpuops.lease import describe
from gpuops.ledger import ClusterRow
from gpuops.models import Resource
from gpuops.oneach import on_each
from gpuops.output import money, span, table
from gpuops.teardown import belonging
from gpuops.world import World


def look(world: World) -> list[dict[str, Any]]:
    """One document per live cluster: what the ledger says, and whether its machines are there."""
    return [_cluster(world, row) for row in world.ledger.clusters()]


def _cluster(world: World, row: ClusterRow) -> dict[str, Any]:
    machines = [machine for machine in world.ledger.resources(row.id) if machine.kind == "machine"]
    nodes = _states(world, row, machines)
    runs = [run for run in world.ledger.runs(cluster=row.id) if run.state in ("starting", "running")]
    now = time.time()
    return {
        "name": row.name,
        "provider": row.provider,
        "state": _state(row, nodes),
        "nodes": nodes,
        "run": runs[-1].name if runs else None,
        "folder": str(row.folder),
        "created": row.created,
        "age_s": now - row.created,
        "ephemeral": row.ephemeral,
        "per_hour": sum(machine.per_hour for machine in machines if machine.bills),
        "hard_end": row.lease.end,
        "idle_s": row.lease.idle_s,
        "lease": describe(row.lease, now),
    }


def _states(world: World, row: ClusterRow, machines: Sequence[Resource]) -> list[str]:
    """What its provider says of each machine; `unknown` where it says nothing."""
    try:
        provisioner = world.provisioner(row.provider)
    except GpuopsError:  # the package that brings it is no longer installed
        return ["unknown"] * len(machines)

    def one(machine: Resource) -> str:
        try:
            return provisioner.describe(machine).state
        except GpuopsError:
            return "unknown"

    return on_each(one, machines)


def _state(row: ClusterRow, nodes: list[str]) -> str:
    """The ledger's state, unless the machines tell another story."""
    if row.state == "up" and nodes and all(state == "ended" for state in nodes):
        return "ended"
    if row.state == "up" and nodes and all(state == "unknown" for state in nodes):
        return "out of reach"
    if row.state == "up" and any(state != "running" for state in nodes):
        return "partly up"
    return row.state


def lines(documents: list[dict[str, Any]]) -> list[str]:
    """One calm table; a sentence when there is nothing."""
    if not documents:
        return ["nothing is up"]
    rows = [["NAME", "PROVIDER", "NODES", "STATE", "RUN", "AGE", "$/H", "LEASE"]]
    for one in documents:
        rows.append(
            [
                one["name"],
                one["provider"],
                str(len(one["nodes"])),
                one["state"],
                one["run"] or "-",
                span(one["age_s"]),
                money(one["per_hour"]) if one["per_hour"] else "free",
                one["lease"],
            ]
        )
    return [*table(rows), *map(_missing, filter(_is_partly_up, documents))]


def _is_partly_up(document: dict[str, Any]) -> bool:
    return bool(document["state"] == "partly up")


def _missing(document: dict[str, Any]) -> str:
    """Which nodes of a cluster are not as they should be."""
    words = {"unknown": "does not answer", "ended": "has ended", "starting": "is starting"}
    nodes = enumerate(document["nodes"])
    away = [f"node{index} {words.get(state, state)}" for index, state in nodes if state != "running"]
    return f"{document['name']}: {', '.join(away)}"


def cloud(world: World) -> tuple[list[dict[str, Any]], list[str]]:
    """What the providers themselves list as ours, and whether the ledger knows it; works without a ledger."""
    from gpuops.ledger import LedgerTooNew
    from gpuops.reap import owned

    try:
        live = world.ledger.clusters()
    except LedgerTooNew:
        live = []
    found, unasked = owned(world)
    known = {(row.provider, row.name) for row in live}
    documents = [
        {
            "provider": stray.provider,
            "mark": stray.resource.name,
            "id": stray.resource.id,
            "kind": stray.resource.kind,
            "state": stray.resource.state,
            "per_hour": stray.resource.per_hour,
            "bills": stray.resource.bills,
            "known": (stray.provider, stray.cluster) in known
            and bool(belonging([stray.resource], world.owner, stray.cluster)),
        }
        for stray in found
    ]
    return documents, unasked


def cloud_lines(documents: list[dict[str, Any]]) -> list[str]:
    if not documents:
        return ["no provider lists anything of ours"]
    rows = [["MARK", "PROVIDER", "KIND", "STATE", "$/H", "IN THE LEDGER"]]
    for one in documents:
        rows.append(
            [
                one["mark"],
                one["provider"],
                one["kind"],
                one["state"],
                money(one["per_hour"]) if one["bills"] else "free",
                "yes" if one["known"] else "no: gpuops reap",
            ]
        )
    return table(rows)
