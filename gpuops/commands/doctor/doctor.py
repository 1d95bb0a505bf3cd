"""`gpuops doctor`: what is examined for this computer, for a provider and for a cluster, as one report each."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gpuops import ledger
from gpuops.clusters.selection import refuse_unfinished
from gpuops.commands.doctor.checks_computer import computer_findings
from gpuops.commands.doctor.examine import Place, examine_places, locate
from gpuops.commands.doctor.report import SETUP, Finding, Report, error, note, warning
from gpuops.core.context import Context
from gpuops.core.errors import NodeError, NodeRefused, ProviderError, RefusalKind, UsageError
from gpuops.core.format import money
from gpuops.core.models import Problem, Request, Resource
from gpuops.core.parallel import on_each
from gpuops.core.platform import HERE
from gpuops.core.provider import has_capability, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.gpu_shares import is_virtual
from gpuops.nodes.python import own_pythons
from gpuops.nodes.session import ENDED_KINDS, is_agent_removed, nodes_of, open_programs, suggest_giving_up
from gpuops.offers.billing_account import KEY_ORDER, find_payer, refuse_dotenv
from gpuops.transport.connect import connect
from gpuops.transport.connection import Connection, ProcessConnection
from gpuops.transport.nested import NestedConnection
from gpuops.transport.rpc import AgentClient
from provisioners import registry

COMPUTER = "this computer"


def check_computer(ctx: Context, python: str) -> Report:
    """Check this computer, as the place where gpuops is typed and as one that may train."""
    return Report(
        [*_check_user_setup(ctx), *examine_places(ctx, [_computer_place(ctx, python)] if HERE.local_nodes else [])]
    )


def check_provider(ctx: Context, request: Request, python: str) -> Report:
    """Check a provider's set-up, account and quotas, and its machines that exist before any cluster (hosts)."""
    provisioner = ctx.provisioner(request.provider)
    problems: list[Finding] = []
    try:
        problems = [_preflight_finding(problem) for problem in provisioner.preflight(request)]
        if not any(problem.level == "error" for problem in problems):
            problems += _quota_findings(ctx, request)
    except ProviderError as refused:
        problems = [error(SETUP, refused.message, refused.hint)]
    except UsageError:
        if not _list_hosts(ctx, request):
            raise
    if is_rented(provisioner):
        if not problems:
            problems = [_account_finding(ctx, request.provider)]
        problems += _payer_findings(ctx, request, named=not any(problem.level == "error" for problem in problems))
    if has_capability(provisioner, "shares_disk") and HERE.local_nodes:
        places = [_computer_place(ctx, python)]
    else:
        places = [_host_place(machine, python) for machine in _list_hosts(ctx, request)]
    found = [*problems, *_survey_findings(ctx, request)]
    # Of rented machines gpuops has its own key, and of others one may be named.
    needs_key = not (is_rented(provisioner) or request.options.get("identity"))
    here = _check_user_setup(ctx, needs_key=needs_key)
    return Report([*here, *locate(request.provider, found), *examine_places(ctx, places)])


def _preflight_finding(problem: Problem) -> Finding:
    """A problem that the provider's preflight found, as a finding."""
    if problem.note:
        return note("account", problem.say, problem.hint)
    if problem.fatal:
        return error(SETUP, problem.say, problem.hint)
    return warning(SETUP, problem.say, problem.hint)


def _survey_findings(ctx: Context, request: Request) -> list[Finding]:
    """What a site has, where the provider's machines belong to one; none where it cannot be asked, which the preflight
    has said."""
    try:
        facts = ctx.provisioner(request.provider).survey(request)
    except (ProviderError, NodeError):
        return []
    return [Finding("ok", fact.what, fact.say, fact.hint) for fact in facts]


def _account_finding(ctx: Context, provider: str) -> Finding:
    """The balance of an account without problems."""
    balance = (ctx.provisioner(provider).account() or {}).get("balance")
    money_left = "its balance is unknown" if balance is None else f"its balance is {money(balance)}"
    return note("account", f"the account answers; {money_left}", f"what there is: gpuops up {provider} --dry-run")


def _payer_findings(ctx: Context, request: Request, *, named: bool) -> list[Finding]:
    """Which account would pay, and a `.env` whose keys are not used."""
    paid = find_payer(ctx, request) if named else None
    notes = [note("account", f"what is rented here: {paid}", f"keys are looked for in this order: {KEY_ORDER}")]
    found = notes if paid else []
    try:
        refuse_dotenv(ctx, request.provider)
    except UsageError as refused:
        found.append(error(SETUP, refused.message, refused.hint))
    return found


