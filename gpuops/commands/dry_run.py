"""`--dry-run` of `run` and `train`: what a plan would create, send and execute, as a value that is printed.

`preview_plan` asks the provider for offers and scans the project, and creates nothing.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuops.clusters import market_creation
from gpuops.commands.plan import Plan, Size
from gpuops.core.context import Context
from gpuops.core.models import Offer, Payer
from gpuops.core.provider import has_capability
from gpuops.core.run_models import NodeFacts, RunRequest
from gpuops.core.settings import secret_origins
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.gpu_shares import describe_shares, ranks_for, share_gpus, with_virtual
from gpuops.nodes.session import machines_of
from gpuops.offers import offer_table
from gpuops.runs.launch_spec import node_specs
from gpuops.runs.prepare import describe_secrets
from gpuops.runs.ready_nodes import choose_tree
from gpuops.sync import scan, workloads_and_data
from gpuops.sync.data_sources import Source, describe_source

TOKEN = re.compile(r"\{(python|agent|run)\}")
PLAIN = re.compile(r"[\w@%+=:,./-]*<[a-z0-9]+>[\w/-]*")
"""A word that holds one of our angle brackets and nothing else that a shell would read."""


@dataclass(frozen=True)
class ClusterPreview:
    """The cluster that would be used or created."""

    gpus: Sequence[int]
    """GPUs that each node would have."""
    use: str | None = None
    """The live cluster; None where one would be created."""
    notes: Sequence[str] = ()
    """What is said where nodes would share the machines of the live cluster."""
    offers: Sequence[Offer] = ()
    """What could be rented, best first; the first would be created."""
    payer: Payer | None = None

    def document(self) -> dict[str, object]:
        if self.use is not None:
            return {"use": self.use}
        create = dataclasses.asdict(self.offers[0]) | {"per_hour": self.offers[0].per_hour}
        return {"create": create, "payer": dataclasses.asdict(self.payer) if self.payer else None}

    def lines(self, width: int | None) -> list[str]:
        if self.use is not None:
            return [f"would use {self.use}", *self.notes]
        return offer_table.format_dry_run(self.offers, self.payer, width)


@dataclass(frozen=True)
class UploadPreview:
    """The project, the data and the secrets that would be sent."""

    name: str
    """The tree's name on the nodes: the project's, or a workload's."""
    tree: scan.Tree
    data_path: str | None
    """What `--data` names."""
    data: scan.Tree | None
    """None without data, and where the nodes read the original on this computer."""
    data_origin: str
    """Where the data come from, as the end of a sentence."""
    source: Source | None
    """What nodes would fetch by themselves."""
    source_line: str
    """The end of a sentence on it."""
    secrets: Mapping[str, str]
    """Where each secret is from, by its name."""
    secrets_line: str

    def document(self) -> dict[str, object]:
        send = {
            "tree": self.name,
            "files": [entry.path for entry in self.tree.files],
            "bytes": self.tree.size,
            "held": [{"path": held.path, "why": held.why} for held in self.tree.held],
        }
        document: dict[str, object] = {"send": send}
        if self.data is not None:
            document["data"] = {"path": self.data_path, "files": len(self.data.files), "bytes": self.data.size}
        if self.source is not None:
            files, size = len(self.source.files), self.source.size
            document["fetch"] = {"address": self.source.address, "files": files, "bytes": size}
        if self.secrets:
            document["secrets"] = [{"name": name, "from": origin} for name, origin in self.secrets.items()]
        return document

    def lines(self) -> Iterator[str]:
        first, *more = scan.summary(self.tree)
        yield from (f"would send: {first}", *more)
        if self.data is not None:
            first, *more = scan.summary(self.data)
            yield from (f"would send: data, {first}{self.data_origin}", *more)
        if self.source is not None:
            yield f"would fetch on the nodes: data, {self.source_line}"
        if self.secrets:
            yield f"would send: {self.secrets_line}"


@dataclass(frozen=True)
class PlanPreview:
    """All that a dry run prints."""

    plan: Plan
    cluster: ClusterPreview
    upload: UploadPreview
    commands: Sequence[Sequence[str]]
    """Each node's command line."""

    def document(self) -> dict[str, object]:
        retries, array = self.plan.job.retries, self.plan.job.array
        runs = {"array": {"indices": [*array.indices], "at_most": array.at_most}} if array else {}
        return {
            **self.cluster.document(),
            **self.upload.document(),
            "execute": self.commands,
            **({"retries": retries} if retries else {}),
            **runs,
        }

    def lines(self, width: int | None) -> list[str]:
        """`width`: columns of the terminal; None for no limit."""
        job, choice = self.plan.job, self.plan.choice
        lines = [*([choice.say] if choice.say else []), *self.cluster.lines(width), *self.upload.lines()]
        lines += [f"would execute on node{index}: {quote_command(argv)}" for index, argv in enumerate(self.commands)]
        lines += [f"would set up: {job.request.setup}"] if job.request.setup else []
        if job.array:
            lines.append(f"would queue {job.array.describe(self.plan.size.nodes)}")
        if job.retries:
            rents = any(offer.per_hour for offer in self.cluster.offers)
            queues = any(offer.queue_s for offer in self.cluster.offers)
            lines.append(f"would {describe_retries(job.retries, rents=rents, queues=queues)}")
        return lines


