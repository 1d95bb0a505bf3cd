"""`gpuops top`: what every node of a cluster does now, by samples that their agents send while this command looks.

`Watch` holds a thread for each node; `describe` puts together what they have by now, for people (`top_table`) and for
`--json`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpuops.agent.workers import WORKERS
from gpuops.clusters import selection
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, NodeError
from gpuops.core.format import one_line
from gpuops.core.models import Resource
from gpuops.core.polling import Clock, Poller
from gpuops.core.timings import Whose
from gpuops.ledger.rows import RunState
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.session import contact_node, machines_of, nodes_of
from gpuops.offers.lease_limits import money_spent

if TYPE_CHECKING:
    from gpuops.transport.rpc import AgentClient
    from gpuops.transport.usage_schemas import NodeSample

SILENCE_S = 10.0
"""A node that sends nothing for this long is reached anew: samples come twice a second."""
RETRY_INTERVAL_S = 2.0
FIRST_SAMPLES_TIMEOUT_S = 15.0
"""How long a single look waits for every node's first rates, and for its GPUs."""
COMPLETE_SAMPLES = 4
"""After so many every rate is known: programs tell their step once a second."""
POLL_INTERVAL_S = 0.1


@dataclass
class NodeView:
    """What is known of one node."""

    sample: NodeSample | None = None
    """The latest; None before the first, and while the node does not answer."""
    count: int = 0
    """How many came since it was last reached."""
    lost_since: float | None = None
    """UTC seconds; None while it answers."""
    why: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether a single look has all of it: rates need several samples, and nvidia-smi takes a moment."""
        return self.sample is not None and self.sample.gpus is not None and self.count >= COMPLETE_SAMPLES


@dataclass(frozen=True)
class TopReport:
    """A cluster at one moment."""

    name: str
    provider: str
    now: float
    per_hour: float
    spent: float
    """Dollars, by our own count."""
    hard_end: float | None
    """UTC seconds."""
    run: str | None
    run_since: float | None
    nodes: Sequence[NodeView]
    beside: Sequence[str] = ()
    """The other live runs, of an array."""

    def document(self) -> dict[str, object]:
        """For `--json`."""
        from msgspec import to_builtins

        return {
            "name": self.name,
            "provider": self.provider,
            "at": self.now,
            "per_hour": self.per_hour,
            "spent": self.spent,
            "hard_end": self.hard_end,
            "run": self.run,
            "run_since": self.run_since,
            "beside": list(self.beside),
            "nodes": [
                {"sample": to_builtins(node.sample), "lost_since": node.lost_since, "why": node.why}
                for node in self.nodes
            ],
        }


class Watch:
    """Follows the samples of every node, each in a thread of its own; one that does not answer holds up no other."""

    def __init__(self, row: ClusterRow, machines: Sequence[Resource], clock: Clock) -> None:
        self.row = row
        self.nodes = [NodeView() for _ in machines]
        self._machines = machines
        self._clock = clock
        self._quit = threading.Event()

    def start(self) -> None:
        for index in range(len(self._machines)):
            WORKERS.start(partial(self._follow, index), f"samples of node{index}")

    def close(self) -> None:
        """The threads end with their next sample."""
        self._quit.set()

    def _follow(self, index: int) -> None:
        while not self._quit.is_set():
            try:
                client = contact_node(self.row, self._machines[index], index, any_version=True)[0]
                with closing(client.connection), closing(client):
                    self._take_samples(index, client)
            except GpuopsError as error:
                self._note_loss(index, error)
            except Exception as error:  # the other nodes go on
                self._note_loss(index, NodeError(f"{type(error).__name__}: {error}"))
            self._quit.wait(RETRY_INTERVAL_S)

    def _take_samples(self, index: int, client: AgentClient) -> None:
        stream = client.stream("sample", timeout=SILENCE_S)
        with closing(stream):
            for count, sample in enumerate(stream, 1):
                if self._quit.is_set():
                    return
                self.nodes[index] = NodeView(sample, count)

    def _note_loss(self, index: int, error: GpuopsError) -> None:
        since = self.nodes[index].lost_since or self._clock.now()
        self.nodes[index] = NodeView(lost_since=since, why=one_line(error.message))


def open_watch(ctx: Context, name: str | None) -> Watch:
    """A watch of the cluster that is meant, which is not started yet. Raises UsageError, NodeError."""
    row = selection.pick_cluster(ctx.ledger.clusters(), ctx.folder, name, "gpuops top")
    machines = nodes_of(ctx, row)
    if not machines:
        raise NodeError(f"{row.name} has no machines", f"gpuops down {row.name}")
    return Watch(row, machines, ctx.clock)


def describe(ctx: Context, watch: Watch) -> TopReport:
    """The cluster now: what its nodes have sent, and the ledger's facts."""
    row, now = ctx.ledger.cluster(watch.row.id), ctx.clock.now()
    per_hour = sum(machine.per_hour for machine in machines_of(ctx, row) if machine.bills)
    runs = [run for run in ctx.ledger.runs(cluster=row.id) if run.state in (RunState.STARTING, RunState.RUNNING)]
    return TopReport(
        name=row.name,
        provider=row.provider,
        now=now,
        per_hour=per_hour,
        spent=row.spent_before + money_spent(per_hour, row.created, row.ended or now),
        hard_end=row.lease.end,
        run=runs[-1].name if runs else None,
        run_since=(runs[-1].started or runs[-1].created) if runs else None,
        nodes=list(watch.nodes),
        beside=[run.name for run in runs[:-1]],
    )


def look_once(ctx: Context, watch: Watch) -> TopReport:
    """Wait until every node has sent its rates, or does not answer."""

    def is_there(node: NodeView) -> bool:
        return node.is_complete or node.lost_since is not None

    with ctx.progress.during(f"looking at {watch.row.name}", whose=Whose.NODE, aside=True):
        for _ in Poller.every(ctx.clock, POLL_INTERVAL_S, ctx.clock.monotonic() + FIRST_SAMPLES_TIMEOUT_S):
            if all(map(is_there, watch.nodes)):
                break
    return describe(ctx, watch)