def _quota_findings(ctx: Context, request: Request) -> list[Finding]:
    """An error where every quota of the account is 0, as for a new account. Raises ProviderError."""
    report = ctx.provisioner(request.provider).quota(request)
    if report is None or not report.quotas or any(quota.limit != 0 for quota in report.quotas):
        return []
    regions = ", ".join(dict.fromkeys(quota.region.partition("@")[0] for quota in report.quotas))
    say = f"all quotas of the account are 0 in {regions}: nothing can be rented there yet"
    return [error(SETUP, say, f"what to ask for: gpuops quota {request.provider}")]


def find_live_cluster(ctx: Context, name: str) -> ClusterRow:
    """The live cluster of that name. Raises UsageError."""
    rows = ctx.ledger.clusters() if (ctx.home / ledger.FILE).exists() else []
    for row in rows:
        if row.name == name:
            return row
    known = ", ".join([*registry.provider_names(), *(row.name for row in rows)])
    raise UsageError(f"'{name}' is no provider and no live cluster", f"there are: {known}")


def check_cluster(ctx: Context, row: ClusterRow, python: str) -> Report:
    """Check every machine of a live cluster, and the differences between them. Raises UsageError, NodeError."""
    machines = nodes_of(ctx, refuse_unfinished(row))
    if not machines:
        raise NodeError(f"{row.name} has no machines", f"gpuops down {row.name}")
    places = []
    for nodes in _group_by_machine(machines):
        first = machines[nodes[0]]
        programs = open_programs(row, first, nodes[0])
        here = first.data.get("connection") == "process"
        own = own_pythons(ctx) if here else []
        options = [*_options(python, own), "--node", programs.paths.node]
        where = ", ".join(f"node{index}" for index in nodes)
        places.append(
            Place(
                where,
                partial(_inside, programs.connection, first),
                programs.paths.python,
                not here,
                options,
                str(first.data.get("artefact", "")),
            )
        )
    findings = examine_places(ctx, places)
    if all(finding.what != "unreached" for finding in findings):
        return Report([*findings, *_check_agents(row, machines)])
    return Report([_suggest_giving_up(row, machines[0], finding) for finding in findings])


def _inside(outer: Connection, machine: Resource) -> Connection:
    """The machine itself, and not the login node that its job was submitted on."""
    inside = machine.data.get("inside_shell")
    return NestedConnection(outer, [str(word) for word in inside]) if inside else outer


def _check_agents(row: ClusterRow, machines: Sequence[Resource]) -> list[Finding]:
    """The nodes whose agent does not answer, and is not started again by the command that needs it: no run can start
    there, whatever their machines have."""

    def check(index: int) -> list[Finding]:
        programs = open_programs(row, machines[index], index)
        try:
            AgentClient(programs.connection, programs.paths).close()
        except NodeError as silent:
            kind = silent.kind if isinstance(silent, NodeRefused) else ""
            may_revive = kind == RefusalKind.NO_AGENT and machines[index].data.get("revives")
            comes_back = may_revive or is_agent_removed(machines[index], silent)
            if not (comes_back or (kind in ENDED_KINDS and is_virtual(machines[index]))):
                return locate(f"node{index}", [error("agent", silent.message, f"end it: gpuops down {row.name}")])
        finally:
            programs.connection.close()
        return []

    return [finding for found in on_each(check, range(len(machines))) for finding in found]


def _suggest_giving_up(row: ClusterRow, machine: Resource, finding: Finding) -> Finding:
    if finding.what != "unreached":
        return finding
    return dataclasses.replace(finding, hint=suggest_giving_up(row, machine, finding.hint))


def _group_by_machine(machines: Sequence[Resource]) -> list[list[int]]:
    """Node numbers by machine: virtual nodes share one, local nodes share this computer."""
    groups: dict[str, list[int]] = {}
    for index, machine in enumerate(machines):
        place = [machine.data.get("target"), machine.data.get("inside_shell")]
        groups.setdefault(json.dumps(place, sort_keys=True), []).append(index)
    return list(groups.values())


def _list_hosts(ctx: Context, request: Request) -> list[Resource]:
    return list(ctx.provisioner(request.provider).standing(request))


def _host_place(machine: Resource, python: str) -> Place:
    return Place(machine.region, lambda: connect(machine, 0), str(machine.data["python"]), options=_options(python))


def _computer_place(ctx: Context, python: str) -> Place:
    options = _options(python, own_pythons(ctx))
    return Place(COMPUTER, lambda: ProcessConnection(COMPUTER), sys.executable, reached=False, options=options)


def _options(python: str, first: Sequence[str] = ()) -> list[str]:
    return [*(["--python", python] if python else []), *(word for path in first for word in ("--first", path))]


def _check_user_setup(ctx: Context, *, needs_key: bool = True) -> list[Finding]:
    return locate(COMPUTER, computer_findings(ctx.home, ctx.env, Path.home(), needs_key=needs_key))
