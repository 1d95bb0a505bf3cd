"""Scenarios on the resources that `create` made: journal, marks, list, describe, destroy. gpuops does not log in to
the nodes."""

from __future__ import annotations

import re

from gpuops.clusters.teardown import select_by_tag
from gpuops.commands.prove.faults import Announcement, ContractBroken, NotRunnable
from gpuops.commands.prove.sandbox import Sandbox, check_answer
from gpuops.commands.prove.shared_clusters import CreatedCluster, made
from gpuops.core.format import span
from gpuops.core.models import STATES, Resource

TOKEN = re.compile(r"[A-Za-z0-9-]{1,48}")


def create(sandbox: Sandbox) -> str:
    one = made(sandbox)
    for resource in one.resources:
        check_answer("create", resource, Resource)
    machines = [resource for resource in one.resources if resource.kind == "machine"]
    if len(machines) != one.offer.nodes:
        raise ContractBroken(
            f"create returned {len(machines)} machines for {one.offer.nodes} nodes: all or none is promised"
        )
    names = [machine.name for machine in machines]
    if names != [one.intent.mark(index) for index in range(len(names))]:
        raise ContractBroken(f"the machines are not in node order, or not named by Intent.mark: {_parts(names)}")
    if any(machine.bills != sandbox.rented for machine in machines):
        raise ContractBroken(
            f"a machine says bills={not sandbox.rented}, and its provider is {'' if sandbox.rented else 'not '}rented"
        )
    _check_journal(one)
    willed = sum(isinstance(line, Announcement) for line in one.spy.lines)
    return f"{len(machines)} in node order; {willed} intended before, {len(one.spy.lines) - willed} told after"


def _check_journal(one: CreatedCluster) -> None:
    """Each effect lies between a `will` and a `got` that agree on kind, mark and region. Raises ContractBroken."""
    open_wills: list[Announcement] = []
    told = set()
    for line in one.spy.lines:
        if isinstance(line, Announcement):
            _check_will(one, line)
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
        told.add((line.kind, line.id))
    if open_wills:
        raise ContractBroken(f"journal.got never told of {', '.join(_part(will.mark) for will in open_wills)}")
    if untold := [resource for resource in one.resources if (resource.kind, resource.id) not in told]:
        raise ContractBroken(f"{_part(untold[0].name)} is in the answer, and journal.got never told of it")


def _check_will(one: CreatedCluster, will: Announcement) -> None:
    prefix = one.intent.mark("")
    part = will.mark.removeprefix(prefix)
    if not will.mark.startswith(prefix) or not part or "-" in part:
        raise ContractBroken(f"'{will.mark}' is no mark as Intent.mark gives it")
    if not TOKEN.fullmatch(will.token) or not will.token.startswith(one.intent.token):
        raise ContractBroken("the token of a journal.will is not derived from Intent.token, or longer than 48")


def listing(sandbox: Sandbox) -> str:
    one = made(sandbox)
    for regions in ([], sandbox.ctx.ledger.regions(one.row.id)):
        if missing := _unlisted(sandbox, one, regions):
            asked = f"in {', '.join(regions)}" if regions else "everywhere"
            raise ContractBroken(f"asked {asked}, list_owned does not show {_parts(missing)}")
    found = sandbox.list_resources()
    if strange := [one.name for one in found if not one.name.startswith(f"gpuops-{sandbox.ctx.owner}-")]:
        raise ContractBroken(f"list_owned shows what does not carry our mark: '{strange[0]}'")
    for seen in select_by_tag(found, sandbox.ctx.owner, one.row.name):
        if not str(seen.data.get("token") or one.row.token).startswith(one.row.token):
            raise ContractBroken(
                f"data['token'] of {_part(seen.name)} is not its journal.will's: gpuops takes it for another's"
            )
    if len({(seen.kind, seen.id) for seen in found}) != len(found):
        raise ContractBroken("list_owned shows a thing twice")
    return f"all {len(one.resources)} are listed, by region and without; nothing without our mark is"


def _unlisted(sandbox: Sandbox, one: CreatedCluster, regions: list[str]) -> list[str]:
    """Marks of what was made and is still not listed after `settle_s`."""
    missing: list[str] = []

    def all_there() -> bool:
        found = {(seen.kind, seen.id) for seen in sandbox.list_resources(regions)}
        missing[:] = [made.name for made in one.resources if (made.kind, made.id) not in found]
        return not missing

    sandbox.poll_until(sandbox.core.settle_s, all_there)
    return missing


def describe(sandbox: Sandbox) -> str:
    one = made(sandbox)
    states = []
    for resource in one.resources:

        def look(resource: Resource = resource) -> Resource | None:
            seen: Resource = sandbox.ask("describe", resource)
            return seen if seen.state != "ended" else None

        seen = sandbox.poll_until(sandbox.core.settle_s, look)
        if seen is None:
            raise ContractBroken(f"describe calls {_part(resource.name)} ended, and it was made just now")
        if (seen.kind, seen.id, seen.name, seen.region) != (
            resource.kind, resource.id, resource.name, resource.region,
        ):  # fmt: skip
            raise ContractBroken(
                f"asked for {_part(resource.name)}, describe tells of another: kind, id, name or region differ"
            )
        if seen.state not in STATES:
            raise ContractBroken(f"describe says '{seen.state}'; the contract knows {', '.join(STATES)}")
        states.append(f"{_part(resource.name)} {seen.state}")
    return ", ".join(states)


def destroy(sandbox: Sandbox) -> str:
    one = made(sandbox)
    if not sandbox.destroy_until_gone(one.row):
        left = _parts([resource.name for resource in sandbox.list_cluster_resources(one.row)])
        raise ContractBroken(f"destroy was asked for, and {span(sandbox.core.gone_s)} later {left} is still listed")
    for _ in range(2):
        sandbox.ask("destroy", one.resources)
    return "asked again and again, also for what was gone; nothing is listed"


def gone(sandbox: Sandbox) -> str:
    one = made(sandbox)
    if sandbox.list_cluster_resources(one.row):
        raise NotRunnable("what it looks at was not ended")
    for resource in one.resources:
        seen = sandbox.ask("describe", resource)
        if seen.state != "ended":
            raise ContractBroken(f"{_part(resource.name)} is gone, and describe calls it '{seen.state}'")
    sandbox.end_cluster(one.row.name)
    return "what is gone is called ended"


def _part(mark: str) -> str:
    """The last part of a mark: records are published, and the owner's id stays out of them."""
    part = mark.rpartition("-")[2]
    return f"node{part}" if part.isdigit() else part or mark


def _parts(marks: list[str]) -> str:
    return ", ".join(_part(mark) for mark in marks)
