"""Starting a prepared run: addresses and ports for this attempt, presigned URLs of a bucket, one spec to each agent.

Once every agent has its spec the run needs this computer no more. A launch that fails on one node is called off on all.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING

from gpuops.core.context import Context
from gpuops.core.errors import NodeRefused, RefusalKind, RunFailed
from gpuops.core.parallel import on_each
from gpuops.core.run_models import RunRequest
from gpuops.core.sink import BucketSink
from gpuops.core.timings import Whose
from gpuops.ledger.rows import RunState
from gpuops.nodes.session import ClusterSession
from gpuops.runs.graceful_stop import stop_nodes
from gpuops.runs.launch_spec import Place, node_specs
from gpuops.runs.prepare import Prepared
from gpuops.sync import bucket

if TYPE_CHECKING:
    from gpuops.transport.schemas import FreePort

START_TIMEOUT_S = 600.0
"""How long a node may take to start a run: its agent first lists what lies in the tree, to tell later what the run
made."""


def launch(ctx: Context, session: ClusterSession, prepared: Prepared) -> None:
    """Start the run on every node, the head first, on other ports each time. Raises GpuopsError; RunFailed, and not
    NodeError, for a command that is not there: no other node would have it."""
    prepared.attempt += 1
    try:
        _start_nodes(ctx, session, prepared)
    except NodeRefused as refusal:
        if refusal.kind == RefusalKind.CANNOT_START:
            raise RunFailed(refusal.message, refusal.hint) from refusal
        if refusal.kind != RefusalKind.GANG or prepared.attempt > 1:
            raise
        launch(ctx, session, prepared)  # the gang link's port was taken in the meantime; nothing has started


def _start_nodes(ctx: Context, session: ClusterSession, prepared: Prepared) -> None:
    master, gang = _choose_endpoints(session, prepared)
    request, granted = _grant_uploads(ctx, session, prepared)
    specs = node_specs(
        request,
        run=prepared.row.name,
        cluster=session.row.name,
        tree=prepared.row.tree,
        nodes=prepared.nodes,
        master=master,
        gang=gang,
        attempt=prepared.attempt,
    )
    gang_secret = secrets.token_hex(32)
    # Before the first node is asked: killed in between, the run is one that the guard and `gpuops stop` know of.
    ctx.ledger.set_run(prepared.row.id, state=RunState.RUNNING, started=ctx.clock.now())
    asked = 1

    def start(index: int) -> None:
        ctx.progress.waits("takes stock of its files", f"node{index}")
        parameters = {"spec": specs[index], "secrets": dict(prepared.secrets), "gang_secret": gang_secret}
        if granted:
            parameters["urls"] = granted.urls[index].document()
        session.clients[index].call("start", timeout=START_TIMEOUT_S, **parameters)
        ctx.progress.waits("", f"node{index}")

    try:
        with ctx.progress.during(f"starting {prepared.row.name}", whose=Whose.NODE):
            start(0)  # alone: where its port for the gang link is taken, nothing else has started
            asked = len(specs)
            on_each(start, range(1, len(specs)))
    except BaseException:
        stop_nodes(session, prepared.row.name, "now", "the run could not be started on every node", nodes=asked)
        ctx.ledger.set_run(prepared.row.id, state=RunState.STARTING, started=None)
        bucket.abort_uploads(ctx, ctx.ledger.run(prepared.row.id))
        raise


def _grant_uploads(
    ctx: Context, session: ClusterSession, prepared: Prepared
) -> tuple[RunRequest, bucket.UploadGrant | None]:
    """Presigned URLs of a bucket, fresh for each launch, and the request with the place that they write to; None
    without a bucket."""
    request, sink = prepared.request, prepared.request.sink
    if not isinstance(sink, BucketSink):
        return request, None
    row = ctx.ledger.run(prepared.row.id)
    bucket.abort_uploads(ctx, row)
    lease = ctx.ledger.cluster(session.row.id).lease
    with ctx.progress.during(f"opening the bucket {sink.bucket} to the nodes", whose=Whose.NETWORK):
        granted = bucket.create_upload_grant(ctx, sink, row.name, len(prepared.nodes), lease.end)
    kept = {"bucket": {"place": granted.place, "until": granted.until}, "uploads": granted.uploads}
    ctx.ledger.set_run(row.id, facts={**ctx.ledger.run(row.id).facts, **kept})
    return dataclasses.replace(request, sink=dataclasses.replace(sink, place=granted.place)), granted


def _choose_endpoints(session: ClusterSession, prepared: Prepared) -> tuple[Place, Place | None]:
    """Where torchrun and the gang link meet: for the first attempt on the ports that the probe reached, then on fresh
    ones."""
    several = len(prepared.nodes) > 1
    address = prepared.nodes[0].address if several else "127.0.0.1"
    if several and prepared.ports and prepared.attempt == 1:
        master, gang = prepared.ports
        return (address, master), (address, gang)

    def fresh_endpoint() -> Place:
        free: FreePort = session.clients[0].call("port", address=address)
        return address, free.port

    return fresh_endpoint(), fresh_endpoint() if several else None
