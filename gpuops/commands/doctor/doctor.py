"""`gpuops doctor`: run a checkup on this computer, a provider's machines or a cluster's nodes, and judge the facts.

A checkup sends the agent, runs its mode `checkup` and deletes it again; no agent has to live there.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuops.commands.doctor.checks_gpu import gpu_findings
from gpuops.commands.doctor.checks_host import host_findings
from gpuops.commands.doctor.computer import computer_findings
from gpuops.commands.doctor.differences import BETWEEN, differences
from gpuops.commands.doctor.report import SETUP, Checkup, Finding, Report, error, note, summarize, warning
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, NodeError, ProviderError, UsageError
from gpuops.core.format import money
from gpuops.core.models import Problem, Request, Resource
from gpuops.core.parallel import on_each
from gpuops.core.platform import HERE
from gpuops.core.provider import has_capability, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap
from gpuops.nodes.python import own_pythons
from gpuops.nodes.session import nodes_of, open_programs
from gpuops.offers.billing_account import KEY_ORDER, find_payer, refuse_tracked
from gpuops.transport.bulk import exchange
from gpuops.transport.connection import Connection, ProcessConnection
from gpuops.transport.dial import connect
from provisioners import registry
from provisioners.checked import CheckedProvisioner

CHECKUP_SILENCE_TIMEOUT_S = 60.0
"""Seconds without a byte from a checkup; each of its probes has a shorter limit of its own."""
CLOCK_TIMEOUT_S = 20.0
CHECKUP_SCRIPT = r"""
umask 077
for base in /dev/shm "${TMPDIR:-/tmp}" "$HOME"; do
    dir=$(mktemp -d "$base/gpuops.XXXXXX" 2>/dev/null) && break
done
[ -n "$dir" ] || { cat >/dev/null; echo "no folder there can be written" >&2; exit 1; }
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$dir/checkup.pyz" || exit 1
python=$1
shift
"$python" -I "$dir/checkup.pyz" checkup "$@" </dev/null
"""
"""/dev/shm comes first, so that a full disk can still be examined."""
TIME_MAX_S = 253_402_300_799.0
"""The end of the year 9999, in UTC seconds."""
CLOCK_PROGRAM = "import time; print(time.time())"


def run_checkup(connection: Connection, where: str, python: str, options: Sequence[str], *, reached: bool) -> Checkup:
    """Run the checkup over a connection. `reached`: gpuops logged in there. Raises NodeError where the place is
    unreachable or its answer cannot be read."""
    argv = ["sh", "-c", CHECKUP_SCRIPT, "sh", python, *(["--login"] if reached else []), *options]
    said = exchange(
        connection.open(argv), where, bootstrap.pack_zip(bootstrap.agent_sources()), CHECKUP_SILENCE_TIMEOUT_S
    )
    return Checkup(
        where, _parse_facts(said, where), reached, _measure_clock(connection, where, python) if reached else None
    )


def _parse_facts(said: bytes, where: str) -> Mapping[str, Any]:
    from gpuops.transport import schemas

    try:
        facts = schemas.parsed(said)
        if facts["schema"] == 1:
            return dict(facts)
    except (ValueError, KeyError, TypeError):
        pass  # raised below
    raise ConnectionLost(
        f"what {where} answers to a checkup cannot be read", "look at what its shell prints at a login"
    )


def _measure_clock(connection: Connection, where: str, python: str) -> tuple[float, float]:
    """Bounds of the seconds to add to the place's clock to get ours: its time was read between our two."""
    before = time.time()
    said = exchange(connection.open([python, "-I", "-c", CLOCK_PROGRAM]), where, silence_s=CLOCK_TIMEOUT_S)
    after = time.time()
    try:
        its = float(said)
        if not 0 <= its <= TIME_MAX_S:
            raise ValueError(its)
    except ValueError:
        raise ConnectionLost(f"{where} does not say what time it is", "try again") from None
    return before - its, after - its


COMPUTER = "this computer"


@dataclass(frozen=True)
class Place:
    """A place to examine, and how to connect to it."""

    where: str
    connect: Callable[[], Connection]
    python: str
    """The Python that runs the checkup there."""
    reached: bool = True
    options: Sequence[str] = ()
    artefact: str = ""


