"""`--dry-run`: what would be created, sent and executed, with its price. Nothing is touched."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuops import sync
from gpuops.clusters import select
from gpuops.clusters import up as clusters
from gpuops.commands.train import Job, on_all
from gpuops.core.context import Context
from gpuops.core.models import NodeFacts
from gpuops.core.provider import has_capability
from gpuops.core.settings import secret_origins
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.session import machines_of
from gpuops.nodes.virtual import lots, ranks_for, sentence, with_virtual
from gpuops.offers import table
from gpuops.runs.prepare import check, secrets_sent, tree_of
from gpuops.runs.spec import node_specs
from gpuops.sync import inputs

TOKEN = re.compile(r"\{(python|agent|run)\}")
PLAIN = re.compile(r"[\w@%+=:,./-]*<[a-z0-9]+>[\w/-]*")
"""A word that holds one of our angle brackets and nothing else that a shell would read."""


def dry_run(ctx: Context, job: Job) -> tuple[dict[str, Any], list[str]]:
    """The plan as a document and as lines. Raises what the real thing would raise so far."""
    choice = select.for_run(ctx.ledger.clusters(live=False), ctx.folder, cluster=job.cluster, on=job.on)
    job = on_all(ctx, job, choice)
    check(ctx, job.request, job.sending)
    document: dict[str, Any] = {}
    lines = [choice.say] if choice.say else []
    if choice.row is None:
        machines = dataclasses.replace(job.machines, provider=choice.provider)
        offers, payer = clusters.rehearse(ctx, machines, job.wish)
        offer = offers[0]
        gpus = [offer.gpus] * job.request.nodes
        document["create"] = dataclasses.asdict(offer) | {"per_hour": offer.per_hour}
        document["payer"] = dataclasses.asdict(payer) if payer else None
        lines += table.would_create(offers, payer, ctx.out.columns(ctx.out.out))
    else:
        lines.append(f"would use {choice.row.name}")
        document["use"] = choice.row.name
        gpus, beside = _beside(ctx, choice.row, job)
        lines += beside
    name, folder = tree_of(job.request, ctx.folder)
    tree = inputs.scan_project(ctx, folder, job.sending.send_anyway)
    provider = choice.row.provider if choice.row else choice.provider
    shared = has_capability(ctx.provisioner(provider), "shares_disk")
    if job.request.data and not job.request.workload:
        tree = inputs.with_link(tree, ctx.folder, Path(job.request.data), shared=shared)
    document["send"] = {
        "tree": name,
        "files": [entry.path for entry in tree.files],
        "bytes": tree.size,
        "held": [{"path": held.path, "why": held.why} for held in tree.held],
    }
    lines += [f"would send: {sentence}" for sentence in sync.summary(tree)[:1]] + sync.summary(tree)[1:]
    if job.request.data and not shared:
        more = inputs.scan(ctx, job.request.data, job.sending.send_anyway)
        document["data"] = {"path": job.request.data, "files": len(more.files), "bytes": more.size}
        origin = inputs.origin(ctx, job.request.data, job.sending.send_anyway)
        lines += [f"would send: data, {sync.summary(more)[0]}{origin}", *sync.summary(more)[1:]]
    if job.request.secrets:
        origins = secret_origins(job.request.secrets, ctx.folder, ctx.env)
        document["secrets"] = [{"name": name, "from": origin} for name, origin in origins.items()]
        lines.append(f"would send: {secrets_sent(ctx, job.request)}")
    document["execute"] = commands(job, gpus)
    lines += [f"would execute on node{index}: {shown(argv)}" for index, argv in enumerate(document["execute"])]
    lines += [f"would set up: {job.request.setup}"] * bool(job.request.setup)
    if job.retries:
        document["retries"] = job.retries
        lines.append(f"would {would_retry(job.retries)}")
    return document, lines


def would_retry(times: int) -> str:
    often = "once" if times == 1 else f"up to {times} times"
    return f"replace machines that are taken back {often}, elsewhere first and within the same limits, and resume"


def _beside(ctx: Context, row: ClusterRow, job: Job) -> tuple[list[int], list[str]]:
    """How many GPUs each node would have, and what is to be said where nodes would share a cluster's machines."""
    count = int(row.offer.get("gpus", 0))
    machines = machines_of(ctx, row)
    nodes = with_virtual(machines, job.request.nodes)[: job.request.nodes]
    if len(nodes) <= len(machines):
        return [count] * job.request.nodes, []
    facts = [{"gpus": [{"index": index} for index in range(count)]} for _ in machines]
    given, notes = lots(nodes, facts, job.request.gpus)
    would = f"would run {sentence(given, len(machines))}"
    return [lot.count for lot in given], [would, *(f"note: {note}" for note in notes)]


def commands(job: Job, gpus: Sequence[int]) -> list[list[str]]:
    """Each node's command line, on nodes with so many GPUs; what only a node knows stands in angle brackets."""
    nodes = [
        NodeFacts(
            index=index,
            python="<python>",
            ranks=ranks_for(job.request, gpus[index]),
            cores=1,
            cores_share=1.0,
            gpus=None,
            interface="<interface>",
            address="<node0>" if index == 0 else f"<node{index}>",
        )
        for index in range(job.request.nodes)
    ]
    specs = node_specs(
        job.request,
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


def shown(argv: Sequence[str]) -> str:
    """A command line for people: quoted as a shell needs it, but for our angle brackets."""
    return " ".join(word if PLAIN.fullmatch(word) else shlex.quote(word) for word in argv)
