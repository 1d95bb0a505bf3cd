"""Scenarios on the resources that `create` made: journal, marks, list, describe, destroy. gpuops does not log in to
the nodes."""

from __future__ import annotations

import dataclasses
import re

from gpuops.clusters.owned_resources import select_by_tag
from gpuops.commands.prove.fault_injection import Announcement, ContractBroken, NotRunnable, RecordingJournal
from gpuops.commands.prove.sandbox import Sandbox, check_answer
from gpuops.commands.prove.shared_clusters import CreatedCluster, made
from gpuops.core.format import span
from gpuops.core.models import COSTLESS, Resource, ResourceState
from gpuops.ledger.store import LedgerJournal

TOKEN = re.compile(r"[A-Za-z0-9-]{1,48}")


def create(sandbox: Sandbox) -> str:
    """`create` returns all machines in node order, with our tag, and has written each effect into the journal."""
    cluster = made(sandbox)
    for resource in cluster.resources:
        check_answer("create", resource, Resource)
    machines = [resource for resource in cluster.resources if resource.is_machine]
    if len(machines) != cluster.offer.nodes:
        raise ContractBroken(
            f"create returned {len(machines)} machines for {cluster.offer.nodes} nodes: all or none is promised"
        )
    names = [machine.name for machine in machines]
    if names != [cluster.intent.mark(index) for index in range(len(names))]:
        raise ContractBroken(f"the machines are not in node order, or not named by Intent.mark: {_parts(names)}")
    if any(machine.bills != sandbox.rented for machine in machines):
        raise ContractBroken(
            f"a machine says bills={not sandbox.rented}, and its provider is {'' if sandbox.rented else 'not '}rented"
        )
    _check_journal(cluster)
    if sandbox.core.launches_apart_s > 0:
        _check_goes_on(sandbox, cluster)
    willed = sum(isinstance(line, Announcement) for line in cluster.spy.lines)
    return f"{len(machines)} in node order; {willed} intended before, {len(cluster.spy.lines) - willed} told after"


def _check_goes_on(sandbox: Sandbox, cluster: CreatedCluster) -> None:
    """Raises ContractBroken where a `create` that is told of everything as made already makes anything."""
    journal = RecordingJournal(LedgerJournal(sandbox.ctx.ledger, cluster.row.id))
    again = sandbox.create(cluster.offer, dataclasses.replace(cluster.intent, made=tuple(cluster.resources)), journal)
    if journal.lines or {one.id for one in again} != {one.id for one in cluster.resources}:
        raise ContractBroken("launches_apart_s is declared, and create makes again what Intent.made names")


def _check_journal(cluster: CreatedCluster) -> None:
    """Each effect lies between a `will` and a `got` that agree on kind, mark and region. Raises ContractBroken."""
    open_wills: list[Announcement] = []
    recorded = set()
    for line in cluster.spy.lines:
        if isinstance(line, Announcement):
            _check_will(cluster, line)
            open_wills.append(line)
            continue
        match = [will for will in open_wills if (will.kind, will.mark) == (line.kind, line.name)]
        if not match:
            raise ContractBroken(
                f"journal.got tells of a {line.kind} {_part(line.name)} that no journal.will had announced"
            )
        if line.region not in {will.region for will in match}:
            raise ContractBroken(
                f"{line.kind} {_part(line.name)} is in region '{line.region}', announced was '{match[0].region}'"
            )
        open_wills.remove(match[0])
        recorded.add((line.kind, line.id))
    if open_wills:
        raise ContractBroken(f"journal.got never told of {', '.join(_part(will.mark) for will in open_wills)}")
    if unrecorded := [resource for resource in cluster.resources if (resource.kind, resource.id) not in recorded]:
        raise ContractBroken(f"{_part(unrecorded[0].name)} is in the answer, and journal.got never told of it")


def _check_will(cluster: CreatedCluster, will: Announcement) -> None:
    prefix = cluster.intent.mark("")
    part = will.mark.removeprefix(prefix)
    if not will.mark.startswith(prefix) or not part or "-" in part:
        raise ContractBroken(f"'{will.mark}' is no mark as Intent.mark gives it")
    if not TOKEN.fullmatch(will.token) or not will.token.startswith(cluster.intent.token):
        raise ContractBroken("the token of a journal.will is not derived from Intent.token, or longer than 48")