def preview_plan(ctx: Context, plan: Plan) -> PlanPreview:
    """What would be created, sent and executed, with its price.

    Raises ProviderError and UsageError as the search for machines does.
    """
    cluster = _preview_cluster(ctx, plan)
    upload = _preview_upload(ctx, plan)
    return PlanPreview(plan, cluster, upload, node_commands(plan.job.request, cluster.gpus))


def _preview_cluster(ctx: Context, plan: Plan) -> ClusterPreview:
    row = plan.choice.row
    if row is not None:
        gpus, notes = _gpus_of_nodes(ctx, row, plan.size)
        return ClusterPreview(gpus, row.name, notes)
    offers, payer = market_creation.preview(ctx, plan.job.market, plan.job.machines, plan.job.wish)
    return ClusterPreview([offers[0].gpus] * plan.size.nodes, offers=offers, payer=payer)


def _preview_upload(ctx: Context, plan: Plan) -> UploadPreview:
    request, allowed = plan.job.request, plan.job.sending.send_anyway
    name, folder = choose_tree(request, ctx.folder)
    tree = workloads_and_data.scan_project(ctx, folder, allowed)
    shared = has_capability(ctx.provisioner(plan.provider), "shares_disk")
    if request.data and not request.workload:
        tree = workloads_and_data.link_data(tree, ctx.folder, request.data, shared=shared)
    sent_data = workloads_and_data.local_data(ctx, plan.provider, request)
    source = workloads_and_data.find_data_source(ctx, request)
    return UploadPreview(
        name=name,
        tree=tree,
        data_path=sent_data,
        data=workloads_and_data.scan_data(ctx, sent_data, allowed) if sent_data else None,
        data_origin=workloads_and_data.describe_origin(ctx, sent_data, allowed) if sent_data else "",
        source=source,
        source_line=describe_source(source) if source else "",
        secrets=secret_origins(request.secrets, ctx.folder, ctx.env),
        secrets_line=describe_secrets(ctx, request),
    )


def _gpus_of_nodes(ctx: Context, row: ClusterRow, size: Size) -> tuple[list[int], list[str]]:
    """How many GPUs each node would have on a live cluster, and what to say where nodes would share its machines."""
    count = int(row.offer.get("gpus", 0))
    machines = machines_of(ctx, row)
    nodes = with_virtual(machines, size.nodes)[: size.nodes]
    if len(nodes) <= len(machines):
        return [count] * size.nodes, []
    gpus = [[str(index) for index in range(count)] for _ in machines]
    given, notes = share_gpus(nodes, gpus, size.gpus)
    return [lot.count for lot in given], [
        f"would run {describe_shares(given, len(machines))}",
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
    return [_without_tokens(request, spec["argv"]) for spec in specs]


def _without_tokens(request: RunRequest, argv: Sequence[str]) -> list[str]:
    """An argv with `<run>` for `{run}`, where that is ours: in a torchrun line up to its `--`."""
    ours = argv.index("--") if request.kind == "torchrun" else 0
    filled = [TOKEN.sub(r"<\1>", word).replace("--master-port=0", "--master-port=<port>") for word in argv[:ours]]
    return [*filled, *argv[ours:]]


def quote_command(argv: Sequence[str]) -> str:
    """A command line for people: quoted as a shell needs it, but for our angle brackets."""
    return " ".join(word if PLAIN.fullmatch(word) else shlex.quote(word) for word in argv)


def describe_retries(times: int, *, rents: bool, queues: bool) -> str:
    """What `--retries` does with machines that are rented for the run, queued for, or there."""
    how_often = "once" if times == 1 else f"up to {times} times"
    if queues:
        return (
            f"queue for other machines in place of those that are taken back {how_often}, and resume; and start a run "
            "that fails again on the same ones, as one of these times"
        )
    if rents:
        return (
            f"replace machines that are taken back {how_often}, elsewhere first and within the same limits, and resume"
        )
    return f"start a run that fails again {how_often}, on the same nodes and with what it left"
