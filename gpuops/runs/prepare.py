"""From a cluster that answers to a run that is ready for launch: push, choose a Python, agree on addresses and ports.

`prepare` notes the run in the ledger first, waits for its turn on the cluster, finishes earlier runs that were left
there, and brings everything to the nodes; `runs.launch` starts it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops import __version__
from gpuops.clusters.virtual_nodes import add_virtual_nodes
from gpuops.core.context import Context
from gpuops.core.data_address import without_query
from gpuops.core.errors import BUG, ConnectionLost, GpuopsError, Interrupted, NodeError, UsageError
from gpuops.core.format import first_few, plural
from gpuops.core.names import did_you_mean
from gpuops.core.polling import Poller
from gpuops.core.provider import has_capability, is_rented
from gpuops.core.reporting import Progress
from gpuops.core.run_models import NodeFacts, RunRequest, Verdict, VerdictOutcome
from gpuops.core.settings import Settings, secret_origins, secret_values
from gpuops.core.timings import Whose
from gpuops.ledger.rows import RunState
from gpuops.ledger.store import RunRow
from gpuops.nodes.network import find_rendezvous
from gpuops.nodes.python import prepare_pythons, run_setup, run_versions, setup_command
from gpuops.nodes.session import ClusterSession, explain_connection_loss, readmit_this_computer
from gpuops.offers.billing_account import refuse_tracked
from gpuops.runs import earlier_files
from gpuops.runs.finish import Policy, finish
from gpuops.runs.follow import SLOW_RECONNECT_INTERVAL_S, UNREACHABLE_TIMEOUT_S, make_follower
from gpuops.runs.launch_spec import request_of
from gpuops.runs.outcome.verdict import NOT_STARTED
from gpuops.runs.results.collect import Agents
from gpuops.runs.script_check import check_script
from gpuops.runs.start_decision import may_go_on
from gpuops.sync import scan, uplink, upload, workloads_and_data
from gpuops.sync.download import DEFAULT_OUTS
from gpuops.sync.push_record import PushRecord
from gpuops.sync.restore_snapshots import restore_files
from gpuops.sync.run_folder import RunHome
from gpuops.transport.rpc import UnreachableAgent

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodeHello

REPORTS_TIMEOUT_S = 60.0
"""How long the nodes may take to say how an earlier run ended."""
QUEUE_POLL_INTERVAL_S = 2.0
"""How often a run that waits for its turn asks the ledger and the nodes whether an earlier run has ended."""


@dataclass(frozen=True)
class Sending:
    """What was asked for beside the run itself: what is sent, over what, and when."""

    overwrite: bool = False
    """Files that were edited on a node are replaced by this computer's."""
    send_anyway: Sequence[str] = ()
    """Paths and globs that are sent although they hold keys."""
    queue: bool = False
    """The run waits until earlier ones on its cluster have ended."""
    fresh: bool = False
    """What earlier runs made is taken off the nodes first."""
    bwlimit: str | None = None
    """How many bytes per second may be sent, as it was typed."""
    run_flags: Sequence[str] = ()
    """What was typed for `train` and `run` takes as well: a refused script's hint repeats it."""


@dataclass
class Prepared:
    """A run ready for launch on each of its nodes."""

    row: RunRow
    home: RunHome
    request: RunRequest
    nodes: list[NodeFacts]
    ports: Sequence[int] = ()
    """Of node0, known to be reached by all: for the first launch."""
    secrets: Mapping[str, str] = field(repr=False, default_factory=dict)
    attempt: int = 0

    @property
    def world_size(self) -> int:
        return sum(node.ranks for node in self.nodes)


def run_name_stem(request: RunRequest) -> str:
    """What a run's name starts with: the workload's, script's, module's or command's own, in our alphabet."""
    source = (
        request.workload
        or Path(request.script or "").stem
        or (request.module or "").rpartition(".")[2]
        or (Path(request.argv[0]).stem if request.argv else "run")
    )
    letters = "".join(char if char.isascii() and char.isalnum() else "-" for char in source.lower()).strip("-")
    return (letters if letters[:1].isalpha() else f"run-{letters}").rstrip("-")[:18].rstrip("-") or "run"


def output_patterns(outs: Sequence[str]) -> Sequence[str]:
    """What is a result: as asked for; the default where only exceptions (`!GLOB`) were named."""
    return outs if any(not one.startswith("!") for one in outs) else (*DEFAULT_OUTS, *outs)


def choose_tree(request: RunRequest, folder: Path) -> tuple[str, Path]:
    """Which tree a run works in, and where it comes from: our workloads' or the user's project."""
    return ("train", workloads_and_data.workloads_folder()) if request.workload else ("project", folder)