def listing(sandbox: Sandbox) -> str:
    """`list_owned` shows every resource with our tag, asked by region and without one, and no other."""
    cluster = made(sandbox)
    for regions in ([], sandbox.ctx.ledger.regions(cluster.row.id)):
        if missing := _unlisted(sandbox, cluster, regions):
            asked = f"in {', '.join(regions)}" if regions else "everywhere"
            raise ContractBroken(f"asked {asked}, list_owned does not show {_parts(missing)}")
    listed = sandbox.list_resources()
    if strange := [item.name for item in listed if not item.name.startswith(f"gpuops-{sandbox.ctx.owner}-")]:
        raise ContractBroken(f"list_owned shows what does not carry our mark: '{strange[0]}'")
    for resource in select_by_tag(listed, sandbox.ctx.owner, cluster.row.name):
        if resource.is_machine and not resource.data.get("token"):
            raise ContractBroken(
                f"{_part(resource.name)} is listed without data['token']: gpuops could take an earlier one for it"
            )
        if not str(resource.data.get("token") or cluster.row.token).startswith(cluster.row.token):
            raise ContractBroken(
                f"data['token'] of {_part(resource.name)} is not its journal.will's: gpuops takes it for another's"
            )
    if len({(resource.kind, resource.id) for resource in listed}) != len(listed):
        raise ContractBroken("list_owned shows a thing twice")
    return f"all {len(cluster.resources)} are listed, by region and without; nothing without our mark is"


def _unlisted(sandbox: Sandbox, cluster: CreatedCluster, regions: list[str]) -> list[str]:
    """Marks of what was made and is still not listed after `settle_s`."""
    missing: list[str] = []

    def is_complete() -> bool:
        listed = {(resource.kind, resource.id) for resource in sandbox.list_resources(regions)}
        missing[:] = [resource.name for resource in cluster.resources if (resource.kind, resource.id) not in listed]
        return not missing

    sandbox.poll_until(sandbox.core.settle_s, is_complete)
    return missing


def describe(sandbox: Sandbox) -> str:
    """`describe` tells of the resource it is asked for, in a state that the contract knows."""
    cluster = made(sandbox)
    states = []
    for resource in cluster.resources:

        def ask(resource: Resource = resource) -> Resource | None:
            described: Resource = sandbox.ask("describe", resource)
            return described if described.state != ResourceState.ENDED else None

        described = sandbox.poll_until(sandbox.core.settle_s, ask)
        if described is None:
            raise ContractBroken(f"describe calls {_part(resource.name)} ended, and it was made just now")
        if (described.kind, described.id, described.name, described.region) != (
            resource.kind, resource.id, resource.name, resource.region,
        ):  # fmt: skip
            raise ContractBroken(
                f"asked for {_part(resource.name)}, describe tells of another: kind, id, name or region differ"
            )
        if not described.state or described.state not in [*ResourceState]:
            known = ", ".join(state for state in ResourceState if state)
            raise ContractBroken(f"describe says '{described.state}'; the contract knows {known}")
        states.append(f"{_part(resource.name)} {described.state}")
    return ", ".join(states)


def destroy(sandbox: Sandbox) -> str:
    """`destroy` asks for the end of all that it is given, and may be called for what is already gone."""
    cluster = made(sandbox)
    _end_at_one_asking(sandbox, cluster)
    if not sandbox.destroy_until_gone(cluster.row):
        left = _parts([resource.name for resource in sandbox.list_cluster_resources(cluster.row)])
        raise ContractBroken(f"destroy was asked for, and {span(sandbox.core.gone_s)} later {left} is still listed")
    for _ in range(2):
        sandbox.ask("destroy", cluster.resources)
    return "asked again and again, also for what was gone; nothing is listed"


def _end_at_one_asking(sandbox: Sandbox, cluster: CreatedCluster) -> None:
    """Raises ContractBroken where one `destroy` ends some of the machines that it is given, and not the others."""
    given = sandbox.list_cluster_resources(cluster.row)
    sandbox.ask("destroy", given)
    left: list[str] = []

    def is_over() -> bool:
        listed = sandbox.list_cluster_resources(cluster.row)
        left[:] = [resource.name for resource in listed if resource.is_machine and resource.state not in COSTLESS]
        return not left

    count = sum(resource.is_machine for resource in given)
    if not sandbox.poll_until(sandbox.core.gone_s, is_over) and len(left) < count:
        raise ContractBroken(
            f"destroy was given {count} machines, and {span(sandbox.core.gone_s)} later {_parts(left)} still runs: "
            "each is asked for in one call"
        )


def gone(sandbox: Sandbox) -> str:
    """`describe` calls what is gone ended."""
    cluster = made(sandbox)
    if sandbox.list_cluster_resources(cluster.row):
        raise NotRunnable("what it looks at was not ended")
    for resource in cluster.resources:
        described = sandbox.ask("describe", resource)
        if described.state != ResourceState.ENDED:
            raise ContractBroken(f"{_part(resource.name)} is gone, and describe calls it '{described.state}'")
    sandbox.end_cluster(cluster.row.name)
    return "what is gone is called ended"


def _part(mark: str) -> str:
    """The last part of a mark: records are published, and the owner's id stays out of them."""
    part = mark.rpartition("-")[2]
    return f"node{part}" if part.isdigit() else part or mark


def _parts(marks: list[str]) -> str:
    return ", ".join(_part(mark) for mark in marks)
