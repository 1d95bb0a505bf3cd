"""What a run needs, brought to its nodes: code, data, snapshots of an earlier run, and a Python with torch.

`ready_nodes` does it for one run, or once for all runs of an array; `clear_for_next` makes room for the next of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuops.core.context import Context
from gpuops.core.errors import UsageError
from gpuops.core.format import first_few, plural
from gpuops.core.names import did_you_mean
from gpuops.core.parallel import BackgroundTask
from gpuops.core.provider import has_capability, is_rented
from gpuops.core.reporting import Progress
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.core.timings import Whose
from gpuops.ledger.store import RunRow
from gpuops.nodes.network import find_rendezvous
from gpuops.nodes.python import PreparedNode, prepare_pythons, run_setup, setup_command
from gpuops.nodes.rendezvous import Rendezvous
from gpuops.nodes.session import ClusterSession
from gpuops.runs import earlier_files
from gpuops.runs.script_check import check_script
from gpuops.runs.start_decision import may_go_on
from gpuops.sync import scan, uplink, upload, workloads_and_data
from gpuops.sync.push_record import PushRecord
from gpuops.sync.restore_snapshots import restore_files
from gpuops.transport.rpc import AgentClient

BESIDE_BYTES = 1_000_000
"""A project of at most this size is sent while the network between the nodes is tried; a larger one only once they are
known to reach each other."""


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


@dataclass(frozen=True)
class ReadyNodes:
    """Nodes that have a run's code, data and Python."""

    tree: scan.Tree
    """What was sent."""
    nodes: Sequence[PreparedNode]
    ports: Sequence[int] = ()
    """As in `Prepared`."""

    def part(self, numbers: Sequence[int]) -> ReadyNodes:
        """Some of them, numbered from 0. Their ports are chosen at the launch."""
        chosen = [self.nodes[number] for number in numbers]
        facts = [dataclasses.replace(node.facts, index=index) for index, node in enumerate(chosen)]
        return ReadyNodes(
            self.tree, [dataclasses.replace(node, facts=one) for node, one in zip(chosen, facts, strict=True)]
        )


def choose_tree(request: RunRequest, folder: Path) -> tuple[str, Path]:
    """Which tree a run works in, and where it comes from: our workloads' or the user's project."""
    return ("train", workloads_and_data.workloads_folder()) if request.workload else ("project", folder)


def paths_sent_anyway(request: RunRequest, sending: Sending) -> Sequence[str]:
    return () if request.workload else sending.send_anyway


def ready_nodes(
    ctx: Context,
    settings: Settings,
    session: ClusterSession,
    request: RunRequest,
    sending: Sending,
    row: RunRow,
    progress: Progress,
    *,
    apart: bool = False,
) -> ReadyNodes:
    """Bring code, data and a Python to the nodes, for the run `row` or for it and the other runs of its array. `apart`:
    no run is on two of them. Raises GpuopsError."""
    name, folder = choose_tree(request, ctx.folder)
    shared = has_capability(ctx.provisioner(session.row.provider), "shares_disk")
    with progress.during("looking through the project"):
        tree = _scan_tree(ctx, request, sending, folder, shared)
    clients = session.clients[: request.nodes]
    is_alone = apart or shared or not (request.kind == "torchrun" or request.all_nodes)
    start = _launch_on(clients, request, row)
    line = uplink.open_uplink(ctx.home / "cache", sending.bwlimit)

    def meet() -> Rendezvous:
        return find_rendezvous(ctx, session, request.nodes, alone=is_alone)

    def push() -> None:
        started = ctx.clock.monotonic()
        _push_tree(ctx, session, clients, tree, name, sending, line, progress)
        if not shared:
            uplink.record_upload_rate(ctx.home / "cache", line.sent_bytes, ctx.clock.monotonic() - started)

    is_sent_meanwhile = tree.size <= BESIDE_BYTES and not sending.fresh
    with progress.during(f"trying the network between {request.nodes} nodes", whose=Whose.NETWORK):
        trying = BackgroundTask(meet)
        if is_sent_meanwhile:
            push()  # in this thread, which owns the ledger
        meeting = trying.result()
    if sending.fresh:  # before the push, which writes again what a run had changed of it
        earlier_files.clear_start(ctx, start, progress)
    if not is_sent_meanwhile:
        push()
    places = workloads_and_data.provide_data(
        ctx, session, request, allow=sending.send_anyway, overwrite=sending.overwrite, line=line
    )
    put_back(ctx, clients, request, name, progress)
    looks_back = start.is_training or request.resume or may_go_on(request.argv, {entry.path for entry in tree.files})
    if looks_back and (request.resume or not sending.fresh):
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
    with_data = [
        dataclasses.replace(node, facts=dataclasses.replace(node.facts, data=places.get(node.facts.index)))
        for node in nodes
    ]
    return ReadyNodes(tree, with_data, meeting.ports)


