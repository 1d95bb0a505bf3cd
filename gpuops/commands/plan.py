"""What one `run` or `train` will do, decided as a value before anything is created.

`make_plan` chooses the cluster and the size once. `--dry-run` prints the plan (`describe_plan`), and `train.execute`
carries the same plan out.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops import sync
from gpuops.clusters import select
from gpuops.clusters import up as clusters
from gpuops.core.context import Context
from gpuops.core.models import NodeFacts, Request, RunRequest
from gpuops.core.provider import has_capability
from gpuops.core.settings import secret_origins
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.gpu_shares import lots, ranks_for, sentence, with_virtual
from gpuops.nodes.session import machines_of
from gpuops.offers import table
from gpuops.offers.lease import LeaseLimits
from gpuops.runs.prepare import Sending, check_request, choose_tree, describe_secrets
from gpuops.runs.spec import node_specs
from gpuops.sync import inputs

MULTINODE_MIN = 2
"""Nodes of `train multinode` where no number is typed and no more are available: the fewest that are several."""
TOKEN = re.compile(r"\{(python|agent|run)\}")
PLAIN = re.compile(r"[\w@%+=:,./-]*<[a-z0-9]+>[\w/-]*")
"""A word that holds one of our angle brackets and nothing else that a shell would read."""


@dataclass(frozen=True)
class Job:
    """One `run` or `train` as typed."""

    request: RunRequest
    """Its `nodes` is 0 where no number was typed."""
    machines: Request
    """What to bring up where a fresh cluster is needed."""
    cluster: str | None = None
    on: str | None = None
    keep: bool = False
    detach: bool = False
    retries: int = 0
    """How many times preempted machines are replaced."""
    wish: LeaseLimits = field(default_factory=LeaseLimits)
    sending: Sending = field(default_factory=Sending)


@dataclass(frozen=True)
class Size:
    """How many nodes a run uses, and how many GPUs of each (None: every GPU that a node has)."""

    nodes: int
    gpus: int | None


@dataclass(frozen=True)
class Plan:
    """A job whose cluster and size are decided."""

    choice: select.Choice
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
    choice = select.choose_for_run(ctx.ledger.clusters(live=False), ctx.folder, cluster=job.cluster, on=job.on)
    machines = [one for one in ctx.ledger.resources(choice.row.id) if one.kind == "machine"] if choice.row else []
    size = resolve_size(job.request, len(machines) if choice.row else job.machines.nodes)
    request = dataclasses.replace(job.request, nodes=size.nodes)
    check_request(ctx, request, job.sending)
    nodes = size.nodes if request.kind == "torchrun" else job.machines.nodes
    create = dataclasses.replace(job.machines, provider=choice.provider, nodes=nodes)
    return Plan(choice, size, dataclasses.replace(job, request=request, machines=create))


def describe_plan(ctx: Context, plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """The plan as a document and as lines: what would be created, sent and executed, with its price.

    Raises ProviderError and UsageError as the search for machines does.
    """
    request = plan.job.request
    document: dict[str, Any] = {}
    lines = [plan.choice.say] if plan.choice.say else []
    gpus = _describe_cluster(ctx, plan, document, lines)
    _describe_upload(ctx, plan, document, lines)
    document["execute"] = node_commands(request, gpus)
    lines += [f"would execute on node{index}: {quote_command(argv)}" for index, argv in enumerate(document["execute"])]
    lines += [f"would set up: {request.setup}"] * bool(request.setup)
    if plan.job.retries:
        document["retries"] = plan.job.retries
        lines.append(f"would {describe_retries(plan.job.retries)}")
    return document, lines


def _describe_cluster(ctx: Context, plan: Plan, document: dict[str, Any], lines: list[str]) -> list[int]:
    """Add the cluster that would be used or created. Returns how many GPUs each node would have."""
    row = plan.choice.row
    if row is not None:
        lines.append(f"would use {row.name}")
        document["use"] = row.name
        gpus, notes = _gpus_of_nodes(ctx, row, plan.size)
        lines += notes
        return gpus
    offers, payer = clusters.preview_offers(ctx, plan.job.machines, plan.job.wish)
    document["create"] = dataclasses.asdict(offers[0]) | {"per_hour": offers[0].per_hour}
    document["payer"] = dataclasses.asdict(payer) if payer else None
    lines += table.format_dry_run(offers, payer, ctx.out.columns(ctx.out.out))
    return [offers[0].gpus] * plan.size.nodes


def _describe_upload(ctx: Context, plan: Plan, document: dict[str, Any], lines: list[str]) -> None:
    """Add the project, the data and the secrets that would be sent."""
    request, allowed = plan.job.request, plan.job.sending.send_anyway
    name, folder = choose_tree(request, ctx.folder)
    tree = inputs.scan_project(ctx, folder, allowed)
    shared = has_capability(ctx.provisioner(plan.provider), "shares_disk")
    if request.data and not request.workload:
        tree = inputs.link_data(tree, ctx.folder, Path(request.data), shared=shared)
    document["send"] = {
        "tree": name,
        "files": [entry.path for entry in tree.files],
        "bytes": tree.size,
        "held": [{"path": held.path, "why": held.why} for held in tree.held],
    }
    first, *more = sync.summary(tree)
    lines += [f"would send: {first}", *more]
    if request.data and not shared:
        data = inputs.scan_data(ctx, request.data, allowed)
        document["data"] = {"path": request.data, "files": len(data.files), "bytes": data.size}
        origin = inputs.describe_origin(ctx, request.data, allowed)
        first, *more = sync.summary(data)
        lines += [f"would send: data, {first}{origin}", *more]
    if request.secrets:
        origins = secret_origins(request.secrets, ctx.folder, ctx.env)
        document["secrets"] = [{"name": name, "from": origin} for name, origin in origins.items()]
        lines.append(f"would send: {describe_secrets(ctx, request)}")


def describe_retries(times: int) -> str:
    how_often = "once" if times == 1 else f"up to {times} times"
    return f"replace machines that are taken back {how_often}, elsewhere first and within the same limits, and resume"


def _gpus_of_nodes(ctx: Context, row: ClusterRow, size: Size) -> tuple[list[int], list[str]]:
    """How many GPUs each node would have on a live cluster, and what to say where nodes would share its machines."""
    count = int(row.offer.get("gpus", 0))
    machines = machines_of(ctx, row)
    nodes = with_virtual(machines, size.nodes)[: size.nodes]
    if len(nodes) <= len(machines):
        return [count] * size.nodes, []
    gpus = [[str(index) for index in range(count)] for _ in machines]
    given, notes = lots(nodes, gpus, size.gpus)
    return [lot.count for lot in given], [
        f"would run {sentence(given, len(machines))}",
        *(f"note: {note}" for note in notes),
    ]


def node_commands(request: RunRequest, gpus: Sequence[int]) -> list[list[str]]:
    """Each node's command line; `gpus`: how many each node has. What only a node knows stands in angle brackets."""
    nodes = [
        NodeFacts(
            index=index,
            python="<python>",
            ranks=ranks_for(request, gpus[index]),
            cores=1,
            cores_share=1.0,
            gpus=None,
            interface="<interface>",
            address="<node0>" if index == 0 else f"<node{index}>",
        )
        for index in range(request.nodes)
    ]
    specs = node_specs(
        request,
        run="<run>",
        cluster="<cluster>",
        tree="<tree>",
        nodes=nodes,
        master=("<node0>", 0),
        gang=None,
        attempt=1,
    )
    return [_without_tokens(spec) for spec in specs]


def _without_tokens(spec: Mapping[str, Any]) -> list[str]:
    """A spec's argv with `<run>` for `{run}`, where that is ours: in a torchrun line up to its `--`."""
    argv = list(spec["argv"])
    ours = argv.index("--") if spec["kind"] == "torchrun" else 0
    filled = [TOKEN.sub(r"<\1>", word).replace("--master-port=0", "--master-port=<port>") for word in argv[:ours]]
    return filled + argv[ours:]


def quote_command(argv: Sequence[str]) -> str:
    """A command line for people: quoted as a shell needs it, but for our angle brackets."""
    return " ".join(word if PLAIN.fullmatch(word) else shlex.quote(word) for word in argv)
