"""From a cluster that answers to a run that is ready for launch: push, choose a Python, agree on addresses and ports.

`prepare` notes the run in the ledger first, waits for its turn on the cluster, finishes earlier runs that were left
there, and brings everything to the nodes; `runs.launch` starts it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpuops import __version__
from gpuops.clusters.virtual_nodes import add_virtual_nodes
from gpuops.core.context import Context
from gpuops.core.data_address import without_query
from gpuops.core.errors import BUG, GpuopsError, Interrupted, NodeError
from gpuops.core.reporting import Progress
from gpuops.core.run_models import NodeFacts, RunRequest, Verdict, VerdictOutcome
from gpuops.core.settings import Settings, secret_origins, secret_values
from gpuops.core.timings import Whose
from gpuops.ledger.rows import RunState
from gpuops.ledger.store import RunRow
from gpuops.nodes.python import run_versions
from gpuops.nodes.session import ClusterSession
from gpuops.offers.billing_account import refuse_tracked
from gpuops.runs.finish import Policy, finish
from gpuops.runs.follow import make_follower
from gpuops.runs.outcome.verdict import NOT_STARTED
from gpuops.runs.ready_nodes import ReadyNodes, Sending, choose_tree, paths_sent_anyway, ready_nodes
from gpuops.runs.results.collect import Agents
from gpuops.runs.script_check import check_script
from gpuops.runs.turn import refuse_second_run, wait_for_turn
from gpuops.sync import uplink, workloads_and_data
from gpuops.sync.download import DEFAULT_OUTS
from gpuops.sync.run_folder import RunHome

REPORTS_TIMEOUT_S = 60.0
"""How long the nodes may take to say how an earlier run ended."""


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


def check_request(ctx: Context, request: RunRequest, sending: Sending) -> None:
    """Find what would certainly fail, before anything is created. Raises UsageError."""
    secret_values(request.secrets, ctx.folder, ctx.env)
    if sending.bwlimit:
        uplink.parse_rate(sending.bwlimit)
    refuse_tracked(ctx.folder, [name for name in request.secrets if not ctx.env.get(name)])
    workloads_and_data.find_data_source(ctx, request)
    _, folder = choose_tree(request, ctx.folder)
    allow = paths_sent_anyway(request, sending)
    check_script(request, workloads_and_data.scan_project(ctx, folder, allow), allow, sending.run_flags)


def describe_secrets(ctx: Context, request: RunRequest) -> str:
    """Which secrets the nodes are sent, by name, and where those are from; empty for none. Raises UsageError."""
    origins = secret_origins(request.secrets, ctx.folder, ctx.env)
    return f"secrets: {', '.join(f'{name} (from {origin})' for name, origin in origins.items())}" if origins else ""


def prepare(
    ctx: Context, settings: Settings, session: ClusterSession, request: RunRequest, sending: Sending, progress: Progress
) -> Prepared:
    """Bring everything a run needs to its nodes. Nothing is started yet. Raises GpuopsError."""
    request = with_outputs(request)
    values = secret_values(request.secrets, ctx.folder, ctx.env)
    row = take_turn(ctx, session, request, sending, progress)
    with noted_unless_started(ctx, row):
        create_home(row)
        ready = ready_nodes(ctx, settings, session, request, sending, row, progress)
        prepared = complete(ctx, session, request, row, ready, values)
        ctx.ensure_guard(session.row)  # nothing is started that no guard watches; by now it has had time to begin
        return prepared


def with_outputs(request: RunRequest) -> RunRequest:
    """The request with all that is a result. The agents take stock of these files at the start, to tell later what the
    run made from what was there."""
    return dataclasses.replace(request, outs=output_patterns(request.outs))


def take_turn(
    ctx: Context,
    session: ClusterSession,
    request: RunRequest,
    sending: Sending,
    progress: Progress,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> RunRow:
    """Note a run in the ledger, wait until the cluster is its own, and finish what earlier runs left there. Raises
    GpuopsError."""
    if not sending.queue:
        refuse_second_run(ctx, session, None, request)
    add_virtual_nodes(ctx, session, request)
    row = add_run(ctx, session, request, facts)
    with noted_unless_started(ctx, row):
        ctx.ensure_guard(session.row, waits=False)
        row = wait_for_turn(ctx, session, row, queue=sending.queue)
        finish_earlier_runs(ctx, session, row, progress)
        return row


def add_run(ctx: Context, session: ClusterSession, request: RunRequest, facts: Mapping[str, Any]) -> RunRow:
    """Note a run in the ledger, with `facts` beside what is known of its nodes."""
    nodes = session.part(request.nodes_at) if request.nodes_at else session
    known = {
        "gpuops": __version__,
        "provider": session.row.provider,
        "cluster": session.row.name,
        "per_hour": sum(machine.per_hour for machine in nodes.machines),
        "skews": nodes.skews,
        "hosts": _name_hosts(nodes, request.nodes),
    }
    return ctx.ledger.add_run(
        stem=run_name_stem(request),
        cluster=session.row.id,
        folder=ctx.folder,
        tree=choose_tree(request, ctx.folder)[0],
        request=_recorded(request).document(),
        facts={**known, **facts},
        owner_process=ctx.me,
        now=ctx.clock.now(),
        claim=lambda home: RunHome(home).claim(),
    )


def create_home(row: RunRow) -> None:
    """Make the folder of a run's results. Raises LocalDisk."""
    RunHome(row.home).create()


@contextmanager
def noted_unless_started(ctx: Context, row: RunRow) -> Iterator[None]:
    """What ends the block is noted as why the run never started."""
    try:
        yield
    except BaseException as error:
        record_not_started(ctx, row, error)
        raise


def _recorded(request: RunRequest) -> RunRequest:
    """The request as it is written down: what stands in an address behind `?` may be a token."""
    return dataclasses.replace(request, data=request.data and without_query(request.data))


def _name_hosts(session: ClusterSession, nodes: int) -> list[str]:
    """The hosts of a run's nodes by the user's own names for them, where these say more than the provider's."""
    hosts = dict.fromkeys(machine.region for machine in session.machines[:nodes] if not machine.bills)
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


def complete(
    ctx: Context,
    session: ClusterSession,
    request: RunRequest,
    row: RunRow,
    ready: ReadyNodes,
    values: Mapping[str, str],
) -> Prepared:
    """A run on nodes that are ready, in the ledger with what is known of it by now."""
    home, tree, nodes = RunHome(row.home), ready.tree, ready.nodes
    size = sum(node.facts.ranks for node in nodes)
    origin = {"commit": None, "dirty": False} if request.workload else {"commit": tree.commit, "dirty": tree.dirty}
    held = [one.path for one in tree.held]
    facts = {**row.facts, **origin, "held": held, "nodes": request.nodes, "world": size, **run_versions(session, nodes)}
    facts["folder_id"] = home.folder_id()
    ctx.ledger.set_run(row.id, facts=facts)
    return Prepared(ctx.ledger.run(row.id), home, request, [node.facts for node in nodes], ready.ports, values)


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