def check_request(ctx: Context, request: RunRequest, sending: Sending) -> None:
    """Find what would certainly fail, before anything is created. Raises UsageError."""
    secret_values(request.secrets, ctx.folder, ctx.env)
    if sending.bwlimit:
        uplink.parse_rate(sending.bwlimit)
    refuse_tracked(ctx.folder, [name for name in request.secrets if not ctx.env.get(name)])
    workloads_and_data.find_data_source(ctx, request)
    _, folder = choose_tree(request, ctx.folder)
    allow = _send_anyway(request, sending)
    check_script(request, workloads_and_data.scan_project(ctx, folder, allow), allow, sending.run_flags)


def describe_secrets(ctx: Context, request: RunRequest) -> str:
    """Which secrets the nodes are sent, by name, and where those are from; empty for none. Raises UsageError."""
    origins = secret_origins(request.secrets, ctx.folder, ctx.env)
    return f"secrets: {', '.join(f'{name} (from {origin})' for name, origin in origins.items())}" if origins else ""


def _send_anyway(request: RunRequest, sending: Sending) -> Sequence[str]:
    return () if request.workload else sending.send_anyway


def prepare(
    ctx: Context, settings: Settings, session: ClusterSession, request: RunRequest, sending: Sending, progress: Progress
) -> Prepared:
    """Bring everything a run needs to its nodes. Nothing is started yet. Raises GpuopsError."""
    # The agents take stock of these files at the start, to tell what the run made from what was there.
    request = dataclasses.replace(request, outs=output_patterns(request.outs))
    values = secret_values(request.secrets, ctx.folder, ctx.env)
    if not sending.queue:
        _refuse_second_run(ctx, session, None, request)
    add_virtual_nodes(ctx, session, request)
    row = ctx.ledger.add_run(
        stem=run_name_stem(request),
        cluster=session.row.id,
        folder=ctx.folder,
        tree=choose_tree(request, ctx.folder)[0],
        request=_recorded(request).document(),
        facts={
            "gpuops": __version__,
            "provider": session.row.provider,
            "cluster": session.row.name,
            "per_hour": sum(machine.per_hour for machine in session.machines),
            "skews": session.skews,
            "hosts": _name_hosts(session),
        },
        owner_process=ctx.me,
        now=ctx.clock.now(),
        claim=lambda home: RunHome(home).claim(),
    )
    try:
        ctx.ensure_guard(session.row, waits=False)
        row = wait_for_turn(ctx, session, sending, row)
        finish_earlier_runs(ctx, session, row, progress)
        prepared = _prepare_nodes(ctx, settings, session, request, sending, row, values, progress)
        ctx.ensure_guard(session.row)  # nothing is started that no guard watches; by now it has had time to begin
        return prepared
    except BaseException as error:
        record_not_started(ctx, row, error)
        raise


def _recorded(request: RunRequest) -> RunRequest:
    """The request as it is written down: what stands in an address behind `?` may be a token."""
    return dataclasses.replace(request, data=request.data and without_query(request.data))


def _name_hosts(session: ClusterSession) -> list[str]:
    """The hosts of a cluster by the user's own names for them, where these say more than the provider's."""
    hosts = dict.fromkeys(machine.region for machine in session.machines if not machine.bills)
    return list(hosts) if session.row.provider == "ssh" else []


def record_not_started(ctx: Context, row: RunRow, error: BaseException) -> None:
    """Note a run that never started, and why; the folder that was to hold its results goes."""
    if isinstance(error, Interrupted):
        verdict = Verdict(VerdictOutcome.STOPPED, error.exit_code, "stopped before it was started")
    else:
        say = error.message if isinstance(error, GpuopsError) else type(error).__name__
        verdict = Verdict(VerdictOutcome.FAILED, getattr(error, "exit_code", BUG), f"{NOT_STARTED}{say}")
    ctx.ledger.set_run(row.id, state=RunState.HOME, owner_process=None, ended=ctx.clock.now(), verdict=verdict)
    RunHome(row.home).remove_unused()