def clear_for_next(
    ctx: Context,
    session: ClusterSession,
    request: RunRequest,
    sending: Sending,
    row: RunRow,
    ready: ReadyNodes,
    progress: Progress,
    *,
    push_again: bool = False,
) -> None:
    """Before another run of an array begins on nodes that are ready: what the one before made is taken off. The project
    is compared where that run had changed a file of it, and where `push_again` says that this is not known. Raises
    GpuopsError."""
    name, clients = row.tree, session.clients
    launch = _launch_on(clients, request, row, session.part_of)
    taken = earlier_files.clear_start(ctx, launch, progress, of_array=True)
    if push_again or taken & {entry.path for entry in ready.tree.files}:
        line = uplink.open_uplink(ctx.home / "cache", sending.bwlimit)
        _push_tree(ctx, session, clients, ready.tree, name, sending, line, progress)
    put_back(ctx, clients, request, name, progress)


def _launch_on(
    clients: Sequence[AgentClient], request: RunRequest, row: RunRow, numbers: Sequence[int] = ()
) -> earlier_files.Launch:
    return earlier_files.Launch(
        clients[:1] if request.kind == "command" and not request.all_nodes else clients,
        row.tree, row, request.outs, is_training=request.kind == "torchrun", resumes=request.resume or "",
        numbers=numbers,
    )  # fmt: skip


def _push_tree(
    ctx: Context,
    session: ClusterSession,
    clients: Sequence[AgentClient],
    tree: scan.Tree,
    name: str,
    sending: Sending,
    line: uplink.Uplink,
    progress: Progress,
) -> None:
    with progress.during("comparing the project with what the nodes have", whose=Whose.NODE):
        record = PushRecord(ctx.home, session.row.token, name)
        reports = upload.push_many(
            clients, name, tree, overwrite=sending.overwrite, progress=progress, record=record, uplink=line
        )
    _report_kept_edits(ctx, reports)


def put_back(ctx: Context, clients: Sequence[AgentClient], request: RunRequest, name: str, progress: Progress) -> None:
    """Put the files of `--resume RUN` back on these nodes."""
    if request.resume:
        with progress.during(f"putting back what {request.resume} made", whose=Whose.NETWORK):
            count = restore_files(clients, name, find_run(ctx, request.resume))
        ctx.out.say(f"{plural(count, 'file')} of {request.resume} put back on every node")


def _scan_tree(ctx: Context, request: RunRequest, sending: Sending, folder: Path, shared: bool) -> scan.Tree:
    """What is sent, as it is now, and said. Raises UsageError."""
    tree = workloads_and_data.scan_project(ctx, folder, paths_sent_anyway(request, sending))
    first, *more = scan.summary(tree)
    for sentence in (f"code: {first}", *more):
        ctx.out.say(sentence)
    check_script(request, tree, sending.send_anyway, sending.run_flags)
    if request.data and not request.workload:
        tree = workloads_and_data.link_data(tree, ctx.folder, request.data, shared=shared)
    return tree


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
