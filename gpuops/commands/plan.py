"""What one `run` or `train` will do, decided as a value before anything is created.

`make_plan` chooses the cluster and the size once. `--dry-run` prints the plan (`commands.dry_run`), and `train.execute`
carries the same plan out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from gpuops.clusters import selection
from gpuops.commands.array_plan import Array
from gpuops.core.context import Context
from gpuops.core.models import Request
from gpuops.core.run_models import RunRequest
from gpuops.offers.lease_limits import LeaseLimits
from gpuops.offers.market import Market
from gpuops.runs.prepare import check_request
from gpuops.runs.ready_nodes import Sending

MULTINODE_MIN = 2
"""Nodes of `train multinode` where no number is typed and no more are available: the fewest that are several."""


@dataclass(frozen=True)
class Job:
    """One `run` or `train` as typed."""

    request: RunRequest
    """Its `nodes` is 0 where no number was typed."""
    machines: Request
    """What to bring up where a fresh cluster is needed."""
    cluster: str | None = None
    on: str | None = None
    market: Market | None = None
    """The providers that may bring it up, where several may; `on` is the first of them."""
    keep: bool = False
    detach: bool = False
    retries: int = 0
    """How many times preempted machines are replaced."""
    wish: LeaseLimits = field(default_factory=LeaseLimits)
    sending: Sending = field(default_factory=Sending)
    timings: bool = False
    """Whether to print at the end where the time went."""
    array: Array | None = None
    """Several runs of one request, which share the cluster; None: one run."""

    def resuming(self, run: str | None) -> Job:
        """The same with what a run left, which `--fresh` would take off the nodes."""
        if run == self.request.resume:
            return self
        request = dataclasses.replace(self.request, resume=run)
        return dataclasses.replace(self, request=request, sending=dataclasses.replace(self.sending, fresh=False))


@dataclass(frozen=True)
class Size:
    """How many nodes a run uses, and how many GPUs of each (None: every GPU that a node has)."""

    nodes: int
    gpus: int | None


@dataclass(frozen=True)
class Plan:
    """A job whose cluster and size are decided."""

    choice: selection.Choice
    size: Size
    job: Job
    """Its request and its machines have the plan's size and provider."""

    @property
    def provider(self) -> str:
        return self.choice.row.provider if self.choice.row else self.choice.provider


def resolve_size(asked: RunRequest, available: int) -> Size:
    """The size of a run. `available`: machines of the live cluster that it uses, or of the fresh one as asked for."""
    if asked.mode in ("single", "multigpu") or (asked.mode == "run" and not asked.all_nodes):
        return Size(1, asked.gpus)
    at_least = MULTINODE_MIN if asked.mode == "multinode" else 1
    return Size(asked.nodes or max(at_least, available), asked.gpus)


def make_plan(ctx: Context, job: Job) -> Plan:
    """Decide where a job runs and how far it spreads. Nothing is created. Raises UsageError for what cannot work."""
    choice = selection.choose_for_run(ctx.ledger.clusters(live=False), ctx.folder, cluster=job.cluster, on=job.on)
    available = job.machines.nodes
    if choice.row:
        available = sum(resource.is_machine for resource in ctx.ledger.resources(choice.row.id))
    size = resolve_size(job.request, available)
    request = dataclasses.replace(job.request, nodes=size.nodes)
    check_request(ctx, request, job.sending)
    spreads = request.kind == "torchrun" and not (job.array and size.nodes == 1)
    nodes = size.nodes if spreads else job.machines.nodes
    create = dataclasses.replace(job.machines, provider=choice.provider, nodes=nodes)
    return Plan(choice, size, dataclasses.replace(job, request=request, machines=create))