def _prepare_nodes(
    ctx: Context,
    settings: Settings,
    session: ClusterSession,
    request: RunRequest,
    sending: Sending,
    row: RunRow,
    values: Mapping[str, str],
    progress: Progress,
) -> Prepared:
    """The part of `prepare` that a run in the ledger stands for."""
    name, folder = choose_tree(request, ctx.folder)
    shared = has_capability(ctx.provisioner(session.row.provider), "shares_disk")
    with progress.during("looking through the project"):
        tree = _scan_tree(ctx, request, sending, folder, shared)
    home = RunHome(row.home)
    home.create()
    clients = session.clients[: request.nodes]
    is_alone = shared or not (request.kind == "torchrun" or request.all_nodes)
    with progress.during(f"trying the network between {request.nodes} nodes", whose=Whose.NETWORK):
        meeting = find_rendezvous(ctx, session, request.nodes, alone=is_alone)
    start = earlier_files.Launch(
        clients[:1] if request.kind == "command" and not request.all_nodes else clients,
        name, row, request.outs, is_training=request.kind == "torchrun", resumes=request.resume or "",
    )  # fmt: skip
    afresh = sending.fresh and not request.resume  # both: a retry, which goes on from the attempt before
    if afresh:  # before the push, which writes again what a run had changed of it
        earlier_files.clear_start(ctx, start, progress)
    line = uplink.open_uplink(ctx.home / "cache", sending.bwlimit)
    started = ctx.clock.monotonic()
    with progress.during("comparing the project with what the nodes have", whose=Whose.NODE):
        record = PushRecord(ctx.home, session.row.token, name)
        reports = upload.push_many(
            clients, name, tree, overwrite=sending.overwrite, progress=progress, record=record, uplink=line
        )
    if not shared:
        took_s = ctx.clock.monotonic() - started
        uplink.record_upload_rate(ctx.home / "cache", line.sent_bytes, took_s)
    _report_kept_edits(ctx, reports)
    places = workloads_and_data.provide_data(
        ctx, session, request, allow=sending.send_anyway, overwrite=sending.overwrite, line=line
    )
    if request.resume:
        with progress.during(f"putting back what {request.resume} made", whose=Whose.NETWORK):
            count = restore_files(clients, name, find_run(ctx, request.resume))
        ctx.out.say(f"{plural(count, 'file')} of {request.resume} put back on every node")
    looks_back = start.is_training or request.resume or may_go_on(request.argv, {entry.path for entry in tree.files})
    if looks_back and not afresh:
        earlier_files.prepare_start(ctx, start, progress)
    with progress.during(
        "looking for a Python with torch" if request.kind == "torchrun" else "looking for a Python", whose=Whose.NODE
    ):
        nodes = prepare_pythons(ctx, settings, session, request, folder, meeting.endpoints, progress)
    rented = is_rented(ctx.provisioner(session.row.provider))
    commands = [setup_command(request, folder, node.facts.python, rented=rented) for node in nodes]
    if any(commands) and any(node.facts.within for node in nodes):
        raise UsageError("--setup would run beside the image, not in it", "build it into the image, and leave it out")
    if any(commands):
        with progress.during("running the set-up command", whose=Whose.NODE):
            run_setup(ctx, session, name, folder, commands, nodes, progress)
    size = sum(node.facts.ranks for node in nodes)
    origin = {"commit": None, "dirty": False} if request.workload else {"commit": tree.commit, "dirty": tree.dirty}
    held = [one.path for one in tree.held]
    facts = {**row.facts, **origin, "held": held, "nodes": request.nodes, "world": size, **run_versions(session, nodes)}
    facts["folder_id"] = home.folder_id()
    ctx.ledger.set_run(row.id, facts=facts)
    parts = [dataclasses.replace(node.facts, data=places.get(node.facts.index)) for node in nodes]
    return Prepared(ctx.ledger.run(row.id), home, request, parts, meeting.ports, values)


def _scan_tree(ctx: Context, request: RunRequest, sending: Sending, folder: Path, shared: bool) -> scan.Tree:
    """What is sent, as it is now, and said. Raises UsageError."""
    tree = workloads_and_data.scan_project(ctx, folder, _send_anyway(request, sending))
    first, *more = scan.summary(tree)
    for sentence in (f"code: {first}", *more):
        ctx.out.say(sentence)
    check_script(request, tree, sending.send_anyway, sending.run_flags)
    if request.data and not request.workload:
        tree = workloads_and_data.link_data(tree, ctx.folder, request.data, shared=shared)
    return tree


def wait_for_turn(ctx: Context, session: ClusterSession, sending: Sending, row: RunRow) -> RunRow:
    """One run at a time on a node: refuse, or with --queue wait until all that came before have ended.

    The ledger says who came first, so that of two that wait only one goes on. What is billed counts from the turn.
    """
    if not sending.queue:
        _refuse_second_run(ctx, session, row, request_of(row))
        return row
    announced = ""
    unreachable_since: float | None = None
    with ctx.progress.during(f"waiting for {session.row.name}", whose=Whose.SCRIPT):
        poller = Poller.every(ctx.clock, QUEUE_POLL_INTERVAL_S)
        for attempt in poller:
            try:
                busy = _find_earlier_run(ctx, session, row)
            except ConnectionLost as error:
                unreachable_since = attempt.started if unreachable_since is None else unreachable_since
                _check_worth_waiting(ctx, session, error, attempt.started - unreachable_since)
                poller.retry_after(SLOW_RECONNECT_INTERVAL_S)
                continue
            unreachable_since = None
            if not busy:
                break
            ctx.progress.waits(f"{busy} goes on")
            if busy != announced:
                ctx.out.say(f"waiting for {busy} on {session.row.name}")
                announced = busy
    if announced:
        ctx.ledger.set_run(row.id, created=ctx.clock.now())
    return ctx.ledger.run(row.id)