def check_computer(ctx: Context, python: str) -> Report:
    """Check this computer, as the place where gpuops is typed and as one that may train."""
    return Report(
        [*_check_user_setup(ctx), *_examine_places(ctx, [_computer_place(ctx, python)] if HERE.local_nodes else [])]
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
        problems = [error(SETUP, refused.say, refused.hint)]
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
    return Report([*_check_user_setup(ctx), *_locate(request.provider, problems), *_examine_places(ctx, places)])


def _preflight_finding(problem: Problem) -> Finding:
    """A problem that the provider's preflight found, as a finding."""
    if problem.note:
        return note("account", problem.say, problem.hint)
    if problem.fatal:
        return error(SETUP, problem.say, problem.hint)
    return warning(SETUP, problem.say, problem.hint)


def _account_finding(ctx: Context, provider: str) -> Finding:
    """The balance of an account without problems."""
    provisioner = ctx.provisioner(provider)
    account = provisioner.account() if isinstance(provisioner, CheckedProvisioner) else None
    balance = (account or {}).get("balance")
    money_left = "its balance is unknown" if balance is None else f"its balance is {money(balance)}"
    return note("account", f"the account answers; {money_left}", f"what there is: gpuops up {provider} --dry-run")


def _payer_findings(ctx: Context, request: Request, *, named: bool) -> list[Finding]:
    """Which account would pay, and a `.env` whose keys are not used."""
    paid = find_payer(ctx, request) if named else None
    notes = [note("account", f"what is rented here: {paid}", f"keys are looked for in this order: {KEY_ORDER}")]
    found = notes if paid else []
    try:
        refuse_tracked(ctx.folder)
    except UsageError as refused:
        found.append(error(SETUP, refused.say, refused.hint))
    return found


def _quota_findings(ctx: Context, request: Request) -> list[Finding]:
    """An error where every quota of the account is 0, as for a new account. Raises ProviderError."""
    provisioner = ctx.provisioner(request.provider)
    report = provisioner.quota(request) if isinstance(provisioner, CheckedProvisioner) else None
    if report is None or not report.quotas or any(quota.limit != 0 for quota in report.quotas):
        return []
    regions = ", ".join(dict.fromkeys(quota.region.partition("@")[0] for quota in report.quotas))
    say = f"all quotas of the account are 0 in {regions}: nothing can be rented there yet"
    return [error(SETUP, say, f"what to ask for: gpuops quota {request.provider}")]


def find_live_cluster(ctx: Context, name: str) -> ClusterRow:
    """The live cluster of that name. Raises UsageError."""
    rows = ctx.ledger.clusters() if (ctx.home / "ledger.db").exists() else []
    for row in rows:
        if row.name == name:
            return row
    known = ", ".join([*registry.provider_names(), *(row.name for row in rows)])
    raise UsageError(f"'{name}' is no provider and no live cluster", f"there are: {known}")


def check_cluster(ctx: Context, row: ClusterRow, python: str) -> Report:
    """Check every machine of a live cluster, and the differences between them. Raises NodeError."""
    machines = nodes_of(ctx, row)
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
                lambda programs=programs: programs.connection,  # type: ignore[misc]
                programs.paths.python,
                not here,
                options,
                str(first.data.get("artefact", "")),
            )
        )
    return Report(_examine_places(ctx, places))


def _group_by_machine(machines: Sequence[Resource]) -> list[list[int]]:
    """Node numbers by machine: virtual nodes share one, local nodes share this computer."""
    groups: dict[str, list[int]] = {}
    for index, machine in enumerate(machines):
        groups.setdefault(json.dumps(machine.data.get("target"), sort_keys=True), []).append(index)
    return list(groups.values())


def _list_hosts(ctx: Context, request: Request) -> list[Resource]:
    provisioner = ctx.provisioner(request.provider)
    return list(provisioner.standing(request)) if isinstance(provisioner, CheckedProvisioner) else []


def _host_place(machine: Resource, python: str) -> Place:
    return Place(machine.region, lambda: connect(machine, 0), str(machine.data["python"]), options=_options(python))


def _computer_place(ctx: Context, python: str) -> Place:
    options = _options(python, own_pythons(ctx))
    return Place(COMPUTER, lambda: ProcessConnection(COMPUTER), sys.executable, reached=False, options=options)


def _options(python: str, first: Sequence[str] = ()) -> list[str]:
    return [*(["--python", python] if python else []), *(word for path in first for word in ("--first", path))]


def _check_user_setup(ctx: Context) -> list[Finding]:
    return _locate(COMPUTER, computer_findings(ctx.home, ctx.env, Path.home()))


def _locate(where: str, findings: Iterable[Finding]) -> list[Finding]:
    """Findings with their place and without line breaks, since they may quote a host."""
    return [
        dataclasses.replace(one, say=" ".join(one.say.split()), hint=" ".join(one.hint.split()), where=where)
        for one in findings
    ]


def _examine_places(ctx: Context, places: Sequence[Place]) -> list[Finding]:
    """Examine places in parallel; return the findings about each and about the differences between them."""
    if not places:
        return []
    with ctx.progress.during(f"examining {', '.join(place.where for place in places)}"):
        answers = on_each(_examine_place, places)
    seen = [answer for answer in answers if isinstance(answer, Checkup)]
    lost = [answer for answer in answers if isinstance(answer, Finding)]
    judged = [finding for place in seen for finding in _judge_safely(place.where, partial(_judge_place, place))]
    return [*lost, *judged, *_judge_safely(BETWEEN, lambda: differences(seen))]


def _examine_place(place: Place) -> Checkup | Finding:
    try:
        connection = place.connect()
        connection.label = place.where
        try:
            found = run_checkup(connection, place.where, place.python, place.options, reached=place.reached)
        finally:
            connection.close()
        return dataclasses.replace(found, artefact=place.artefact)
    except NodeError as lost:
        return dataclasses.replace(error("unreached", lost.say, lost.hint), where=place.where)


def _judge_place(place: Checkup) -> Iterator[Finding]:
    yield summarize(place)
    yield from gpu_findings(place)
    yield from host_findings(place)


def _judge_safely(where: str, judge: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Findings of `judge`, or one error where the facts of a place have an unexpected form: they are not trusted."""
    try:
        return _locate(where, judge())
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as strange:
        say = f"its answer to the checkup has an unexpected form ({type(strange).__name__}: {strange})"
        return _locate(where, [error("nonsense", say, "check that this machine is yours")])