def finish_earlier_runs(ctx: Context, session: ClusterSession, row: RunRow, progress: Progress) -> None:
    """Bring home what earlier runs left on the nodes and nobody fetched: the new run would overwrite it. What cannot
    come is named, and keeps no run from its start."""
    for run in ctx.ledger.runs(cluster=session.row.id):
        is_left = run.id < row.id and run.state in (RunState.RUNNING, RunState.ENDED)
        if not is_left or not ctx.ledger.take_run_ownership(run.id, ctx.me):
            continue
        follower = make_follower(ctx, session, run, lambda *_: None, ctx.out.say)
        try:
            with progress.during(f"bringing home what {run.name} left", whose=Whose.NETWORK):
                follower.start()
                if not follower.wait(REPORTS_TIMEOUT_S):
                    raise NodeError(f"not every node says how {run.name} ended")
                outcome = finish(ctx, run, Agents(session, dict(follower.reports)), Policy(progress))
            ctx.out.say(f"{run.name}: {outcome.verdict.say}")
            missing = outcome.missing
        except GpuopsError as error:
            missing = error.message
        finally:
            follower.quit()
            ctx.ledger.set_run(run.id, owner_process=None)
        if missing:
            ctx.out.say(f"note: results of {run.name} are not all home, and this run may overwrite them: {missing}")


def _check_worth_waiting(ctx: Context, session: ClusterSession, error: ConnectionLost, unreachable_s: float) -> None:
    """Raises ConnectionLost where a cluster has been unreachable for too long, or its machines have ended."""
    ctx.progress.waits(f"{session.row.name} does not answer; trying again")
    if readmit_this_computer(ctx, session.row, ctx.ledger.resources(session.row.id)):
        return
    explained = explain_connection_loss(ctx, session.row, error)
    if explained is not error or unreachable_s > UNREACHABLE_TIMEOUT_S:
        raise explained from error.__cause__


def _refuse_second_run(ctx: Context, session: ClusterSession, row: RunRow | None, request: RunRequest) -> None:
    if busy := _find_earlier_run(ctx, session, row):
        name, hint = session.row.name, f"wait for it with --queue, or end it: gpuops stop {busy}"
        if request.kind == "command":
            nodes = ["--all-nodes"] if request.all_nodes else []
            hint += f"; beside it: {shlex.join(['gpuops', 'ssh', name, *nodes, '--', *request.argv])}"
        raise UsageError(f"{busy} is running on {name}", hint)


def _find_earlier_run(ctx: Context, session: ClusterSession, row: RunRow | None) -> str:
    """A run that a new one, or that of `row`, has to wait for; empty when there is none."""
    for run in ctx.ledger.runs(cluster=session.row.id):
        before = row is None or run.id < row.id
        if before and run.state is not RunState.HOME and run.has_live_owner():
            return run.name
    # What the nodes have just said of themselves will do for a first look, before there is a row.
    hellos = session.hellos if row is None else session.each(lambda index, _client: _ask_node(session, index))
    return next((hello.busy for hello in hellos if hello and hello.busy), "")


def _ask_node(session: ClusterSession, index: int) -> NodeHello | None:
    """What a node says of itself now; None for one that has ended and that no run needs. A conversation that was cut is
    opened once more. Raises NodeError."""
    client = session.clients[index]
    if isinstance(client, UnreachableAgent):
        return None
    try:
        hello: NodeHello = client.call("hello")
    except ConnectionLost:
        hello = session.reconnect(index).call("hello")
    return hello


def _report_kept_edits(ctx: Context, reports: Sequence[upload.PushReport]) -> None:
    for report in reports:
        if report.kept:
            first = first_few(report.kept, 3)
            ctx.out.say(f"kept as edited on {report.node}: {first} (`gpuops pull --edits` brings them home)")


def find_run(ctx: Context, name: str) -> RunRow:
    """A run by its name. Raises UsageError."""
    rows = ctx.ledger.runs()
    for row in rows:
        if row.name == name:
            return row
    near = did_you_mean(name, [row.name for row in rows])
    raise UsageError(f"there is no run named {name}" + (near and f"; {near}"), "`gpuops runs` lists them")
